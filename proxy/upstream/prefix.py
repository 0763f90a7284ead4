"""Prefixes of a prompt, to be prefilled ahead of the request they belong to.

`POST /v1/tokenize` with the client's own body gives the exact ids its request will have (the
server renders and tokenizes as it does for the request itself). `POST /generate` with the first
k of them and `max_new_tokens: 0` computes them and leaves them in the radix cache.
"""

import asyncio
import json
from array import array
from itertools import accumulate

import httpx
import orjson

from proxy.upstream.body import splice
from proxy.upstream.errors import BodyRefused
from proxy.upstream.link import Link
from proxy.upstream.sglang import DP_RANK_FIELDS, GENERATE_PATH, TOKENIZE_PATH

TOKENIZE_SECONDS = 60.0
SLICE_SECONDS = 120.0  # a chunk takes well under a second; beyond this the server is in trouble
_TOKENS_MARK = b'"tokens":['


class PromptIds:
    """The ids of a prompt as JSON text, so that a prefix of them is a slice of bytes."""

    __slots__ = ("_ends", "_text")

    def __init__(self, text: bytes) -> None:
        pieces = text.split(b",")
        # positions behind each id, without its comma
        self._ends = array("I", accumulate(len(piece) + 1 for piece in pieces))
        self._text = text

    @classmethod
    def of(cls, ids: list[int]) -> "PromptIds":
        """From ids that were made here."""
        return cls(b",".join(b"%d" % token for token in ids))

    def __len__(self) -> int:
        return len(self._ends)

    def first(self, count: int) -> bytes:
        """The first `count` ids, comma-separated."""
        return self._text[: self._ends[count - 1] - 1]


async def fetch_ids(link: Link, body: bytes) -> PromptIds | None:
    """The ids of the prompt in `body`, as the server itself makes them; None when it will not say."""
    try:
        question = splice(body, [("stream", b"false")])
        answer = await link.post(TOKENIZE_PATH, question, seconds=TOKENIZE_SECONDS)
    except (httpx.HTTPError, TimeoutError, BodyRefused):
        return None
    if answer.status_code != 200:
        return None
    return await asyncio.to_thread(_ids_in, answer.content)


async def prefill(link: Link, ids: PromptIds, count: int, rid: str, rank: int | None) -> int | None:
    """Have the server compute the first `count` ids; how many it had cached, None when it failed.

    `rank`: which DP rank keeps them (in the body: `/generate` ignores the header).
    """
    body = b'{"input_ids":[%b],"sampling_params":{"max_new_tokens":0},"rid":%b}' % (
        ids.first(count),
        orjson.dumps(rid),
    )
    if rank is not None:
        body = splice(body, [(name, b"%d" % rank) for name in DP_RANK_FIELDS])
    try:
        answer = await link.post(GENERATE_PATH, body, seconds=SLICE_SECONDS)
    except (httpx.HTTPError, TimeoutError):
        return None
    if answer.status_code != 200:
        return None
    try:
        meta = orjson.loads(answer.content)["meta_info"]
        reason = (meta.get("finish_reason") or {}).get("type")
        return None if reason == "abort" else int(meta.get("cached_tokens") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _ids_in(content: bytes) -> PromptIds | None:
    """The `tokens` list of an answer, without making ints of it."""
    start = content.find(_TOKENS_MARK)
    if start < 0:
        return _ids_reparsed(content)
    start += len(_TOKENS_MARK)
    end = content.find(b"]", start)
    text = content[start:end]
    if end < 0 or not text or not text.replace(b",", b"").isdigit():
        return _ids_reparsed(content)
    return PromptIds(text)


def _ids_reparsed(content: bytes) -> PromptIds | None:
    """For servers that space their JSON differently."""
    try:
        tokens = json.loads(content)["tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        return None
    return PromptIds(b",".join(b"%d" % token for token in tokens))
