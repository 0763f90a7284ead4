"""The encoders that an exact counter can use, best first: fastokens, tiktoken, tokenizers.

All of them encode plain text between added tokens, to ids equal to those of `tokenizers`, which
SGLang uses. Where that package is installed the choice is proved against it on difficult texts.
"""

import importlib
import logging
from collections.abc import Callable, Sized
from typing import Any, Protocol

from proxy.tokens.exact.bpe import ByteLevelBpe, convert
from proxy.tokens.exact.patterns import Unsupported

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Encodes plain text. `encode_ordinary` gives something whose length is the number of tokens.

    `normalizes`: it applies the tokenizer's normaliser itself.
    """

    name: str
    normalizes: bool

    def encode_ordinary(self, text: str) -> Sized: ...

    def ids(self, text: str) -> list[int]: ...


class TiktokenEngine:
    """A converted byte-level BPE."""

    name = "tiktoken"
    normalizes = False

    def __init__(self, converted: ByteLevelBpe) -> None:
        self._encoding = converted.encoding
        self._ids = converted.ids

    def encode_ordinary(self, text: str) -> Sized:
        return self._encoding.encode_ordinary(text)

    def ids(self, text: str) -> list[int]:
        ranks = self._encoding.encode_ordinary(text)
        return ranks if self._ids is None else [self._ids[rank] for rank in ranks]


class FastokensEngine:
    """The `fast` extra: SGLang's own `--tokenizer-backend=fastokens`."""

    name = "fastokens"
    normalizes = True

    def __init__(self, source: str) -> None:
        self._tokenizer = importlib.import_module("fastokens").Tokenizer.from_json_str(source)

    def encode_ordinary(self, text: str) -> Sized:
        encoded: Sized = self._tokenizer.encode_ordinary(_clean(text))
        return encoded

    def ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode_ordinary(_clean(text)).ids
        return found


class HuggingFaceEngine:
    """`tokenizers` itself: takes every tokenizer.json, at a tenth of the speed.

    Only its batch calls release the GIL.
    """

    name = "tokenizers"
    normalizes = True

    def __init__(self, source: str) -> None:
        self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_str(source)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode_ordinary(self, text: str) -> Sized:
        encoded: Sized = self._tokenizer.encode_batch_fast([_clean(text)], add_special_tokens=False)[0]
        return encoded

    def ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode_batch_fast([_clean(text)], add_special_tokens=False)[0].ids
        return found


def _clean(text: str) -> str:
    """Without lone surrogates, which only tiktoken takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def choose(source: str, document: dict[str, Any], normalize: Callable[[str], str]) -> Engine:
    """The fastest engine that is installed, takes this tokenizer and encodes as `tokenizers` does.

    `source` is the text of a tokenizer.json, `document` what it says. `normalize` is what must
    happen to a text for an engine that does not normalise itself. Raises Unsupported, with the
    reasons, when there is none.
    """
    reference = _attempt(lambda: HuggingFaceEngine(source))
    makers: list[Callable[[], Engine]] = [
        lambda: FastokensEngine(source),
        lambda: TiktokenEngine(convert(document)),
    ]
    reasons = []
    for make in makers:
        engine = _attempt(make)
        if isinstance(engine, str):
            reasons.append(engine)
            continue
        difference = None if isinstance(reference, str) else _difference(engine, reference, normalize)
        if difference is None:
            return engine
        reasons.append(f"{engine.name} differs from tokenizers on {difference!r}")
        logger.warning("%s", reasons[-1])
    if isinstance(reference, str):
        raise Unsupported("; ".join([*reasons, reference]))
    return reference


def _attempt(make: Callable[[], Engine]) -> Engine | str:
    """An engine, or why there is none."""
    try:
        return make()
    except ImportError as error:
        return f"{error.name} is not installed"
    except Unsupported as error:
        return f"tiktoken: {error}"
    except Exception as error:  # noqa: BLE001 the packages raise bare exceptions for what they do not take
        return f"{type(error).__name__}: {error}"


PROOF_TEXTS = (
    "Hello, world! It's 3:45pm; we'll pay $1,234.56 (≈ 20%).",
    "  leading, trailing  \n\n\t tabs\tand \r\n line ends \n\n\n",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\n\nclass A:\n\tpass\n",
    '{"a": [1, 2.5e-3, null], "ключ": "значение", "emoji": "👩‍👩‍👧‍👦🏳️‍🌈"}',
    "敏捷的棕色狐狸跳过了懒狗。123年后，カタカナとひらがな、한국어 텍스트!",
    "Съешь ещё этих мягких французских булок, да выпей чаю",
    "مرحبا بالعالم ١٢٣ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "naïve café — “quotes” … Ünïcödé ﬁ ½ ² ₂ ™ ⅷ",
    "1234567890 12 345 6789 0x1F 1e10 3.14159 2024-12-01T13:37:00Z",
    "aaaaaaaaaaaaaaaaaaaaaaaa ========== ---- //// \\\\ \u00a0\u2003\u3000 \u200b\ufeff",
    "don't won't I'D WE'LL they've HE'S ain't 'quoted'",
    "SGLang/v0.5.23+cu128 https://example.com/a?b=c&d=%20#frag user@host.org",
    "a\u0301e\u0308 \u1e9b\u0323 Å Ω ㎏ ﷺ \U0001d518 \x00\x07\x1b",
    "中文English混合123テスト한글абв",
    "\n \n  \n   x\n    y",
)  # fmt: skip


def _difference(engine: Engine, reference: Engine, normalize: Callable[[str], str]) -> str | None:
    """The first proof text that the two encode differently."""
    for text in PROOF_TEXTS:
        if engine.ids(text if engine.normalizes else normalize(text)) != reference.ids(text):
            return text
    return None
