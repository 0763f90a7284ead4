import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.tokens.chain import Chain
from proxy.tokens.counter import EXACT_MOST_CHARS, Counter
from proxy.tokens.exact import engines
from proxy.tokens.exact.patterns import Unsupported
from proxy.tokens.exact.tokenizer import Tokenizer
from tests.tokens.exact.families import CORPUS, FAMILIES, SPECIALS, Model, trained, written

PIECES = [
    *CORPUS,
    *SPECIALS,
    "<think>",
    "<think>!",
    " ",
    "\n",
    "é",
    "e\u0301",
    "😀",
    "１２",
    "\x00",
    "<|",
    "|>",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=8).map("".join)
ENGINES = {"fastokens": engines.FastokensEngine, "tiktoken": engines.TiktokenEngine}


def only(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves one engine of the two fast ones, or none with "tokenizers"."""

    def refuse(*_: object) -> None:
        raise Unsupported("not in this test")

    for name, cls in ENGINES.items():
        if name != engine:
            monkeypatch.setattr(engines, cls.__name__, refuse)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["fastokens", "tiktoken", "tokenizers"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=TEXTS)
def test_ids_are_those_of_tokenizers(family: str, engine: str, text: str, loaded: "Loaded") -> None:
    model, tokenizer = loaded(family, engine)

    assert tokenizer.ids(text) == model.encoded(text)


class Loaded:
    """Tokenizers by family and engine, each read once."""

    def __init__(self, models: dict[str, Model]) -> None:
        self._models = models
        self._made: dict[tuple[str, str], Tokenizer] = {}

    def __call__(self, family: str, engine: str) -> tuple[Model, Tokenizer]:
        model = self._models[family]
        if (family, engine) not in self._made:
            with pytest.MonkeyPatch.context() as patch:
                only(engine, patch)
                made = Tokenizer(model.directory)
            assert made.engine.name == (
                engine if (family, engine) != ("two_splits", "tiktoken") else "tokenizers"
            )
            self._made[family, engine] = made
        return model, self._made[family, engine]


@pytest.fixture(scope="module")
def loaded(models: dict[str, Model]) -> Loaded:
    return Loaded(models)


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_in_windows_add_up_to_the_whole(family: str, models: dict[str, Model]) -> None:
    model, rnd = models[family], random.Random(1)
    text = "".join(rnd.choices([*CORPUS, "word ", "another word ", "中文", "x\n", "\n\n"], k=5_000))
    counter = Counter(Tokenizer(model.directory).engine, memo_entries=100, most_chars=EXACT_MOST_CHARS)

    chain = Chain(counter, b"", sampled=False)
    chain.text(text)

    assert len(text) > 100_000
    assert chain.tokens == len(model.encoded(text))


def test_the_fast_engine_is_preferred_and_proved(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    assert Tokenizer(model.directory).engine.name == "fastokens"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines.FastokensEngine, "ids", lambda _, text: [len(text)])
        assert Tokenizer(model.directory).engine.name == "tiktoken"
    assert "fastokens differs from tokenizers on" in caplog.text


def test_without_any_engine_the_reasons_are_told(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr("proxy.tokens.exact.engines.importlib.import_module", missing)
    assert Tokenizer(models["deepseek"].directory).engine.name == "tiktoken"
    with pytest.raises(
        Unsupported, match=r"fastokens is not installed; tiktoken: 2 splits.*tokenizers is not"
    ):
        Tokenizer(models["two_splits"].directory)


def test_an_ids_order_that_is_not_the_merges_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("tiktoken", monkeypatch)
    tokenizer = trained(FAMILIES["llama"])
    document = json.loads(tokenizer.to_str())
    vocabulary, size = document["model"]["vocab"], len(document["model"]["vocab"])
    document["model"]["vocab"] = {token: size - 1 - token_id for token, token_id in vocabulary.items()}
    shuffled = tokenizer.from_str(json.dumps(document))
    model = written(tmp_path / "shuffled", shuffled)
    made = Tokenizer(model.directory)

    assert made.engine.name == "tiktoken"
    assert made.ids(CORPUS[0]) == model.encoded(CORPUS[0])


def test_the_start_token_of_plain_prompts_is_known(with_bos: Model, models: dict[str, Model]) -> None:
    made = Tokenizer(with_bos.directory)

    assert made.prefix == [with_bos.reference.token_to_id("<|bos|>")]
    assert [*made.prefix, *made.ids("hello")] == with_bos.reference.encode("hello").ids
    assert Tokenizer(models["llama"].directory).prefix == []


@pytest.mark.parametrize(("cls", "count"), [("LlamaTokenizerFast", 1), ("Qwen2Tokenizer", 0)])
def test_the_setting_of_a_start_token_counts_for_some_classes(tmp_path: Path, cls: str, count: int) -> None:
    model = written(tmp_path / "bos", trained(FAMILIES["llama"]), tokenizer_class=cls, add_bos_token=True)

    assert len(Tokenizer(model.directory).prefix) == count


def test_the_vocabulary_ends_after_the_last_added_token(model: Model) -> None:
    assert Tokenizer(model.directory).vocabulary_size == model.reference.get_vocab_size()


def test_tokens_that_only_the_configuration_adds_are_found(tmp_path: Path) -> None:
    extra = {"5000": {"content": "<extra>", "lstrip": True, "rstrip": True}}
    model = written(tmp_path / "extra", trained(FAMILIES["llama"]), added_tokens_decoder=extra)

    assert list(Tokenizer(model.directory).pieces("a \n<extra>  b")) == ["a", 5000, "b"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}}, "depends on the place"),
        ({"pre_tokenizer": None}, "depends on the place"),
        ({"normalizer": {"type": "Lowercase"}}, "normaliser"),
    ],
)
def test_what_cannot_be_split_is_refused(
    model: Model, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    document = json.loads((model.directory / "tokenizer.json").read_text()) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))

    with pytest.raises(Unsupported, match=reason):
        Tokenizer(tmp_path)


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
