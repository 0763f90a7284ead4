"""Steps the controller: at what moments, and what its decisions set in motion.

Everything here runs on the event loop and is synchronous.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from proxy.admission.controller import Controller
from proxy.admission.types import (
    Action,
    Dispatch,
    Event,
    LoadSample,
    Progress,
    Refuse,
    Slice,
    Tick,
    Tokenize,
)
from proxy.api.decisions import decision_line
from proxy.api.ticket import Ticket
from proxy.telemetry.decision_log import DecisionLog
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.recent import Recent

PROGRESS_SECONDS = 0.25  # how often running streams are looked at
MIN_SLEEP_SECONDS = 0.001
NOT_BACKFILLED = frozenset({"fit", "shadow", "off"})


class Stepper:
    """One controller, its clock, and the tickets of the requests it decides."""

    def __init__(
        self,
        controller: Controller,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        urge: Callable[[str], None] = lambda pool: None,
        decisions: DecisionLog | None = None,
    ) -> None:
        self.controller = controller
        self.metrics = metrics
        self.clock = clock
        self.decisions = decisions
        self.recent = Recent()
        self.tickets: dict[str, Ticket] = {}
        self.samples: dict[str, LoadSample] = {}
        self._urge = urge
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._looked_at = 0.0
        self._closed = False

    def step(self, now: float, event: Event) -> None:
        """Bring the controller one event, carry out what it decides, and wake up when it must."""
        self._apply(now, self.controller.step(now, event))
        self._arm(now)

    def look_at_streams(self, now: float) -> None:
        """Tell the controller how far the running streams are, where it does not know yet."""
        if now - self._looked_at < PROGRESS_SECONDS / 2:
            return
        self._looked_at = now
        jobs = self.controller.jobs
        seen: dict[str, int] = {}
        for rid, ticket in self.tickets.items():
            produced = ticket.observed.generated_tokens
            if (
                ticket.first_token_at is not None
                and (job := jobs.get(rid))
                and produced > job.generated_tokens
            ):
                seen[rid] = produced
        if seen:
            self.step(now, Progress(seen))

    def _apply(self, now: float, actions: Iterable[Action]) -> None:
        for action in actions:
            ticket = self.tickets.get(action.rid)
            if ticket is None:
                continue
            match action:
                case Tokenize(pool=pool):
                    assert ticket.sliced is not None
                    ticket.sliced.tokenize(pool)
                case Slice(pool=pool, end_tokens=end_tokens):
                    assert ticket.sliced is not None
                    self.metrics.prefill_slice()
                    ticket.sliced.send(pool, end_tokens)
                case Dispatch():
                    self._note(now, ticket, action)
                    self._dispatched(now, ticket, action)
                    ticket.decide(action)
                case Refuse():
                    self.recent.refused(action.reason)
                    self._note(now, ticket, action)
                    ticket.closed = True
                    del self.tickets[action.rid]
                    ticket.decide(action)

    def _note(self, now: float, ticket: Ticket, action: Dispatch | Refuse) -> None:
        """A line of the decision log, with all that the decision saw."""
        if self.decisions is not None:
            alias = self.decisions.alias
            self.decisions.write(decision_line(self.controller, self.samples, now, ticket, action, alias))

    def _dispatched(self, now: float, ticket: Ticket, action: Dispatch) -> None:
        ticket.dispatched_at = ticket.arrived_at + action.waited_seconds
        if action.rule not in NOT_BACKFILLED:
            self.metrics.backfill(action.rule)
        if ticket.predicted_wait_seconds is not None:
            error = action.waited_seconds - ticket.predicted_wait_seconds
            self.metrics.wait_prediction_error(error)
        if action.lane != "short":
            self._urge(action.pool)

    def _arm(self, now: float) -> None:
        """One timer, at the earliest moment at which something may change by itself."""
        at = self.controller.next_wakeup(now)
        if self.tickets:
            at = min(at or now + PROGRESS_SECONDS, now + PROGRESS_SECONDS)
        if at is None or self._closed or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(MIN_SLEEP_SECONDS, at - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.clock()
        self.look_at_streams(now)
        self.step(now, Tick())

    def close(self) -> None:
        """No timer runs any more. What still happens is booked, and no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
