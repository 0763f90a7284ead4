"""The image rule of a model with the numbers in its own directory."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxy.tokens.exact.tokenizer import read_json
from proxy.tokens.image_families import GLM4V, QWEN2_VL, QWEN3_VL, Family
from proxy.tokens.images import (
    BoundedRows,
    ClosestTiles,
    FilledPatches,
    FittingTiles,
    Fixed,
    ImageRule,
    ResizedPatches,
    ShrunkPatches,
    Slices,
)

_Config = Mapping[str, Any]
_Build = Callable[[_Config, _Config], ImageRule]
"""From config.json and preprocessor_config.json."""

_MOST_TILES = 64  # all grids of so many are tried for every image


def rule_of_directory(directory: Path) -> tuple[Family, ImageRule] | None:
    """Family and rule with the numbers in a model's own config.json and preprocessor_config.json.

    None for a model whose family is not known. Raises OSError or ValueError for a file that cannot
    be read; a number that is missing or makes no sense is the family's usual one.
    """
    config = read_json(directory / "config.json")
    found = _TYPES.get(str(config.get("model_type", "")))
    if found is None:
        return None
    family, build = found
    processor = read_json(directory / "preprocessor_config.json") or _dict(
        read_json(directory / "processor_config.json"), "image_processor"
    )
    return family, build(config, processor)


def _resized(usual: ResizedPatches, frames: int = 1) -> _Build:
    """`frames`: how many an image counts for in the bounds of its area."""

    def build(_: _Config, processor: _Config) -> ImageRule:
        merge = _number(processor, "merge_size", 2)
        patch = _number(processor, "patch_size", usual.patch_pixels // 2) * merge
        size = _dict(processor, "size")
        least = _number(size, "shortest_edge", usual.least_pixels * frames)
        most = _number(size, "longest_edge", usual.most_pixels * frames)
        least = _number(processor, "min_pixels", least) // frames
        return ResizedPatches(patch, least, _number(processor, "max_pixels", most) // frames)

    return build


def _kimi_vl(_: _Config, processor: _Config) -> ImageRule:
    patch, merge = _number(processor, "patch_size", 14), _number(processor, "merge_kernel_size", 2)
    return ShrunkPatches(patch, merge, _number(processor, "in_token_limit", 4_096))


def _kimi_k25(_: _Config, processor: _Config) -> ImageRule:
    media = _dict(processor, "media_proc_cfg")
    fixed = _number(media, "fixed_output_tokens", 0)
    if fixed:
        return Fixed(fixed)
    return ShrunkPatches(
        _number(media, "patch_size", 14),
        _number(media, "merge_kernel_size", 2),
        _number(media, "in_patch_limit", 16_384),
        _number(media, "patch_limit_on_one_side", 512),
    )


def _internvl(config: _Config, _: _Config) -> ImageRule:
    vision = _dict(config, "vision_config")
    tile = _number(config, "force_image_size", _number(vision, "image_size", 448))
    return ClosestTiles(_merged(tile, vision, config.get("downsample_ratio")))


def _gemma3(config: _Config, _: _Config) -> ImageRule:
    return Fixed(_number(config, "mm_tokens_per_image", _number(config, "vision_soft_tokens_per_image", 256)))


def _gemma4(_: _Config, processor: _Config) -> ImageRule:
    return FilledPatches(_number(processor, "max_soft_tokens", 280))


def _llama4(config: _Config, processor: _Config) -> ImageRule:
    vision = _dict(config, "vision_config")
    tile = _number(_dict(processor, "size"), "height", _number(vision, "image_size", 336))
    return FittingTiles(
        tile,
        _merged(tile, vision, vision.get("pixel_shuffle_ratio")),
        _bounded(_number(processor, "max_patches", 16)),
        processor.get("resize_to_max_canvas") is True,
    )


def _pixtral(longest: int, patch: int, merge: int) -> _Build:
    def build(config: _Config, _: _Config) -> ImageRule:
        vision = _dict(config, "vision_config")
        merged = _number(vision, "spatial_merge_size", _number(config, "spatial_merge_size", merge))
        patch_pixels = _number(vision, "patch_size", patch) * merged
        return BoundedRows(patch_pixels, _number(vision, "image_size", longest))

    return build


def _minicpmv(config: _Config, processor: _Config) -> ImageRule:
    tokens = _number(processor, "image_feature_size", _number(config, "query_num", 64))
    slices = _bounded(_number(processor, "max_slice_nums", 9))
    return Slices(_number(processor, "scale_resolution", 448), tokens, slices)


_TYPES: dict[str, tuple[Family, _Build]] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), ("qwen2_vl", _resized(QWEN2_VL))),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe"),
        ("qwen3_vl", _resized(QWEN3_VL)),
    ),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm_ocr"), ("glm4v", _resized(GLM4V, frames=2))),
    "kimi_vl": ("kimi_vl", _kimi_vl),
    "kimi_k25": ("kimi_k25", _kimi_k25),
    **dict.fromkeys(("internvl", "internvl_chat", "interns1"), ("internvl", _internvl)),
    **dict.fromkeys(("gemma3", "gemma3n"), ("gemma3", _gemma3)),
    "gemma4": ("gemma4", _gemma4),
    "llama4": ("llama4", _llama4),
    "pixtral": ("pixtral", _pixtral(1_024, 16, 1)),
    "mistral3": ("mistral3", _pixtral(1_540, 14, 2)),
    **dict.fromkeys(("minicpmv", "minicpmo"), ("minicpmv", _minicpmv)),
}


def _merged(tile_pixels: int, vision: _Config, ratio: object) -> int:
    """Tokens of a tile: its patches, of which `ratio` stay on each side."""
    share = ratio if isinstance(ratio, float) and 0 < ratio <= 1 else 0.5
    return max(1, int((tile_pixels // _number(vision, "patch_size", 14)) ** 2 * share**2))


def _bounded(tiles: int) -> int:
    return min(tiles, _MOST_TILES)


def _number(values: _Config, name: str, usual: int) -> int:
    """A positive whole number; of a pair, such as both sides of a square, the first."""
    value = values.get(name)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) and value is not True and value > 0 else usual


def _dict(values: _Config, name: str) -> _Config:
    value = values.get(name)
    return value if isinstance(value, dict) else {}
