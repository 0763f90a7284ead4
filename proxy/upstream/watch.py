"""What an answer says about its request, gathered while its bytes pass."""

from collections.abc import Callable

from proxy.upstream.call import Observed, Usage
from proxy.upstream.sglang import GENERATE_PATH, ROUTES, Route
from proxy.upstream.sse import (
    TAIL_BYTES,
    EventPace,
    StreamWatch,
    Tail,
    UsageSwallower,
    aborted_in,
    error_in,
    meta_usage_in,
    usage_in,
)


class AnswerWatch:
    """Sees every chunk of one answer and keeps `observed` up to date. `see` returns what goes on."""

    __slots__ = (
        "_clock",
        "_head",
        "_observed",
        "_on_token",
        "_pace",
        "_route",
        "_sequences",
        "_stream",
        "_swallower",
        "_tail",
    )

    def __init__(
        self,
        route: Route,
        observed: Observed,
        *,
        streamed: bool,
        swallow_usage: bool,
        sequences: int,
        pace: EventPace,
        clock: Callable[[], float],
        on_token: Callable[[], None],
    ) -> None:
        self._route = route
        self._observed = observed
        self._sequences = sequences
        self._pace = pace
        self._clock = clock
        self._on_token = on_token
        self._stream = StreamWatch(route) if streamed else None
        self._tail = self._stream.tail if self._stream else Tail()
        self._swallower = UsageSwallower() if swallow_usage else None
        self._head = b""

    def see(self, chunk: bytes) -> bytes:
        """Runs for every chunk: a microsecond or two, no parsing."""
        stream = self._stream
        if stream is None:
            self._tail.add(chunk)
            return chunk
        if self._route.usage_at_start and not stream.started and len(self._head) < TAIL_BYTES:
            self._head += chunk
        stream.feed(chunk)
        observed = self._observed
        if stream.started:
            observed.generated_tokens = int(stream.token_events * self._pace.tokens_per_event)
            if observed.first_token_at is None:
                observed.first_token_at = self._clock()
                self._on_token()
        if stream.ended and not observed.ended:
            self._conclude()
        return self._swallower.feed(chunk) if self._swallower else chunk

    def finish(self) -> bytes:
        """The body is complete. Returns bytes that were still held."""
        if self._stream is not None:
            self._stream.ended = True
        if not self._observed.ended or self._stream is None:
            self._conclude()
        return self._swallower.flush() if self._swallower else b""

    def _conclude(self) -> None:
        observed = self._observed
        tail = self._tail.bytes()
        observed.ended = True
        observed.usage = self._usage(tail)
        observed.aborted = aborted_in(tail)
        completion_tokens = observed.usage.completion_tokens if observed.usage else None
        if self._stream is not None:
            observed.error = error_in(tail)
            events = self._stream.token_events
            observed.generated_tokens = int(events * self._pace.tokens_per_event)
            if completion_tokens is not None:
                # where usage is an option it comes as an event of its own
                self._pace.learn(events - self._route.usage_option, completion_tokens)
        if completion_tokens is not None:
            observed.generated_tokens = completion_tokens

    def _usage(self, tail: bytes) -> Usage | None:
        if self._route is ROUTES[GENERATE_PATH]:
            # one item of a batch says nothing about the others
            return meta_usage_in(tail) if self._sequences == 1 else None
        # the head may be in the tail as well: the same object twice changes nothing
        return usage_in(self._head + b"\n" + tail) if self._head else usage_in(tail)
