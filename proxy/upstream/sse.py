"""Watching a stream go by: counted, not parsed. Only what is rare or last is ever decoded."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from proxy.upstream.call import Usage
from proxy.upstream.sglang import Route, error_status, load_json

_DATA = b"\ndata:"
_EVENT_END = re.compile(rb"\r?\n\r?\n")
# Longest of what must be recognised across a chunk boundary, less one.
_CARRY_BYTES = 24
# An answer's usage stands near its end; this much of the end is kept, by reference.
TAIL_BYTES = 16 * 1024
# An event longer than this is not the usage chunk: let it pass rather than hold it.
_LARGEST_HELD_BYTES = 64 * 1024

_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_EMPTY_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_META_COUNTS = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d+)')
_ABORTED = re.compile(rb'"finish_reason"\s*:\s*(?:"abort"|\{\s*"type"\s*:\s*"abort")')
_ERROR_EVENT = re.compile(rb'(?:^|\n)data:\s*(\{\s*"error"\s*:.*)')


class Tail:
    """The last TAIL_BYTES or so of what passed, kept as references to the chunks."""

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= TAIL_BYTES:
            self._size -= len(self._chunks.popleft())

    def bytes(self) -> bytes:
        return b"".join(self._chunks)[-TAIL_BYTES:]


class StreamWatch:
    """Counts a stream's events and sees its first token and its end, at any chunk boundaries."""

    __slots__ = ("_carry", "_route", "ended", "events", "started", "tail")

    def __init__(self, route: Route) -> None:
        self._route = route
        self._carry = b"\n"  # so that a first line `data:` counts like any other
        self.events = 0
        self.started = False
        self.ended = False
        self.tail = Tail()

    def feed(self, chunk: bytes) -> None:
        """One chunk as it came. About a microsecond: this runs for every token of every stream."""
        carry = self._carry
        window = carry + chunk
        # an occurrence that lies wholly in the carry was counted with the chunk it came in
        self.events += window.count(_DATA, max(0, len(carry) - len(_DATA) + 1))
        if not self.started:
            mark = self._route.first_mark
            self.started = mark in window if mark else self.events > 0
        end_mark = self._route.end_mark
        if end_mark and window.endswith(end_mark):
            self.ended = True
        self._carry = window[-_CARRY_BYTES:]
        self.tail.add(chunk)

    @property
    def token_events(self) -> int:
        """Events that carried output; while it runs, a last one without may still be among them."""
        empty = self._route.lead_events + (self._route.end_events if self.ended else 0)
        return max(self.events - empty, 0)


class EventPace:
    """Tokens per streamed event at one server: its stream interval, then what its usage taught.

    Under load SGLang merges tokens that are ready at once, and speculative decoding sends several.
    """

    __slots__ = ("tokens_per_event",)

    def __init__(self, tokens_per_event: float = 1.0) -> None:
        self.tokens_per_event = tokens_per_event

    def learn(self, events: int, tokens: int) -> None:
        """One finished stream; short ones say little."""
        if events >= 16 and tokens > 0:
            self.tokens_per_event += 0.1 * (min(tokens / events, 64.0) - self.tokens_per_event)


class UsageSwallower:
    """Takes the usage-only chunk out of a stream again; every other byte passes unchanged.

    Whole events pass at once; only an event that is split across chunks waits for its end.
    """

    __slots__ = ("_held", "usage")

    def __init__(self) -> None:
        self._held = b""
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """What of this chunk (and of what was held) may go on now; may be empty."""
        if not self._held and chunk.endswith(b"\n\n") and not _EMPTY_CHOICES.search(chunk):
            return chunk
        data = self._held + chunk
        kept: list[bytes] = []
        start = 0
        for end in (match.end() for match in _EVENT_END.finditer(data)):
            event = data[start:end]
            if not self._is_usage_only(event):
                kept.append(event)
            start = end
        self._held = data[start:]
        if len(self._held) > _LARGEST_HELD_BYTES:
            kept.append(self.flush())
        return b"".join(kept)

    def flush(self) -> bytes:
        """What is still held when the stream ends."""
        held, self._held = self._held, b""
        return held

    def _is_usage_only(self, event: bytes) -> bool:
        if not (_EMPTY_CHOICES.search(event) and event.startswith(b"data:")):
            return False
        document = load_json(event[5:].strip())
        if not isinstance(document, dict) or document.get("choices") != []:
            return False
        if not isinstance(document.get("usage"), dict):
            return False
        self.usage = usage_of(document["usage"])
        return True


def usage_of(fields: Mapping[str, Any]) -> Usage | None:
    """From a `usage` object of any of the APIs; None where it names no prompt (a failed request)."""
    prompt = fields.get("prompt_tokens", fields.get("input_tokens"))
    if not isinstance(prompt, int) or prompt < 1:
        return None
    completion = fields.get("completion_tokens", fields.get("output_tokens"))
    details = fields.get("prompt_tokens_details", fields.get("input_tokens_details"))
    cached = details.get("cached_tokens") if isinstance(details, dict) else fields.get("cached_tokens")
    if isinstance(read := fields.get("cache_read_input_tokens"), int):
        prompt, cached = prompt + read, read  # /v1/messages counts what it found in the cache beside the rest
    return Usage(
        prompt,
        completion if isinstance(completion, int) else None,
        cached if isinstance(cached, int) else None,
    )


def usage_in(answer: bytes) -> Usage | None:
    """What an answer's usage objects say together, later ones over earlier; None where there is none."""
    merged: dict[str, Any] = {}
    for found in _USAGE.findall(answer):
        document = load_json(found)
        if isinstance(document, dict):
            merged.update(document)
    return usage_of(merged)


def meta_usage_in(tail: bytes) -> Usage | None:
    """The counts of /generate's last `meta_info`; None where the end of the answer holds none."""
    start = tail.rfind(b'"meta_info"')
    if start < 0:
        # a long list of logprobs pushed the beginning out; the counts may still be there
        start = 0
    counts = {name: int(value) for name, value in _META_COUNTS.findall(tail, start)}
    prompt = counts.get(b"prompt_tokens", 0)
    return Usage(prompt, counts.get(b"completion_tokens"), counts.get(b"cached_tokens")) if prompt else None


def aborted_in(tail: bytes) -> bool:
    """Whether the answer ended with finish reason `abort`."""
    return _ABORTED.search(tail) is not None


def error_in(tail: bytes) -> str | None:
    """The message of an error event in the end of a stream, None where there is none."""
    match = _ERROR_EVENT.search(tail)
    if not match:
        return None
    document = load_json(match[1].strip())
    error = document.get("error") if isinstance(document, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else "error event"


def error_message(answer: bytes) -> str:
    """The message in a whole error answer, flat or nested; "" where it has none."""
    document = load_json(answer)
    if not isinstance(document, dict):
        return ""
    error = document.get("error")
    return str((error if isinstance(error, dict) else document).get("message", ""))


def early_error(first: bytes) -> tuple[int, str, str] | None:
    """(status, message, type) where a 200 stream's first event says that the request failed.

    `first` are the stream's bytes up to the end of its first event or more.
    """
    for line in first.split(b"\n"):
        if line.startswith(b"data:"):
            document = load_json(line[5:].strip())
            return _failure(document) if isinstance(document, dict) else None
    return None


def _failure(document: Mapping[str, Any]) -> tuple[int, str, str] | None:
    error = document.get("error")
    if isinstance(error, dict):
        return error_status(error), str(error.get("message", "")), str(error.get("type", ""))
    meta = document.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort" and "status_code" in reason:
        return error_status(reason), str(reason.get("message", "")), str(reason.get("err_type", ""))
    return None


def has_event(data: bytes) -> bool:
    """Whether a whole event with data is in these first bytes of a stream (comments don't count)."""
    begin = 0 if data.startswith(b"data:") else data.find(_DATA)
    return begin >= 0 and _EVENT_END.search(data, begin) is not None
