"""The engine in real time: it is moved on to the clock, and whoever waits for tokens is told."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from proxy.simulator.engine import Engine
from proxy.simulator.jobs import Ended, EngineConfig, LoadSnapshot, Started
from proxy.simulator.prompt import TokenPrompt

# Tokens are handed out at most this often: sixty streams cost little CPU that way, and a reader sees no difference.
TICK_SECONDS = 0.01
# SGLang notices this late that a client left before its first token (2.6 to 7 s, measured); a stream shows at once.
UNNOTICED_SECONDS = 3.0


class Ticket:
    """One request in the engine, as its handler sees it. `changed` is set whenever anything here changes."""

    def __init__(self, rid: str, changed: asyncio.Event) -> None:
        self.rid = rid
        self.changed = changed
        self.generated = 0
        self.cached_tokens = 0
        self.started_at: float | None = None
        self.ended: Ended | None = None


class Runner:
    """One engine and its clock."""

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.engine = Engine(config, now=clock())
        self._tickets: dict[str, Ticket] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._catch_up()
            due = self.engine.next_due()
            pause = None if due is None else max(due - self._clock(), 0.0)
            if pause is not None and not self.engine.prefilling:
                pause = max(pause, TICK_SECONDS)
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    def submit(
        self,
        rid: str,
        prompt: TokenPrompt,
        changed: asyncio.Event,
        *,
        output: bytes,
        output_tokens: int,
        max_new: int | None,
        ignore_eos: bool,
        tokenized: bool,
    ) -> Ticket:
        """Hand a request to the engine now. `output` are the ids it will produce, packed.

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
            tokenized=tokenized,
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
                    ticket.started_at, ticket.cached_tokens = event.at, event.cached_tokens
                elif isinstance(event, Ended):
                    del self._tickets[event.rid]
                    ticket.ended, ticket.generated = event, event.completion_tokens
                    ticket.cached_tokens = event.cached_tokens
                    ticket.changed.set()
            if not events and self.engine.now >= now:
                break
        for rid, generated in self.engine.generated().items():
            ticket = self._tickets[rid]
            if ticket.generated != generated:
                ticket.generated = generated
                ticket.changed.set()
