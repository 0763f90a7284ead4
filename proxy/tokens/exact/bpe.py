"""A byte-level BPE from tokenizer.json, as a tiktoken encoding."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tiktoken

from proxy.tokens.exact.patterns import Unsupported, single_pattern


def _byte_symbols() -> dict[str, int]:
    """The printable characters by which byte-level tokenizers write the 256 bytes (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return symbols | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_symbols()


@dataclass(frozen=True, slots=True)
class ByteLevelBpe:
    """A converted tokenizer. `ids` maps tiktoken's ranks to the model's ids, None when they are equal."""

    encoding: tiktoken.Encoding
    ids: list[int] | None


def convert(document: dict[str, Any]) -> ByteLevelBpe:
    """Converts a parsed tokenizer.json without its added tokens and normaliser.

    Raises Unsupported when tiktoken could not encode as it does.
    """
    model = document["model"]
    if model.get("type") != "BPE":
        raise Unsupported(f"model {model.get('type')}")
    for option in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise Unsupported(option)
    pattern = single_pattern(document.get("pre_tokenizer"))
    vocabulary: dict[str, int] = model["vocab"]
    singles = [symbol for symbol in _BYTES if symbol in vocabulary]
    if len(singles) < len(_BYTES):
        raise Unsupported("not all bytes are tokens")
    tokens = [*singles, *_merged(model["merges"])]
    if model.get("ignore_merges"):
        _refuse_unreachable(document, vocabulary, set(tokens))
    ids = [vocabulary[token] for token in tokens]
    merged = ids[len(singles) :]
    ordered = all(first < second for first, second in pairwise(merged))
    if ordered and (not merged or max(ids[: len(singles)]) < merged[0]):
        return ByteLevelBpe(_encoding(pattern, tokens, ids), None)
    return ByteLevelBpe(_encoding(pattern, tokens, list(range(len(tokens)))), ids)


def _merged(merges: list[Any]) -> list[str]:
    """What the merges make, in their order, each once: only these can come out of BPE."""
    made: dict[str, None] = {}
    for merge in merges:
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        made.setdefault(left + right)
    return list(made)


def _refuse_unreachable(document: dict[str, Any], vocabulary: dict[str, int], tokens: set[str]) -> None:
    """With `ignore_merges` a whole piece may be a token that no merge makes; tiktoken would then
    merge towards it inside longer pieces too."""
    added = {token["content"] for token in document.get("added_tokens", ())}
    for token in vocabulary:
        if token not in tokens and token not in added and all(symbol in _BYTES for symbol in token):
            raise Unsupported("whole words that no merge makes")


def _encoding(pattern: str, tokens: list[str], ranks: list[int]) -> tiktoken.Encoding:
    mergeable = {
        bytes(_BYTES[symbol] for symbol in token): rank for token, rank in zip(tokens, ranks, strict=True)
    }
    try:
        return tiktoken.Encoding("converted", pat_str=pattern, mergeable_ranks=mergeable, special_tokens={})
    except ValueError as error:
        raise Unsupported(f"split expression: {error}") from None
