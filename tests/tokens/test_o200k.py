import base64
import hashlib
import inspect

import pytest
from tiktoken_ext import openai_public  # type: ignore[import-untyped]

from proxy.tokens import o200k

OFFICIAL_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def test_shipped_ranks_are_the_official_ones() -> None:
    ranks = o200k.load_ranks()
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())

    assert hashlib.sha256(b"".join(lines)).hexdigest() == OFFICIAL_SHA256
    assert f'"{OFFICIAL_SHA256}"' in inspect.getsource(openai_public.o200k_base)


def test_pieces_and_special_tokens_are_those_tiktoken_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    official = openai_public.o200k_base()

    assert official["pat_str"] == o200k.PATTERN
    assert official["special_tokens"] == o200k.SPECIAL_TOKENS


def test_known_text_has_known_ids() -> None:
    encoding = o200k.load_encoding()

    assert encoding.encode_ordinary("hello world") == [24912, 2375]
    assert encoding.decode(encoding.encode_ordinary("naïve 😀 日本語")) == "naïve 😀 日本語"
