"""A model's tokenizer, read from its directory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.tokens.exact.added import AddedToken, AddedTokens, nfc
from proxy.tokens.exact.engines import Engine, choose
from proxy.tokens.exact.patterns import Unsupported, cuts_anywhere

# Classes whose `add_bos_token` counts although tokenizer.json's post-processor adds nothing (SGLang
# 0.5.23, hf_transformers/tokenizer.py); others never knew that setting.
_BOS_CLASSES = {
    "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
    "GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast",
}  # fmt: skip
# Classes that transformers 5 builds anew without the file's normaliser (MiniMax M1, M2).
_WITHOUT_NORMALIZER = {"GPT2Tokenizer", "GPT2TokenizerFast"}


class Tokenizer:
    """Text to ids, as SGLang's tokenizer of the same directory does.

    `prefix` and `suffix` are the ids that a plain prompt gets around it (BOS); a rendered chat gets none.
    """

    def __init__(self, directory: Path) -> None:
        """Reads tokenizer.json and tokenizer_config.json: 1 to 3 s of CPU.

        Raises OSError or ValueError when they cannot be read, Unsupported when no engine takes them.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise Unsupported("there is no tokenizer.json in the directory")
        source = path.read_text(encoding="utf-8")
        document = _object(source, path.name)
        self.config = read_json(directory / "tokenizer_config.json")
        if self.config.get("tokenizer_class") in _WITHOUT_NORMALIZER and document.get("normalizer"):
            document["normalizer"] = None
            source = json.dumps(document)
        if not cuts_anywhere(document.get("pre_tokenizer")):
            raise Unsupported("a pre-tokenizer that depends on the place in the text")
        normalize = nfc if _normalizes(document) else None
        self.engine: Engine = choose(source, document, normalize or str)
        tokens = _added_tokens(document, self.config)
        # Rust's tables are newer than Python's: its own normaliser is used where it can be.
        needed = not self.engine.normalizes or any(token.normalized for token in tokens)
        self._added = AddedTokens(tokens, normalize if needed else None)
        self.vocabulary_size = _size(document)
        ids = {token["content"]: token["id"] for token in document.get("added_tokens", ())}
        self.prefix, self.suffix = _specials(document, self.config, document["model"]["vocab"] | ids)

    def pieces(self, text: str) -> Iterator[str | int]:
        """Ids of added tokens and the texts between them; texts may be encoded one by one."""
        return self._added.pieces(text)

    def ids(self, text: str) -> list[int]:
        """The ids of a text that holds its special tokens already."""
        found: list[int] = []
        for piece in self.pieces(text):
            if isinstance(piece, int):
                found.append(piece)
            else:
                found.extend(self.engine.ids(piece))
        return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, an empty one when there is no such file."""
    if not path.is_file():
        return {}
    return _object(path.read_text(encoding="utf-8"), path.name)


def _object(source: str, name: str) -> dict[str, Any]:
    document = json.loads(source)
    if not isinstance(document, dict):
        raise ValueError(f"{name} does not hold a JSON object")
    return document


def _normalizes(document: dict[str, Any]) -> bool:
    normalizer = document.get("normalizer")
    steps = normalizer.get("normalizers", [normalizer]) if normalizer else []
    kinds = [step.get("type") for step in steps]
    if kinds not in ([], ["NFC"]):
        raise Unsupported(f"normaliser {kinds}")
    return bool(kinds)


_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def _added_tokens(document: dict[str, Any], config: dict[str, Any]) -> list[AddedToken]:
    """Those of tokenizer.json; tokenizer_config.json may add some and overrides their flags."""
    entries = {token["content"]: dict(token) for token in document.get("added_tokens", ())}
    for token_id, token in config.get("added_tokens_decoder", {}).items():
        entries[token["content"]] = {"id": int(token_id)} | entries.get(token["content"], {}) | token
    return [
        AddedToken(content, int(entry["id"]), **{flag: bool(entry.get(flag)) for flag in _FLAGS})
        for content, entry in entries.items()
    ]


def _size(document: dict[str, Any]) -> int:
    ids: list[int] = list(document["model"]["vocab"].values())
    ids.extend(token["id"] for token in document.get("added_tokens", ()))
    return 1 + max(ids)


def _specials(
    document: dict[str, Any], config: dict[str, Any], ids: dict[str, int]
) -> tuple[list[int], list[int]]:
    processor = document.get("post_processor") or {}
    processors = processor.get("processors", [processor])
    template = next((entry for entry in processors if entry.get("type") == "TemplateProcessing"), None)
    if template is not None:
        return _around(template)
    prefix, suffix = [], []
    if config.get("tokenizer_class") in _BOS_CLASSES:
        if config.get("add_bos_token"):
            prefix = [ids[token] for token in [content_of(config.get("bos_token"))] if token in ids]
        if config.get("add_eos_token"):
            suffix = [ids[token] for token in [content_of(config.get("eos_token"))] if token in ids]
    return prefix, suffix


def _around(template: dict[str, Any]) -> tuple[list[int], list[int]]:
    before: list[int] = []
    after: list[int] = []
    target = before
    for item in template["single"]:
        if "Sequence" in item:
            target = after
        else:
            target.extend(template["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return before, after


def content_of(token: object) -> str | None:
    """The text of a special token, which is written as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
