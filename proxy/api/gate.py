"""The shell around the controller: requests and backends say what happens, tickets say what was decided.

Everything here runs on the event loop and is synchronous. `stepper` brings it the time.
"""

import logging
import time
from collections.abc import Callable

from proxy.admission.controller import Controller
from proxy.admission.job import State
from proxy.admission.limits import Limits
from proxy.admission.slicing import MISSES_ALLOWED
from proxy.admission.types import (
    Arrival,
    Drain,
    Event,
    Finished,
    FirstToken,
    Gone,
    Load,
    LoadSample,
    NewLimits,
    PoolDown,
    PoolFacts,
    PoolGone,
    PoolLeaving,
    PoolUp,
    Request,
    Requeue,
    Sliceable,
    SliceDone,
)
from proxy.api.decisions import end_line
from proxy.api.slices import SlicedPrefill
from proxy.api.stepper import Stepper
from proxy.api.ticket import Ticket
from proxy.telemetry.decision_log import DecisionLog
from proxy.telemetry.metrics import Metrics

logger = logging.getLogger("proxy.gate")


class Gate:
    """Tickets in, decisions out; also the listener of every backend's pools."""

    def __init__(
        self,
        controller: Controller,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        urge: Callable[[str], None] = lambda pool: None,
        decisions: DecisionLog | None = None,
        on_pool_up: Callable[[str], None] = lambda pool: None,
    ) -> None:
        self.controller = controller
        self.clock = clock
        self.down_reasons: dict[str, str] = {}
        self.retractions: dict[str, int] = {}
        self._metrics = metrics
        self._decisions = decisions
        self._on_pool_up = on_pool_up
        self._stepper = Stepper(controller, metrics, clock=clock, urge=urge, decisions=decisions)
        self._tickets = self._stepper.tickets
        self.samples = self._stepper.samples  # the newest load of each pool
        self.recent = self._stepper.recent

    # --- requests ------------------------------------------------------------------------------

    def submit(self, request: Request, sliced: SlicedPrefill | None = None) -> Ticket:
        """Ask for a place. The ticket may be decided when this returns.

        `sliced` carries the slices out where the request is sliceable.
        """
        now = self.clock()
        ticket = self._tickets[request.rid] = Ticket(request, now, sliced)
        self._step(now, Arrival(request))
        if ticket.decision is None:
            job = self.controller.jobs[request.rid]
            ticket.predicted_wait_seconds = job.predicted_wait_seconds
        return ticket

    def first_token(self, ticket: Ticket, cached_tokens: int | None = None) -> None:
        """The answer has begun: its prefill is done."""
        if ticket.closed or ticket.first_token_at is not None:
            return
        now = self.clock()
        ticket.first_token_at = now
        if ticket.decision is not None:
            self.recent.first_token(now, ticket.decision.lane, now - ticket.arrived_at)
        self._step(now, FirstToken(ticket.request.rid, cached_tokens))

    def requeue(self, ticket: Ticket) -> bool:
        """The engine took nothing on: wait again, within the same deadline. False: there is no waiting
        for it any more, and it must be answered."""
        ticket.decision = None
        ticket.first_token_at = None
        now = self.clock()
        self._step(now, Requeue(ticket.request.rid))
        job = self.controller.jobs.get(ticket.request.rid)
        waits = job is not None and job.state in (State.QUEUED, State.SLICING)
        return waits or ticket.decision is not None

    def finish(self, ticket: Ticket, *, completed: bool) -> None:
        """The engine has let go of it, or it never got there: every charge comes back."""
        if ticket.closed:
            return
        ticket.closed = True
        del self._tickets[ticket.request.rid]
        usage, produced = ticket.observed.usage, ticket.observed.produced_tokens
        prompt = cached = None
        if usage is not None:
            prompt, cached = usage.prompt_tokens, usage.cached_tokens
        if completed and ticket.dispatched_at is not None:
            job = self.controller.jobs.get(ticket.request.rid)
            if job is not None:
                self._metrics.reserved_minus_actual(job.reserve_tokens - produced)
        rid = ticket.request.rid
        now = self.clock()
        if self._decisions is not None:
            self._decisions.write(end_line(now, ticket, prompt, produced, completed=completed))
        self._step(now, Finished(rid, prompt, produced, cached, completed=completed))

    def leave(self, ticket: Ticket) -> None:
        """The client is gone. What was sent drains: `finish` when the engine has let go."""
        if not ticket.closed:
            self._step(self.clock(), Gone(ticket.request.rid))

    def leave_unsent(self, ticket: Ticket) -> None:
        """The client is gone before its request was sent; a slice in flight drains by itself."""
        if ticket.closed:
            return
        rid = ticket.request.rid
        job = self.controller.jobs.get(rid)
        ticket.closed = True
        del self._tickets[rid]
        if ticket.sliced is not None:
            ticket.sliced.close()
        self._step(self.clock(), Gone(rid, reached_engine=job is not None and bool(job.slice_ends)))

    def slicing(self, rid: str) -> bool:
        """Is the prompt of this waiting request on its way in slices?"""
        job = self.controller.jobs.get(rid)
        return job is not None and job.state is State.SLICING

    def sliceable(self, rid: str, prompt_tokens: int | None) -> None:
        """The ids of a request are here, so many; None: it will go whole."""
        self._step(self.clock(), Sliceable(rid, prompt_tokens))

    def slice_done(self, rid: str, end_tokens: int, cached_tokens: int | None) -> None:
        """A slice was answered."""
        job = self.controller.jobs.get(rid)
        line = self.controller.lines.get(job.pool) if job is not None else None
        pool = line.pool if line is not None else None
        misses = pool.slicing.misses if pool is not None else 0
        now = self.clock()
        self._step(now, SliceDone(rid, end_tokens, cached_tokens))
        if pool is None or pool.slicing.misses == misses:
            return
        self._metrics.prefill_slice_missed()
        logger.info(
            "slice missed: %s cached %s of the prefix before %d of request %s",
            pool.name,
            "an unknown part" if cached_tokens is None else f"{cached_tokens} tokens",
            end_tokens,
            rid,
        )
        if pool.slicing.off(now):
            logger.warning(
                "sliced prefill is off for %s for ten minutes: its prefix cache lost %d slices of late",
                pool.name,
                MISSES_ALLOWED,
            )

    def drain(self) -> None:
        """Shutting down: the queued are refused now, the running go on."""
        self._step(self.clock(), Drain())

    @property
    def open_tickets(self) -> int:
        return len(self._tickets)

    # --- what the backends report ----------------------------------------------------------------

    def pool_up(self, pool: str, facts: PoolFacts) -> None:
        """A pool was discovered, or came back, perhaps with another size."""
        self.down_reasons.pop(pool, None)
        self.samples.pop(pool, None)
        self._step(self.clock(), PoolUp(pool, facts))
        self._on_pool_up(pool)

    def pool_down(self, pool: str, reason: str) -> None:
        """A pool cannot be reached."""
        self.down_reasons[pool] = reason
        self._step(self.clock(), PoolDown(pool))

    def pool_leaving(self, pool: str, *, stays: bool = False) -> None:
        """The operator takes a pool out of service, or back in: what runs there may end."""
        line = self.controller.lines.get(pool)
        if line is not None and line.pool.leaving == stays:
            self._step(self.clock(), PoolLeaving(pool, stays))

    def pool_gone(self, pool: str) -> None:
        """A pool has been taken away for good."""
        for known in (self.samples, self.down_reasons, self.retractions):
            known.pop(pool, None)
        self._step(self.clock(), PoolGone(pool))

    def adopt(self, limits: Limits) -> None:
        """The operator's limits have changed."""
        self._step(self.clock(), NewLimits(limits))

    def load(self, pool: str, sample: LoadSample) -> None:
        """A poll of a pool's load."""
        before = self.samples.get(pool)
        self.samples[pool] = sample
        if before and before.retractions_total is not None and sample.retractions_total is not None:
            more = max(0, sample.retractions_total - before.retractions_total)
            self.retractions[pool] = self.retractions.get(pool, 0) + more
        now = self.clock()
        self._stepper.look_at_streams(now)
        self._step(now, Load(pool, sample))

    def _step(self, now: float, event: Event) -> None:
        self._stepper.step(now, event)

    def close(self) -> None:
        """No timer runs any more. What still happens is booked, and no more."""
        self._stepper.close()
