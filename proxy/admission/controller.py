"""The decision: `step(now, event) -> actions`, pure and synchronous.

The controller owns every job from arrival to release. It never waits, never looks at a clock and
never talks to anyone: whoever drives it (the live proxy, the simulator, a test) brings the time
and carries out the actions. Give it a `Tick` at `next_wakeup`, or a few times a second.
"""

import heapq
from collections.abc import Callable, Iterable
from math import inf, nextafter

from proxy.admission.job import Job, State
from proxy.admission.limits import Limits, Mode
from proxy.admission.line import Line
from proxy.admission.membership import Membership
from proxy.admission.types import (
    Action,
    Arrival,
    Drain,
    Event,
    Finished,
    FirstToken,
    Gone,
    Lane,
    Load,
    NewLimits,
    PoolDown,
    PoolGone,
    PoolLeaving,
    PoolUp,
    Progress,
    Reason,
    Requeue,
    Sliceable,
    SliceDone,
    Tick,
)

CACHE_SLACK_TOKENS = 2048  # less than believed to be cached, by more than an open segment or two


class Controller(Membership):
    """All pools, all waiting lines, all jobs.

    What happens to requests is here. Each layer below it uses those below itself: `Membership` (pools
    come and go), `Dispatching` (who goes), `Refusing` (who does not), `Holding` (between turns), `Books`.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._handlers: dict[type[Event], Callable[..., Iterable[Line]]] = {
            Arrival: self._arrive,
            Sliceable: self._sliceable,
            SliceDone: self._slice_done,
            FirstToken: self._first_token,
            Progress: self._progress,
            Finished: self._finish,
            Gone: self._gone,
            Requeue: self._requeue,
            Load: self._load,
            PoolUp: self._pool_up,
            PoolDown: self._pool_down,
            PoolLeaving: self._pool_leaving,
            PoolGone: self._pool_gone,
            NewLimits: self._new_limits,
            Tick: self._tick,
            Drain: self._drain,
        }

    # --- the one way in ------------------------------------------------------------------------

    def step(self, now: float, event: Event) -> list[Action]:
        """Take one event, give back what has to be done, in order."""
        actions: list[Action] = []
        touched = self._handlers[type(event)](now, event, actions)
        # who came just now may go just now, however short its patience
        self._expire(nextafter(now, -inf) if isinstance(event, Arrival) else now, actions)
        for line in touched:
            self._dispatch(now, line, actions)
            self.fleet.changed(line)
            self.fleet.looked_at(line, now)
        if len(self.lines) > 1:
            for line in touched:
                self._steal(now, line, actions)
        if isinstance(event, Arrival):
            self._refuse_hopeless(now, event.request.rid, actions)
        self.fleet.rank(now)
        return actions

    def next_wakeup(self, now: float) -> float | None:
        """When a `Tick` is needed although nothing happens; None when there is nothing to wait for."""
        at = self.fleet.wakeup(now)
        times = [] if at is None else [at]
        while self._deadlines and not self._waiting(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        if self._deadlines:
            times.append(self._deadlines[0][0])
        times.extend(job.drain_until for job in self._draining.values())
        return min(times, default=None)

    # --- requests ------------------------------------------------------------------------------

    def _arrive(self, now: float, event: Arrival, actions: list[Action]) -> Iterable[Line]:
        request = event.request
        if request.rid in self.jobs:
            raise ValueError(f"request id {request.rid} is in use")
        lane = Lane.LONG if request.prompt_tokens > self.limits.short_prefill_tokens else Lane.SHORT
        job = Job(request, now, now + request.wait_limit_seconds, lane, request.prompt_tokens)
        if self.draining:
            actions.append(self._refusal(now, job, None, Reason.DRAINING))
            return ()
        job.goes_on = self.limits.session_hold_seconds > 0 and self.conversations.goes_on(request)
        line = self.route(job, now)
        enforced = self.limits.mode is Mode.ENFORCE
        if line is None and (enforced or not any(line.pool.open for line in self.lines.values())):
            actions.append(self._turned_away(now, job))
            return ()
        if not enforced:
            self._wave_through(now, job, line, actions)
            return ()
        assert line is not None
        job.lane = line.lane_of(job)
        objection = self._objection(now, job, line)
        if objection is not None:
            actions.append(self._tenant_refusal(now, job, line, objection))
            return ()
        self._claim(now, job)
        if not job.long:
            line.pool.slicing.short_seen(now)
        full = self.queue_full(job)
        self._enqueue(job, line)
        if full:
            self._dispatch(now, line, actions)  # who can go at once takes no place in the queue
            if job.state is State.QUEUED:
                self._forget(job)
                actions.append(self._refusal(now, job, line, Reason.QUEUE_FULL))
                return ()
        return (line,)

    def _sliceable(self, _: float, event: Sliceable, __: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None:
            return ()
        job.ids_tokens = event.prompt_tokens
        job.unsliceable = event.prompt_tokens is None
        if event.prompt_tokens is not None and job.state is State.SLICING:
            self.lines[job.pool].pool.counted(job, event.prompt_tokens)
        elif event.prompt_tokens is not None and job.state is State.QUEUED:
            job.prompt_tokens = event.prompt_tokens
        return (self.lines[job.pool],) if job.pool else ()

    def _slice_done(self, now: float, event: SliceDone, _: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None or event.end_tokens not in job.slice_ends:
            return ()
        pool = self.lines[job.pool].pool
        base = job.slice_bases.pop(event.end_tokens)
        pool.slicing.hit(job, base, event.end_tokens, event.cached_tokens, pool.facts, now)
        pool.slice_done(job, event.end_tokens, now)
        if job.state is State.DRAINING and not job.slice_ends:
            return self._release(now, job)
        return (self.lines[job.pool],)

    def _first_token(self, now: float, event: FirstToken, _: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None or job.state in (State.QUEUED, State.SLICING):
            return ()
        line = self.lines[job.pool]
        self._sensors[job.pool].prefilled(now, job)
        line.pool.prefilled(job, now)
        return (line,)

    def _progress(self, now: float, event: Progress, _: list[Action]) -> Iterable[Line]:
        touched: dict[str, Line] = {}
        for rid, generated in event.generated_tokens.items():
            job = self.jobs.get(rid)
            if job is None or job.state is State.QUEUED or job.state is State.SLICING:
                continue
            line = self.lines[job.pool]
            self._sensors[job.pool].decoded(now, job, generated)
            sequences = job.request.sequences
            grown = self.reservation.grown_tokens(
                job.request, generated // sequences, job.reserve_tokens // sequences
            )
            line.pool.progressed(job, generated, max(job.reserve_tokens, grown * sequences))
            touched[job.pool] = line
        return touched.values()

    def _finish(self, now: float, event: Finished, _: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None:
            return ()
        if job.state is State.QUEUED:
            self._forget(job)
            return ()
        if event.cached_tokens is not None and event.cached_tokens < job.cached_tokens - CACHE_SLACK_TOKENS:
            self.lines[job.pool].pool.idle.clear()  # it evicts more than we thought: believe nothing
        if event.completed and job.state is not State.DRAINING:
            if event.completion_tokens is not None:
                self.reservation.learn(job.request, event.completion_tokens)
                self._sensors[job.pool].decoded(now, job, event.completion_tokens, ended=True)
            self._hold(now, job)
        produced = job.generated_tokens if event.completion_tokens is None else event.completion_tokens
        spent = (event.prompt_tokens or job.prompt_tokens) + produced
        return self._release(now, job, spent_tokens=spent, produced_tokens=produced)

    def _gone(self, now: float, event: Gone, _: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None:
            return ()
        if job.state is State.QUEUED:
            line = self.lines.get(job.pool)
            self._forget(job)
            return (line,) if line else ()
        if not event.reached_engine or (job.state is State.SLICING and not job.slice_ends):
            return self._release(now, job, spent_tokens=job.sliced_tokens)
        line = self.lines[job.pool]
        if job.state is not State.DRAINING:
            job.state = State.DRAINING
            job.drain_until = now + self.limits.drain_seconds
            self._draining[job.rid] = job
            if line.pool.sliced is job:  # it costs no more than the slice under way
                line.pool.sliced = None
        return (line,)

    def _requeue(self, now: float, event: Requeue, actions: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        # a poll may have called it DECODE: one of those that do not stream, turned away late
        if job is None or job.state not in (State.PREFILL, State.DECODE):
            return ()
        line = self.lines[job.pool]
        if self.draining:
            actions.append(self._refusal(now, job, None, Reason.DRAINING))
            return self._release(now, job, spent_tokens=0)
        line.pool.release(job)
        self._take_back(job)
        job.state = State.QUEUED
        job.unsliceable = job.ids_tokens is None
        if not line.pool.open:
            self._place(now, job, actions)
            return self.lines.values()
        line.pool.turned_away(job, now)
        self._enqueue(job, line, front=True)
        return (line,)

    # --- the rest ------------------------------------------------------------------------------

    def _load(self, now: float, event: Load, _: list[Action]) -> Iterable[Line]:
        line = self.lines.get(event.pool)
        if line is None:
            return ()
        prefilled, gone = self._sensors[event.pool].observe(now, event.sample)
        for job in prefilled:
            line.pool.prefilled(job, now)
        for job in gone:
            self._release(now, job)
        return (line,)

    def _tick(self, now: float, _: Tick, __: list[Action]) -> Iterable[Line]:
        return self.fleet.due(now)

    def _drain(self, now: float, _: Drain, actions: list[Action]) -> Iterable[Line]:
        self.draining = True
        for job in [job for job in self.jobs.values() if job.state is State.QUEUED]:
            self._forget(job)
            actions.append(self._refusal(now, job, None, Reason.DRAINING))
        return ()
