"""Small tokenizers of every family, trained on the spot, so that no test needs a download."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _WORDS]
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's a test, don't you think? 1234567890\n",
    "def function(argument: int) -> str:\n    return f'{argument!r}'  # comment\n\n\nclass Name:\n\tpass\n",
    '{"key": [1, 2.5, null, true], "name": "value", "list": []}\r\n',
    "敏捷的棕色狐狸跳过了懒狗。日本語のテキスト、カタカナ。한국어 텍스트 123\n",
    "Съешь ещё этих мягких французских булок, naïve café — “quotes” … нет\n",
    "   spaces   and\ttabs\n\n\n   more    spaces ==== ---- //// !!!! ????\n",
]
SPECIALS = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>"]


def _split(*expressions: str, behavior: str = "isolated", invert: bool = False) -> Any:
    steps = [pre_tokenizers.Split(Regex(one), behavior, invert=invert) for one in expressions]
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


FAMILIES: dict[str, Callable[[Tokenizer], None]] = {}


def family(function: Callable[[Tokenizer], None]) -> Callable[[Tokenizer], None]:
    FAMILIES[function.__name__] = function
    return function


@family
def qwen(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(CL100K.replace("{1,3}", ""))


@family
def llama(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = _split(CL100K)


@family
def minimax(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(CL100K, behavior="removed", invert=True)


@family
def deepseek(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = _split(*DEEPSEEK)


@family
def gpt2(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


@family
def two_splits(tokenizer: Tokenizer) -> None:
    """No single expression does this: only `tokenizers` and fastokens take it."""
    tokenizer.pre_tokenizer = _split(r"[\r\n]", r"\s?\p{L}+")


def trained(prepare: Callable[[Tokenizer], None]) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    prepare(tokenizer)
    trainer = BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("<think>!", normalized=True)])
    return tokenizer


@dataclass
class Model:
    """A tokenizer directory, and what `tokenizers` makes of the same file."""

    directory: Path
    reference: Tokenizer

    def encoded(self, text: str) -> list[int]:
        return list(self.reference.encode(text, add_special_tokens=False).ids)


def written(directory: Path, tokenizer: Tokenizer, **config: Any) -> Model:
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "chat_template": TEMPLATE,
        "bos_token": "<|bos|>",
        "eos_token": {"content": "<|end|>"},
    } | config
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return Model(directory, tokenizer)
