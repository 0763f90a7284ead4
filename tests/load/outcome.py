"""What came of one request, as its client saw it."""

import json
import time
from dataclasses import dataclass, field
from typing import Self

from tests.load.http1 import Headers
from tests.load.workload import Ask

TAIL_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Outcome:
    """Times are seconds since the load began. `attempt` counts from 1, where a refused client asks again.

    `first_at` is the first event of a stream (SGLang sends it with the first token), or the whole
    body otherwise. `error` says what went wrong; a refusal (429, 503 with a reason) is no error.
    `client` and `turn` are the places of the client in the load and of the request among its own.
    """

    kind: str
    attempt: int
    started_at: float
    stream: bool
    want_prompt_tokens: int
    want_output_tokens: int
    status: int = 0
    sent_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None
    longest_gap_seconds: float = 0.0
    events: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    broken: bool = False  # the connection failed: not even an error was answered
    cut: bool = False  # the load was over before the answer was
    client: int = 0
    turn: int = 0

    @classmethod
    def of(cls, wanted: Ask, *, started_at: float, attempt: int = 1, client: int = 0, turn: int = 0) -> Self:
        """Of a request that is about to be sent."""
        return cls(
            client=client,
            turn=turn,
            kind=wanted.kind,
            attempt=attempt,
            started_at=started_at,
            stream=wanted.stream,
            want_prompt_tokens=wanted.prompt_tokens,
            want_output_tokens=wanted.output_tokens,
        )

    @property
    def streams(self) -> bool:
        """Whether the body is a stream of events: errors are documents, whatever was asked for."""
        return self.stream and self.status == 200

    @property
    def served(self) -> bool:
        return self.status == 200 and self.error is None and not self.cut

    @property
    def refused(self) -> bool:
        return self.status in {429, 503} and "retry-after" in self.headers

    @property
    def may_retry(self) -> bool:
        """Whether a refusal says that coming back is worth it."""
        return self.headers.get("x-should-retry", "true") != "false"

    @property
    def retry_at(self) -> float:
        """When a refused client was told to come back. Raises KeyError where it was not refused."""
        assert self.ended_at is not None
        return self.ended_at + float(self.headers["retry-after"])

    @property
    def ttft_seconds(self) -> float:
        """Raises ValueError where nothing came."""
        if self.first_at is None:
            raise ValueError(f"a {self.kind} request got no first token: {self.error or self.status}")
        return self.first_at - self.started_at

    @property
    def answer_seconds(self) -> float | None:
        """From the last byte of the request to the end of the answer."""
        if self.ended_at is None or self.sent_at is None:
            return None
        return self.ended_at - self.sent_at

    @property
    def wait_seconds(self) -> float | None:
        """What the proxy says it held the request."""
        wait_ms = self.headers.get("x-admission-wait-ms")
        return float(wait_ms) / 1000 if wait_ms is not None else None


class Reader:
    """Reads an answer's body into an Outcome: events of a stream, or one JSON document."""

    def __init__(self, outcome: Outcome, began: float) -> None:
        self._outcome = outcome
        self._began = began
        self._rest = b""
        self._last_at: float | None = None
        self.done = False  # `data: [DONE]` was seen

    def on_sent(self) -> None:
        self._outcome.sent_at = time.monotonic() - self._began

    def on_head(self, status: int, headers: Headers) -> None:
        self._outcome.status = status
        self._outcome.headers = headers

    def on_body(self, data: bytes) -> None:
        """The next piece of the body."""
        if not self._outcome.streams:
            self._rest += data
            return
        now = time.monotonic() - self._began
        if self._last_at is not None:
            self._outcome.longest_gap_seconds = max(self._outcome.longest_gap_seconds, now - self._last_at)
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > TAIL_BYTES_MAX:
            raise ValueError("an event without end")
        for event in events:
            if event.startswith(b":"):
                continue  # a comment: progress, not output
            self._last_at = now
            self._read_event(event, now)

    def _read_event(self, event: bytes, now: float) -> None:
        outcome = self._outcome
        outcome.events += 1
        if outcome.first_at is None:
            outcome.first_at = now
        if event == b"data: [DONE]":
            self.done = True
        elif b'"error"' in event or b'"usage":{' in event or b'"finish_reason":"' in event:
            payload = event.partition(b"data:")[2]
            self._read_document(json.loads(payload))

    def _read_document(self, document: object) -> None:
        if not isinstance(document, dict):
            raise TypeError("not a JSON object")
        outcome = self._outcome
        error = document.get("error")
        if error or document.get("object") == "error":
            outcome.error = json.dumps(error or document)[:500]
        for choice in document.get("choices") or []:
            outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
        usage = document.get("usage")
        if usage:
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.completion_tokens = usage["completion_tokens"]
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def finish(self) -> None:
        """The body is complete: what is not a stream is read now."""
        outcome = self._outcome
        if not outcome.streams:
            text = self._rest
            if outcome.first_at is None:
                outcome.first_at = time.monotonic() - self._began
            try:
                self._read_document(json.loads(text))
            except (ValueError, TypeError):
                outcome.error = f"not JSON: {text[:200]!r}"
        elif not self.done and outcome.error is None:
            outcome.error = "the stream ended without [DONE]"
        if outcome.status == 200 and outcome.finish_reason == "abort" and outcome.error is None:
            outcome.error = "aborted by the server"
        if outcome.refused:
            outcome.error = None
