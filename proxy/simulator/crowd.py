"""The clients of a replay: they send, wait, come back, give up and go on to their next turn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from proxy.simulator.records import Outcome, Record
from proxy.simulator.workload import Ask, Client, Workload

# A client that is told nothing better comes back after this.
RETRY_SECONDS = 1.0
# The longest Retry-After that clients obey.
LONGEST_RETRY_SECONDS = 60.0


class Agenda:
    """What is to be done when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def next_at(self) -> float:
        """When the next thing is due. There must be one."""
        return self._entries[0][0]

    def at(self, time: float, act: Callable[[], None]) -> None:
        heappush(self._entries, (time, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run_due(self, now: float) -> None:
        """Do all that is due at `now`, and what that makes due."""
        self.now = now
        while self._entries and self._entries[0][0] <= now:
            heappop(self._entries)[2]()


@dataclass(slots=True)
class Sent:
    """A request on its way. The engine holds it (`at_engine`) or `slices` of it; its client may be `gone`."""

    record: Record
    ask: Ask
    client: Client
    turn: int
    at_engine: bool = False
    sent_to_engine_at: float | None = None
    slices: int = 0
    gone: bool = False


class Front(Protocol):
    """Whom the clients talk to."""

    def arrived(self, sent: Sent) -> None:
        """A request came in."""
        ...

    def hung_up(self, sent: Sent) -> None:
        """Its client left before it ended."""
        ...


class Crowd:
    """All clients of a workload. `records` fills with every request sent."""

    def __init__(self, workload: Workload, agenda: Agenda, front: Front) -> None:
        self.records: list[Record] = []
        self.unfinished_clients = len(workload.clients)
        self._agenda = agenda
        self._front = front
        for client in workload.clients:
            agenda.at(client.starts_at, partial(self._send, client, 0))

    def ended(self, sent: Sent, outcome: Outcome) -> None:
        """The answer ended; the client goes on, unless it left long ago."""
        if sent.gone:
            return
        self._close(sent, outcome)
        self._go_on(sent)

    def refused(self, sent: Sent, reason: str, retry_after_seconds: float | None) -> None:
        """Turned away: the client comes back as often as it does, else goes on.

        Who would have to stay away for longer than a minute is told `x-should-retry: false`, and obeys.
        """
        record = sent.record
        record.reason, record.retry_after_seconds, record.status = reason, retry_after_seconds, 429
        self._close(sent, Outcome.REFUSED)
        pause = RETRY_SECONDS if retry_after_seconds is None else retry_after_seconds
        if record.attempt >= sent.client.retries or pause > LONGEST_RETRY_SECONDS:
            self._go_on(sent)
            return
        again = partial(self._send, sent.client, sent.turn, record.attempt + 1, record.asked_at)
        self._agenda.after(pause, again)

    def _send(self, client: Client, turn: int, attempt: int = 0, asked_at: float | None = None) -> None:
        now, ask = self._agenda.now, client.turns[turn].ask
        record = Record(
            rid=f"r{len(self.records):07d}",
            kind=ask.kind,
            client=client.name,
            sent_at=now,
            prompt_tokens=ask.prompt_tokens,
            tenant=ask.tenant,
            attempt=attempt,
            asked_at=now if asked_at is None else asked_at,
        )
        self.records.append(record)
        sent = Sent(record, ask, client, turn)
        if ask.leaves_after_seconds is not None:
            self._agenda.after(ask.leaves_after_seconds, partial(self._leave, sent))
        self._front.arrived(sent)

    def _leave(self, sent: Sent) -> None:
        """Hangs up: nobody waits for the answer any more, and the next turn never comes."""
        if sent.gone or sent.record.outcome is not Outcome.UNFINISHED:
            return
        self._close(sent, Outcome.LEFT)
        sent.gone = True
        self.unfinished_clients -= 1
        self._front.hung_up(sent)

    def _go_on(self, sent: Sent) -> None:
        turns, turn = sent.client.turns, sent.turn + 1
        if turn == len(turns):
            self.unfinished_clients -= 1
        else:
            self._agenda.after(turns[turn].pause_seconds, partial(self._send, sent.client, turn))

    def _close(self, sent: Sent, outcome: Outcome) -> None:
        sent.record.outcome, sent.record.ended_at = outcome, self._agenda.now
