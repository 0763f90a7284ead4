"""The engine in real time: it is moved on to the clock, and whoever waits for tokens is told."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from proxy.simulator.conditions import UNNOTICED_SECONDS
from proxy.simulator.engine import Engine
from proxy.simulator.jobs import Ended, EngineConfig, LoadSnapshot, Started
from proxy.simulator.prompt import Continuation, TokenPrompt

# Tokens are handed out at most this often: sixty streams cost little CPU that way, and nobody sees it.
TICK_SECONDS = 0.01


class Ticket:
    """One request in the engine, as its handler sees it. `changed` is set whenever anything here changes."""

    def __init__(self, rid: str, changed: asyncio.Event) -> None:
        self.rid = rid
        self.changed = changed
        self.generated = 0
        self.cached_tokens = 0
        self.ended: Ended | None = None


class Runner:
    """One engine and its clock."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        tick_seconds: float = TICK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._told_at = clock()
        self.engine = Engine(config, now=clock())
        self._tickets: dict[str, Ticket] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._catch_up()
            pause = self._pause()
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    def _pause(self) -> float | None:
        """Until something is due: first tokens and ends at once, more tokens with the next tick."""
        due = self.engine.next_due()
        if due is None:
            return None
        pause = max(due - self._clock(), 0.0)
        return pause if self.engine.expecting else max(pause, self._tick_seconds)

    def submit(
        self,
        rid: str,
        prompt: TokenPrompt,
        changed: asyncio.Event,
        *,
        output: Continuation,
        output_tokens: int,
        max_new: int | None,
        ignore_eos: bool,
        tokenized: bool,
    ) -> Ticket:
        """Hand a request to the engine now. `output` is what it will say.

        Raises PromptTooLong and DuplicateRid.
        """
        self._catch_up()
        self.engine.submit(
            rid,
            prompt,
            output_tokens=output_tokens,
            max_new=max_new,
            ignore_eos=ignore_eos,
            output_key=output,
            delay_seconds=0.0 if tokenized else None,
        )
        ticket = self._tickets[rid] = Ticket(rid, changed)
        self._wake.set()
        return ticket

    def abort(self, rid_prefix: str) -> None:
        """As `/abort_request`."""
        self._catch_up()
        self.engine.abort(rid_prefix)
        self._wake.set()

    def client_left(self, ticket: Ticket) -> None:
        """Nobody reads on: the server notices soon when it streams, late when it does not yet."""
        if ticket.ended is not None:
            return
        late = 0.0 if ticket.generated else UNNOTICED_SECONDS
        asyncio.get_running_loop().call_later(late, self._abort_if_live, ticket)

    def flush_cache(self) -> bool:
        """False while anything runs."""
        self._catch_up()
        return self.engine.flush_cache()

    def load(self) -> tuple[LoadSnapshot, float]:
        """The load as published, and how many seconds ago that was."""
        self._catch_up()
        load = self.engine.load()
        return load, self.engine.now - load.at

    def _abort_if_live(self, ticket: Ticket) -> None:
        if ticket.ended is None:
            self.abort(ticket.rid)

    def _catch_up(self) -> None:
        now = self._clock()
        while True:
            events = self.engine.advance(now)
            for event in events:
                ticket = self._tickets[event.rid]
                if isinstance(event, Started):
                    ticket.cached_tokens = event.cached_tokens
                    self._tell(ticket, max(ticket.generated, 1))
                elif isinstance(event, Ended):
                    del self._tickets[event.rid]
                    ticket.ended, ticket.generated = event, event.completion_tokens
                    ticket.cached_tokens = event.cached_tokens
                    ticket.changed.set()
            if not events and self.engine.now >= now:
                break
        if now - self._told_at >= self._tick_seconds:
            self._told_at = now
            for rid, generated in self.engine.generated().items():
                self._tell(self._tickets[rid], generated)

    @staticmethod
    def _tell(ticket: Ticket, generated: int) -> None:
        if ticket.generated != generated:
            ticket.generated = generated
            ticket.changed.set()
