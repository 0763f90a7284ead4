"""Expected figures: what the families' own code (SGLang 0.5.23, transformers 5) gives for these sizes."""

import base64
import json
import struct
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings_sections import ImageFamily
from proxy.tokens.image_directory import rule_of_directory
from proxy.tokens.image_families import FAMILIES, Family, family_of_name
from proxy.tokens.media import MediaRules
from proxy.tokens.media_choice import MediaChoice
from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer

SIZES = ((3840, 2160), (1920, 1080), (1024, 1024), (512, 512), (336, 336), (64, 48), (100, 3000))
OFFICIAL: dict[Family, tuple[int, ...]] = {
    "qwen2_vl": (10_549, 2_691, 1_369, 324, 144, 4, 428),
    "qwen3_vl": (8_160, 2_040, 1_024, 256, 100, 70, 282),
    "glm4v": (6_032, 2_691, 1_369, 324, 144, 12, 428),
    "kimi_vl": (1_032, 1_032, 1_089, 361, 144, 6, 432),
    "kimi_k25": (4_214, 2_691, 1_369, 361, 144, 6, 432),
    "internvl": (2_304, 2_304, 2_560, 2_560, 2_560, 3_328, 3_328),
    "gemma3": (256, 256, 256, 256, 256, 256, 256),
    "gemma4": (264, 264, 256, 256, 256, 266, 273),
    "llama4": (2_319, 2_319, 2_464, 724, 144, 144, 1_449),
    "pixtral": (2_340, 2_340, 4_160, 1_056, 462, 15, 256),
    "mistral3": (1_736, 1_736, 1_406, 380, 156, 8, 165),
    "minicpmv": (594, 594, 462, 198, 64, 64, 264),
}


def picture(width: int, height: int) -> str:
    """A data URL with the header of a PNG, which is all that is read."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    return "data:image/png;base64," + base64.b64encode(head + bytes(100)).decode()


def question(model: str, width: int = 3840, height: int = 2160) -> bytes:
    part = {"type": "image_url", "image_url": {"url": picture(width, height)}}
    return orjson.dumps({"model": model, "messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize("family", OFFICIAL)
def test_an_image_costs_what_its_family_makes_of_it(family: Family) -> None:
    rules = MediaRules(image_rule=FAMILIES[family])
    assert tuple(rules.image(picture(*size)).tokens for size in SIZES) == OFFICIAL[family]


def test_every_family_has_figures_and_can_be_set() -> None:
    assert {*OFFICIAL, "patches"} == {*FAMILIES} == {*get_args(ImageFamily)}


@given(family=st.sampled_from([*FAMILIES]), width=st.integers(1, 2**31 - 1), height=st.integers(1, 2**31 - 1))
def test_no_size_costs_nothing_or_more_than_any_server_takes(family: Family, width: int, height: int) -> None:
    assert 1 <= FAMILIES[family].tokens(width, height) <= 16_384


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2_vl"),
        ("Qwen2.5-VL-72B", "qwen2_vl"),
        ("/models/qwen3-vl-235b-a22b", "qwen3_vl"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3_vl"),
        ("zai-org/GLM-4.5V", "glm4v"),
        ("glm-4.6v-flash", "glm4v"),
        ("moonshotai/Kimi-VL-A3B-Thinking-2506", "kimi_vl"),
        ("moonshotai/Kimi-K2.5", "kimi_k25"),
        ("OpenGVLab/InternVL3_5-8B", "internvl"),
        ("google/gemma-3-27b-it", "gemma3"),
        ("google/gemma-4-31b-it", "gemma4"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4"),
        ("mistralai/Pixtral-12B-2409", "pixtral"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral3"),
        ("openbmb/MiniCPM-V-4_5", "minicpmv"),
        ("Qwen/Qwen3-8B", None),
        ("moonshotai/Kimi-K2-Instruct", None),
        ("zai-org/GLM-4.7", None),
        ("meta-llama/Llama-3.1-8B", None),
        ("", None),
    ],
)
def test_a_name_tells_the_family(name: str, family: Family | None) -> None:
    assert family_of_name(name) == family


def directory(root: Path, config: object, processor: object = None) -> Path:
    (root / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (root / "preprocessor_config.json").write_text(json.dumps(processor))
    return root


@pytest.mark.parametrize(
    ("config", "processor", "tokens"),
    [
        ({"model_type": "qwen2_5_vl"}, {"max_pixels": 1_003_520}, 1_222),
        ({"model_type": "qwen3_vl"}, {"patch_size": 14, "size": {"longest_edge": 1_003_520}}, 1_222),
        ({"model_type": "qwen3_5"}, None, 8_160),
        ({"model_type": "glm4v_moe"}, {"size": {"shortest_edge": 12_544, "longest_edge": 9_633_792}}, 6_032),
        ({"model_type": "kimi_vl"}, {"in_token_limit": 1_024, "merge_kernel_size": [2, 2]}, 264),
        ({"model_type": "kimi_k25"}, {"media_proc_cfg": {"in_patch_limit": 4_096}}, 1_032),
        ({"model_type": "kimi_k25"}, {"media_proc_cfg": {"fixed_output_tokens": 77}}, 77),
        ({"model_type": "internvl_chat", "force_image_size": 224}, None, 9 * 64),
        ({"model_type": "internvl", "vision_config": {"image_size": [448, 448]}}, None, 2_304),
        ({"model_type": "gemma3", "mm_tokens_per_image": 64}, None, 64),
        ({"model_type": "gemma4"}, {"max_soft_tokens": 1_120}, 1_100),
        ({"model_type": "llama4"}, {"max_patches": 4, "size": {"height": 336, "width": 336}}, 724),
        ({"model_type": "mistral3", "vision_config": {"image_size": 1_024}}, None, 21 * 38),
        ({"model_type": "pixtral", "vision_config": {"image_size": 512, "patch_size": 16}}, None, 18 * 33),
        ({"model_type": "minicpmv", "query_num": 32}, {"max_slice_nums": 4}, 34 * 4),
    ],
)
def test_a_directory_brings_its_own_numbers(
    config: object, processor: object, tokens: int, tmp_path: Path
) -> None:
    found = rule_of_directory(directory(tmp_path, config, processor))
    assert found is not None
    assert found[1].tokens(3840, 2160) == tokens


@pytest.mark.parametrize("value", [None, "x", 0, -1, True, [], {}, 1.5])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "kimi_k25", "llama4", "minicpmv", "internvl_chat"])
def test_numbers_that_make_no_sense_are_the_usual_ones(family: str, value: object, tmp_path: Path) -> None:
    names = ("patch_size", "merge_size", "size", "media_proc_cfg", "max_patches", "max_slice_nums")
    spoilt: dict[str, Any] = dict.fromkeys(names, value)
    spoilt |= {"vision_config": value, "downsample_ratio": value, "force_image_size": value}
    usual = rule_of_directory(directory(tmp_path, {"model_type": family}))
    assert rule_of_directory(directory(tmp_path, spoilt | {"model_type": family}, spoilt)) == usual


def test_a_directory_of_another_kind_tells_nothing(tmp_path: Path) -> None:
    assert rule_of_directory(tmp_path) is None
    assert rule_of_directory(directory(tmp_path, {"model_type": "llama"})) is None


def test_a_setting_counts_before_directory_and_servers(tmp_path: Path) -> None:
    choice = MediaChoice("gemma3")
    choice.read_directory(directory(tmp_path, {"model_type": "qwen3_vl"}))
    choice.serves(["Qwen3-VL-8B"], None)
    assert choice.of("Qwen3-VL-8B").image_rule == FAMILIES["gemma3"]
    assert choice.families == {"*": "gemma3"}


def test_a_directory_counts_before_servers(tmp_path: Path) -> None:
    choice = MediaChoice()
    choice.read_directory(directory(tmp_path, {"model_type": "qwen3_vl"}))
    choice.serves(["gemma-3-4b"], None)
    assert choice.of("gemma-3-4b").image_rule == FAMILIES["qwen3_vl"]


def test_a_directory_that_cannot_be_read_leaves_it_to_the_servers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[")
    choice = MediaChoice()
    choice.read_directory(tmp_path)
    choice.serves(["gemma-3-4b"], None)
    assert choice.of("gemma-3-4b").image_rule == FAMILIES["gemma3"]


def test_each_model_of_a_fleet_has_its_own_rule() -> None:
    choice = MediaChoice()
    choice.serves(["chat"], "moonshotai/Kimi-K2.5")
    assert choice.of("an adapter of the only model").image_rule == FAMILIES["kimi_k25"]
    choice.serves(["InternVL3-8B"], None)
    assert choice.of("chat").image_rule == FAMILIES["kimi_k25"]
    assert choice.of("InternVL3-8B").image_rule == FAMILIES["internvl"]
    assert choice.of("neither").image_rule == FAMILIES["patches"]
    assert choice.of(["no", "name"]).image_rule == FAMILIES["patches"]


async def test_a_request_is_charged_by_the_rule_of_its_model() -> None:
    sizer = Sizer()
    assert (await sizer.size(Api.CHAT, question("m"))).shape.media_tokens == 10_764
    sizer.serves(["m"], "/models/Kimi-VL-A3B")
    assert (await sizer.size(Api.CHAT, question("m"))).shape.media_tokens == 1_032
    assert sizer.stats().image_families == {"m": "kimi_vl"}
    sizer.close()


async def test_a_sizer_reads_the_rule_in_the_tokenizer_directory(tmp_path: Path) -> None:
    sizer = Sizer(tokenizer_path=directory(tmp_path, {"model_type": "gemma3"}))
    await sizer.load()  # it holds no tokenizer: counting is by default, images are Gemma's
    assert (await sizer.size(Api.CHAT, question("m"))).shape.media_tokens == 256
    sizer.close()
