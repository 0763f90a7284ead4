"""Which regular expression cuts a text into the pieces that merges never cross.

A tokenizer.json may cut in several steps; tiktoken knows one expression. What cannot be written as
one raises `Unsupported`, and another engine takes over.
"""

from typing import Any

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CJK = "一-龥\u3040-ゟ゠-ヿ"
_MARKS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK_STEPS = [
    r"\p{N}{1,3}",
    f"[{_CJK}]+",
    _MARKS
    + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
# The three steps of DeepSeek V3 and later as one. A step's matches are whole pieces to the next, so
# the classes of the third must leave out what the first two took, and its look-ahead must take the
# start of such a match for the end of the text. The last alternative is what no step matched:
# "Isolated" keeps it as a piece, tiktoken would drop it.
_DEEPSEEK = "|".join(
    [
        r"\p{N}{1,3}",
        f"[{_CJK}]+",
        _MARKS,
        rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK}]?[\p{{L}}\p{{M}}&&[^{_CJK}]]+",
        rf" ?[\p{{P}}\p{{S}}&&[^{_CJK}]]+[\r\n]*",
        r"\s*[\r\n]+",
        rf"\s+(?![^\s\p{{N}}{_CJK}])",
        r"\s+",
        rf"(?:[^\s\p{{L}}\p{{M}}\p{{P}}\p{{S}}\p{{N}}{_CJK}](?![\p{{L}}\p{{M}}&&[^{_CJK}]]))+",
    ]
)


class Unsupported(Exception):
    """This tokenizer cannot be converted; the message says which part of it."""


def single_pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    """The one expression that cuts as `pre_tokenizer` does. Raises Unsupported."""
    steps = _steps(pre_tokenizer)
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise Unsupported("pre-tokenizer does not end in a plain ByteLevel")
    splits, byte_level = steps[:-1], steps[-1]
    expressions = [_expression(step, alone=len(splits) == 1) for step in splits]
    if byte_level.get("use_regex", True):
        if expressions:
            raise Unsupported("two kinds of splits")
        return _GPT2
    if len(expressions) == 1:
        return expressions[0]
    if expressions == _DEEPSEEK_STEPS:
        return _DEEPSEEK
    raise Unsupported(f"{len(expressions)} splits in a row")


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return list(pre_tokenizer["pretokenizers"])
    return [pre_tokenizer]


def _expression(step: dict[str, Any], *, alone: bool) -> str:
    expression = step.get("pattern", {}).get("Regex")
    if step.get("type") != "Split" or not isinstance(expression, str):
        raise Unsupported(f"pre-tokenizer {step.get('type')}")
    behavior, invert = step.get("behavior"), bool(step.get("invert"))
    # Isolated keeps what lies between matches, Removed and inverted keeps the matches alone.
    if (behavior == "Isolated" and not invert) or (alone and behavior == "Removed" and invert):
        return expression
    raise Unsupported(f"split behaviour {behavior}")


def cuts_anywhere(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether each piece between added tokens is encoded without regard to where it stands.

    Not so with Metaspace, which marks the start of a text.
    """
    return all(step.get("type") in _INDEPENDENT for step in _steps(pre_tokenizer)) and bool(
        _steps(pre_tokenizer)
    )


_INDEPENDENT = {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"}
