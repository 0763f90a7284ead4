"""Answers in SGLang's wire format (0.5.23), byte for byte where clients look."""

import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.simulator.intake import Api, Wanted
from proxy.simulator.jobs import Ended, EndReason
from proxy.simulator.text import Speech

DONE = b"data: [DONE]\n\n"
QUEUE_FULL = "The request queue is full."


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def flat_error(message: str, kind: str, code: int) -> dict[str, Any]:
    """The body of an error status."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def error_event(message: str, kind: str, code: int) -> bytes:
    """An error inside a stream whose status was 200."""
    return event({"error": flat_error(message, kind, code)})


def too_long(tokens: int, limit: int) -> str:
    """A prompt that exceeds the pool."""
    return (
        f"Input length ({tokens} tokens) exceeds the maximum allowed length ({limit} tokens). "
        "Use a shorter input or enable --allow-auto-truncate."
    )


def finish_reason(ended: Ended) -> str:
    """As the OpenAI APIs name it."""
    return ended.reason.value if ended.reason in (EndReason.STOP, EndReason.LENGTH) else "abort"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """The usage block; `cached_tokens` only where the server reports them."""
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": details,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


class Chunks:
    """The events of one stream of an OpenAI API, a token each."""

    def __init__(self, wanted: Wanted, rid: str) -> None:
        self._chat = wanted.api is Api.CHAT
        self._head: dict[str, Any] = {
            "id": rid,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": wanted.model,
        }

    def role(self, index: int) -> bytes:
        """What a chat stream begins with, at its first token."""
        return self._delta(index, {"role": "assistant", "content": ""}) if self._chat else b""

    def token(self, index: int, text: str, block: Mapping[str, Any] | None = None) -> bytes:
        """One token; `block` is the usage so far, for a client that wants it with each."""
        return (
            self._delta(index, {"content": text}, None, block)
            if self._chat
            else self._text(index, text, None, block)
        )

    def end(self, index: int, reason: str, last: str = "", block: Mapping[str, Any] | None = None) -> bytes:
        """The end of a choice, with its last token: two events of a chat, one of a completion."""
        if not self._chat:
            return self._text(index, last, reason, block)
        token = self.token(index, last, block) if last else b""
        return token + self._delta(index, {}, reason, block)

    def usage(self, block: Mapping[str, Any]) -> bytes:
        """The event without choices that `include_usage` asks for."""
        return event({**self._head, "choices": [], "usage": block})

    def _delta(
        self,
        index: int,
        delta: Mapping[str, Any],
        reason: str | None = None,
        block: Mapping[str, Any] | None = None,
    ) -> bytes:
        whole = {"reasoning_content": None, **delta}
        extra = {} if block is None else {"usage": block}
        return event({**self._head, "choices": [_choice(index, reason, delta=whole)], **extra})

    def _text(self, index: int, text: str, reason: str | None, block: Mapping[str, Any] | None) -> bytes:
        return event({**self._head, "choices": [_choice(index, reason, text=text)], "usage": block})


def completion(
    wanted: Wanted, rid: str, texts: Sequence[str], ends: Sequence[Ended], block: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole answer of an OpenAI API."""
    chat = wanted.api is Api.CHAT
    choices = []
    for index, (text, ended) in enumerate(zip(texts, ends, strict=True)):
        said: dict[str, Any] = {"text": text}
        if chat:
            said = {"message": {"role": "assistant", "content": text, "reasoning_content": None}}
        choices.append(_choice(index, finish_reason(ended), **said))
    return {
        "id": rid,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": wanted.model,
        "choices": choices,
        "usage": block,
        "metadata": {"weight_version": "default"},
    }


def generated(
    rid: str,
    speech: Speech,
    generated_tokens: int,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    ended: Ended | None,
    message: str = "",
    code: int | None = None,
) -> dict[str, Any]:
    """What `/generate` answers, and what each event of its stream holds: all text so far."""
    reason: dict[str, Any] | None = None
    if ended is not None:
        reason = {"type": finish_reason(ended)}
        if ended.reason is EndReason.LENGTH:
            reason["length"] = generated_tokens
        if code is not None:
            reason |= {"message": message, "status_code": code}
    return {
        "text": speech.text(0, generated_tokens),
        "output_ids": array("I", speech.packed_ids(generated_tokens)).tolist(),
        "meta_info": {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": prompt_tokens,
            "weight_version": "default",
            "completion_tokens": generated_tokens,
            "cached_tokens": cached_tokens,
            "cached_tokens_details": {"device": cached_tokens, "host": 0} if cached_tokens else None,
            "dp_rank": None,
        },
    }


def _choice(index: int, reason: str | None, **said: Any) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": reason, "matched_stop": None}
