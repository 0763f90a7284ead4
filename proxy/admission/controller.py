"""The decision: `step(now, event) -> actions`, pure and synchronous.

The controller owns every job from arrival to release. It never waits, never looks at a clock and
never talks to anyone: whoever drives it (the live proxy, the simulator, a test) brings the time
and carries out the actions. Give it a `Tick` at `next_wakeup`, or a few times a second.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf, nextafter
from zlib import crc32

from proxy.admission import refusal
from proxy.admission.backfill import expected_end
from proxy.admission.costs import nominal_seconds
from proxy.admission.job import Job, State
from proxy.admission.limits import QUEUE_TOKENS_POOLS, Limits, Mode
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges
from proxy.admission.reservation import Reservation
from proxy.admission.residency import (
    MAX_HELD_SHARE,
    MIN_HOLD_TOKENS,
    Conversations,
    Hold,
    quantum_seconds,
)
from proxy.admission.routing import Router
from proxy.admission.sensor import Sensor
from proxy.admission.tenants import Objection, Tenants
from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
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
    Refuse,
    Requeue,
    Slice,
    Sliceable,
    SliceDone,
    Tick,
    Tokenize,
)

TENANTS_KEPT = 4096
DEADLINES_SLACK = 1024  # of those that do not wait any more, before they are swept out
CACHE_SLACK_TOKENS = 2048  # less than believed to be cached, by more than an open segment or two


class Controller:
    """All pools, all waiting lines, all jobs."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.reservation = Reservation(self.limits.output_reserve_quantile, self.limits.output_reserve_cap)
        self.charges = Charges()
        self.conversations = Conversations()
        self.tenants = Tenants()
        self.jobs: dict[str, Job] = {}
        self.lines: dict[str, Line] = {}
        self.router = Router(self.lines, self.conversations, self.limits)
        self.draining = False
        self._sensors: dict[str, Sensor] = {}
        self._homeless: dict[str, Job] = {}  # queued while no backend is up
        self._deadlines: list[tuple[float, str]] = []
        self._draining: dict[str, Job] = {}
        self._refusing: dict[Lane, bool] = {}
        self._refused: dict[Lane, refusal.Burst] = {lane: refusal.Burst() for lane in Lane}
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
        if len(self.lines) > 1 and any(len(line) for line in self.lines.values()):
            for line in touched:
                self._steal(now, line, actions)
        if isinstance(event, Arrival):
            self._refuse_hopeless(now, event.request.rid, actions)
        return actions

    def next_wakeup(self, now: float) -> float | None:
        """When a `Tick` is needed although nothing happens; None when there is nothing to wait for."""
        times = [at for line in self.lines.values() if (at := line.wakeup(now)) is not None]
        while self._deadlines and not self._waiting(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        if self._deadlines:
            times.append(self._deadlines[0][0])
        times.extend(job.drain_until for job in self._draining.values())
        return min(times, default=None)

    # --- events --------------------------------------------------------------------------------

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
        full = self._queue_full(line, job)
        goes_at_once = not len(line) and line.pool.fits(job, line.reserve_of(job))
        self._enqueue(job, line)
        if full and not goes_at_once:
            self._forget(job)
            actions.append(self._refusal(now, job, line, Reason.QUEUE_FULL))
            return ()
        return (line,)

    def _wave_through(self, now: float, job: Job, line: Line | None, actions: list[Action]) -> None:
        """Shadow and off: it goes at once; shadow says what enforcing would have done."""
        verdict, wait = "", 0.0
        shadow = self.limits.mode is Mode.SHADOW
        if line is None:
            line = next(line for line in self.lines.values() if line.pool.open)
            verdict = "refuse" if shadow else ""
        job.lane = line.lane_of(job)
        if self._objection(now, job, line) is not None:
            verdict = "refuse" if shadow else ""
        self._claim(now, job)
        if shadow and not verdict:
            waits = bool(line.obstacles(job, now))
            wait = line.predicted_wait(job, now) if waits else 0.0
            hopeless = wait > job.request.wait_limit_seconds
            verdict = "refuse" if hopeless else "queue" if waits else "admit"
        self.jobs[job.rid] = job
        job.rule = self.limits.mode.value
        line.pool.admit(job, now, line.reserve_of(job))
        actions.append(replace(self._dispatched(job), verdict=verdict, predicted_wait_seconds=wait))

    def _first_token(self, now: float, event: FirstToken, _: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is None or job.state in (State.QUEUED, State.SLICING):
            return ()
        line = self.lines[job.pool]
        self._sensors[job.pool].prefilled(now, job)
        line.pool.prefilled(job, now)
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

    def _hold(self, now: float, job: Job) -> None:
        """Keep the context for the next turn, if one is to be expected and nobody is wronged."""
        talk, most = job.conversation, self.limits.session_hold_seconds
        if talk is None or most <= 0 or not job.prefill_done:
            return
        line = self.lines[job.pool]
        pool, segments = line.pool, job.segments
        tokens = sum(segment.tokens for segment in segments)
        self.conversations.continues(talk, job.request)
        if talk.pool != pool.name or talk.tokens == 0:
            talk.resident_since = job.dispatched_at
        talk.pool, talk.tokens = pool.name, tokens
        prefill = pool.costs.prefill_seconds(tokens)
        served = len(line.longs) > 0 and now - talk.resident_since > quantum_seconds(prefill)
        seconds = self.conversations.hold_seconds(talk, prefill)
        room = pool.held_tokens + tokens <= MAX_HELD_SHARE * pool.budget_tokens
        room = room and self._may_hold(job, tokens)
        if not seconds or served or not room or tokens < MIN_HOLD_TOKENS or talk.running > 1:
            talk.tokens = 0
            return
        pool.hold(Hold(talk, segments, tokens, now, now + min(most, seconds), job.request.tenant))

    def _may_hold(self, job: Job, tokens: int) -> bool:
        """What is held for a tenant counts among its resident tokens."""
        request, most = job.request, job.request.limits.resident_tokens
        if most is None:
            return True
        holds = (hold for line in self.lines.values() for hold in line.pool.holds)
        held = sum(hold.tokens for hold in holds if hold.tenant == request.tenant)
        _, claimed = self.tenants.usage(request.tenant)
        return claimed - job.claimed_tokens + held + tokens <= most

    def _unhold(self, job: Job) -> None:
        """Its next turn has taken its place: the hold has become its charge."""
        for line in self.lines.values():
            for hold in [h for h in line.pool.holds if h.conversation is job.conversation]:
                line.pool.drop_hold(hold)
                if line.pool.name == job.pool:
                    line.pool.take_over(job)

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

    def _take_back(self, job: Job) -> None:
        """It did nothing: what its tenant and its conversation were told of it was not so."""
        self.charges.charge(job.request.tenant, -job.charged_token_seconds, job.request.weight)
        job.charged_token_seconds = 0.0
        if job.conversation is not None:
            job.conversation.running -= 1
            job.conversation = None

    def _pool_up(self, now: float, event: PoolUp, actions: list[Action]) -> Iterable[Line]:
        name, facts = event.pool, event.facts
        self.router.unseen.discard(name.partition("/")[0])
        self.router.retired.difference_update(facts.models)
        line = self.lines.get(name)
        if line is None:
            pool = Pool(name, facts, self.limits)
            line = self.lines[name] = Line(pool, self.limits, self.reservation, self.charges)
        else:
            line.pool.refresh(facts)
        self._sensors[name] = Sensor(line.pool)
        waiting = [*line.jobs(), *self._homeless.values()]
        for job in waiting:  # sizes may have changed: sort them again
            self._unqueue(job)
            self._place(now, job, actions)
        return list(self.lines.values())

    def _pool_down(self, now: float, event: PoolDown, actions: list[Action]) -> Iterable[Line]:
        line = self.lines.get(event.pool)
        if line is None:
            self.router.unseen.add(event.pool)
            return ()
        line.pool.up = False
        for job in list(line.jobs()):
            self._unqueue(job)
            self._place(now, job, actions)
        return self.lines.values()

    def _pool_leaving(self, now: float, event: PoolLeaving, actions: list[Action]) -> Iterable[Line]:
        line = self.lines.get(event.pool)
        if line is None:
            return ()
        line.pool.leaving = not event.stays
        if event.stays:
            for job in list(self._homeless.values()):
                self._unqueue(job)
                self._place(now, job, actions)
            return self.lines.values()
        while line.pool.holds:
            line.pool.drop_hold(line.pool.holds[0])
        for job in list(line.jobs()):
            self._unqueue(job)
            self._place(now, job, actions)
        return self.lines.values()

    def _pool_gone(self, now: float, event: PoolGone, actions: list[Action]) -> Iterable[Line]:
        self.router.unseen.discard(event.pool)
        line = self.lines.get(event.pool)
        if line is None:
            return ()
        self.router.retired.update(line.pool.facts.models)
        self._pool_leaving(now, PoolLeaving(event.pool), actions)
        for job in list(line.pool.jobs.values()):
            self._release(now, job)
        del self.lines[event.pool], self._sensors[event.pool]
        return self.lines.values()

    def _new_limits(self, _: float, event: NewLimits, __: list[Action]) -> Iterable[Line]:
        self.limits = self.router.limits = event.limits
        self.reservation.adopt(event.limits.output_reserve_quantile, event.limits.output_reserve_cap)
        for line in self.lines.values():
            line.adopt(event.limits)
        return self.lines.values()

    def _tick(self, _: float, __: Tick, ___: list[Action]) -> Iterable[Line]:
        return self.lines.values()

    def _place(self, now: float, job: Job, actions: list[Action]) -> None:
        """Find a queued job a line again; while those that could take it are down it waits for one."""
        line = self.route(job, now)
        if line is None:
            if self.router.obstacle(job.request) is Reason.NO_BACKEND:
                self._homeless[job.rid] = job
                job.pool = ""
                self._note_deadline(job)
                return
            self._leave(job, unused_tokens=job.metered_tokens)
            actions.append(self._turned_away(now, job))
            return
        job.lane = line.lane_of(job)
        self._enqueue(job, line)

    def _drain(self, now: float, _: Drain, actions: list[Action]) -> Iterable[Line]:
        self.draining = True
        for job in [job for job in self.jobs.values() if job.state is State.QUEUED]:
            self._forget(job)
            actions.append(self._refusal(now, job, None, Reason.DRAINING))
        return ()

    # --- queue and release ---------------------------------------------------------------------

    def _enqueue(self, job: Job, line: Line, *, front: bool = False) -> None:
        self.jobs[job.rid] = job
        job.pool = line.pool.name
        line.push(job, front=front)
        self._note_deadline(job)

    def _note_deadline(self, job: Job) -> None:
        """It waits, for the first time or again: while it did not, its deadline may have been dropped."""
        heapq.heappush(self._deadlines, (job.deadline_at, job.rid))
        if len(self._deadlines) > 2 * len(self.jobs) + DEADLINES_SLACK:  # most have left before theirs
            self._deadlines = [entry for entry in self._deadlines if self._waiting(entry[1])]
            heapq.heapify(self._deadlines)

    def _unqueue(self, job: Job) -> None:
        if self._homeless.pop(job.rid, None) is None:
            self.lines[job.pool].remove(job)

    def _forget(self, job: Job) -> None:
        self._unqueue(job)
        self._leave(job, unused_tokens=job.metered_tokens)

    def _leave(self, job: Job, *, unused_tokens: int) -> None:
        """It neither waits nor runs any more."""
        del self.jobs[job.rid]
        if job.conversation is not None:
            job.conversation.running -= 1
        self.tenants.give_back(job.request, job.claimed_tokens, unused_tokens)

    def _release(
        self, now: float, job: Job, *, spent_tokens: int | None = None, produced_tokens: int | None = None
    ) -> Iterable[Line]:
        line = self.lines[job.pool]
        held = line.pool.own_tokens(job)
        worth = self._worth_seconds(
            now, job, job.generated_tokens if produced_tokens is None else produced_tokens
        )
        spent = job.prompt_tokens + job.generated_tokens if spent_tokens is None else spent_tokens
        line.pool.release(job)
        self._leave(job, unused_tokens=job.metered_tokens - spent)
        self._draining.pop(job.rid, None)
        if job.conversation is not None:
            job.conversation.ended_at = now
        self.charges.charge(job.request.tenant, held * worth - job.charged_token_seconds, job.request.weight)
        self._sensors[job.pool].released(now, held)
        if len(self.charges) > 2 * TENANTS_KEPT:
            self.charges.forget_idle({j.request.tenant for j in self.jobs.values()}, TENANTS_KEPT)
        return (line,)

    def _dispatch(self, now: float, line: Line, actions: list[Action]) -> None:
        pool = line.pool
        while len(line) or pool.sliced is not None:
            due = line.next_due(now)
            if due is None:
                self._want_ids(now, line, actions)
                end = line.next_slice(now)
                if end is None:
                    return
                self._slice(now, pool, end, actions)
                continue
            job, rule = due
            reserve = line.reserve_of(job)
            need = line.pool.need_tokens(job, reserve)
            head = line.gate.head
            line.remove(job)
            line.gate.block(None if head is job else head)
            line.gate.passed(rule, need)
            sliced = pool.slicing.applies(job, pool.uncached_tokens(job), pool.facts, now)
            job.rule = str(rule)
            line.waited(job, now - job.arrived_at)
            job.conversation = self.conversations.resumed(job.request, job.arrived_at)
            pool.admit(job, now, reserve, sliced=sliced)
            if job.conversation is not None:
                self._unhold(job)
            self._charge_ahead(pool, job)
            if not sliced:
                actions.append(self._dispatched(job))

    def _steal(self, now: float, line: Line, actions: list[Action]) -> None:
        """A pool without work takes over what is blocked elsewhere and would start at once here."""
        job = next(self.router.stealable(line, now), None)
        while job is not None:
            self._unqueue(job)
            job.lane = line.lane_of(job)
            self._enqueue(job, line)
            self._dispatch(now, line, actions)
            job = next(self.router.stealable(line, now), None)

    def _want_ids(self, now: float, line: Line, actions: list[Action]) -> None:
        """Of the one in slices, and of the head behind it: no more, since ids take memory."""
        for job in (line.pool.sliced, line.longs.head()):
            if job is None or job.ids_wanted or job.unsliceable:
                continue
            uncached = line.pool.uncached_tokens(job)
            if line.pool.slicing.applies(job, uncached, line.pool.facts, now):
                job.ids_wanted = True
                actions.append(Tokenize(job.rid, line.pool.name))

    def _slice(self, now: float, pool: Pool, end_tokens: int, actions: list[Action]) -> None:
        job = pool.sliced
        assert job is not None
        if end_tokens:
            pool.slice_sent(job, end_tokens, now)
            actions.append(Slice(job.rid, pool.name, end_tokens))
        else:
            pool.send_rest(job, now)
            actions.append(self._dispatched(job))

    def _dispatched(self, job: Job) -> Dispatch:
        """Its wait ended when it took its place, which a sliced one did with its first slice."""
        return Dispatch(job.rid, job.pool, job.lane, job.dispatched_at - job.arrived_at, job.rule)

    def _charge_ahead(self, pool: Pool, job: Job) -> None:
        job.charged_prefill_seconds = nominal_seconds(job.uncached_tokens, 0)
        seconds = job.charged_prefill_seconds + nominal_seconds(0, job.remaining_tokens())
        job.charged_token_seconds = pool.own_tokens(job) * seconds
        self.charges.charge(job.request.tenant, job.charged_token_seconds, job.request.weight)

    @staticmethod
    def _worth_seconds(now: float, job: Job, produced_tokens: int) -> float:
        """What its residency is charged in the end: by what it did, at a pace that is the same for all.

        At the pace as it is believed, a forecast that changes would pay back at once to who has much
        running, and who was lifted to those charges meanwhile would wait that long.
        """
        if not job.prefill_done:
            return min(job.charged_prefill_seconds, now - job.dispatched_at)
        return job.charged_prefill_seconds + nominal_seconds(0, produced_tokens / job.request.sequences)

    def _expire(self, now: float, actions: list[Action]) -> None:
        for held in self.lines.values():
            for hold in [hold for hold in held.pool.holds if hold.until <= now]:
                self.conversations.stayed_away(hold.conversation)
                held.pool.drop_hold(hold)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, rid = heapq.heappop(self._deadlines)
            job = self.jobs.get(rid)
            if job is None or job.state is not State.QUEUED or job.deadline_at > now:
                continue
            line = self.lines.get(job.pool)
            reason = Reason.DEADLINE if line else Reason.NO_BACKEND
            refuse = self._refusal(now, job, line, reason)
            self._forget(job)
            actions.append(refuse)
        for job in [job for job in self._draining.values() if job.drain_until <= now]:
            self._release(now, job)

    def _waiting(self, rid: str) -> bool:
        job = self.jobs.get(rid)
        return job is not None and job.state is State.QUEUED

    # --- routing and refusing ------------------------------------------------------------------

    def route(self, job: Job, now: float) -> Line | None:
        """The line that has the job done first, of those that can ever take it. See `Router`."""
        return self.router.choose(job, now)

    def _claim(self, now: float, job: Job) -> None:
        self.tenants.take(job.request, job.claimed_tokens, job.metered_tokens, now)

    def _objection(self, now: float, job: Job, line: Line) -> Objection | None:
        """Its tenant's limit that it would break. Notes what it is counted as."""
        reserve = line.reserve_of(job)
        job.claimed_tokens = line.pool.need_tokens(job, reserve)
        job.metered_tokens = job.prompt_tokens + reserve
        return self.tenants.objection(job.request, job.claimed_tokens, job.metered_tokens, now)

    def _tenant_refusal(self, now: float, job: Job, line: Line, objection: Objection) -> Refuse:
        """Says which limit it was, and when the tenant's own requests will have made room."""
        seconds = objection.retry_seconds
        if seconds is None:
            seconds = self._room_in(now, job) if not objection.hopeless else 0.0
        spread = crc32(job.rid.encode())
        return Refuse(
            job.rid,
            Reason.TENANT_LIMIT,
            job.lane,
            predicted_wait_seconds=seconds,
            retry_after_seconds=None if objection.hopeless else refusal.spread_after(seconds, spread),
            needed_tokens=job.claimed_tokens,
            free_tokens=line.pool.free_tokens,
            queue_position=0,
            tenant_limit=objection.limit,
        )

    def _room_in(self, now: float, job: Job) -> float:
        """When the tenant's running requests have freed what `job` needs of its limits."""
        tenant, limits = job.request.tenant, job.request.limits
        _, tokens = self.tenants.usage(tenant)
        excess = tokens + job.claimed_tokens - (limits.resident_tokens or tokens + job.claimed_tokens)
        pools = [line.pool for line in self.lines.values()]
        mine = [
            (expected_end(pool, other, now), other.claimed_tokens)
            for pool in pools
            for other in pool.jobs.values()
            if other.request.tenant == tenant
        ]
        end = now
        for end, claimed in sorted(mine):  # noqa: B007
            excess -= claimed
            if excess <= 0:
                break
        return end - now

    def _queue_full(self, line: Line, job: Job) -> bool:
        requests = sum(len(other) for other in self.lines.values()) + len(self._homeless)
        tokens = sum(other.waiting_tokens for other in self.lines.values())
        pools = sum(other.pool.facts.pool_tokens for other in self.lines.values())
        most_tokens = self.limits.max_queue_tokens or QUEUE_TOKENS_POOLS * pools
        return requests >= self.limits.max_queue_requests or tokens + job.request.prompt_tokens > max(
            most_tokens, job.request.prompt_tokens
        )

    def _refuse_hopeless(self, now: float, rid: str, actions: list[Action]) -> None:
        job = self.jobs.get(rid)
        if job is None or job.state is not State.QUEUED or job.pool not in self.lines:
            return
        line = self.lines[job.pool]
        job.predicted_wait_seconds = line.predicted_wait(job, now)
        limit = job.request.wait_limit_seconds
        if not line.pool.costs.known:
            limit *= refusal.UNKNOWN_RATE_SLACK
        elif self._refusing.get(job.lane, False):
            limit *= self.limits.accept_again
        hopeless = job.predicted_wait_seconds * refusal.PROMISE_MARGIN > limit
        self._refusing[job.lane] = hopeless
        if hopeless:
            refuse = self._refusal(now, job, line, Reason.WOULD_MISS_DEADLINE)
            self._forget(job)
            actions.append(refuse)

    def _turned_away(self, now: float, job: Job) -> Refuse:
        """No open pool takes it: for now, or ever."""
        reason = self.router.obstacle(job.request)
        roomiest = self.router.roomiest(job.request)
        if reason is Reason.NO_BACKEND:
            return self._refusal(now, job, None, reason)
        if roomiest is None:
            return Refuse(job.rid, reason, job.lane, 0.0, None, job.request.prompt_tokens, 0, 0)
        return Refuse(
            job.rid,
            reason,
            roomiest.lane_of(job),
            predicted_wait_seconds=0.0,
            retry_after_seconds=None,
            needed_tokens=job.request.prompt_tokens,
            free_tokens=roomiest.pool.free_tokens,
            queue_position=0,
            limit_tokens=refusal.limit_exceeded(roomiest.pool, job.request),
        )

    def _refusal(self, now: float, job: Job, line: Line | None, reason: Reason) -> Refuse:
        if line is None:
            spread = refusal.spread_seconds(crc32(job.rid.encode()))
            return Refuse(job.rid, reason, job.lane, 0.0, spread, job.request.prompt_tokens, 0, 0)
        wait = line.predicted_wait(job, now)
        service = line.pool.timeline.prefill_seconds(job, line.pool.uncached_tokens(job))
        turn = self._refused[job.lane].next_turn(now, service)
        return Refuse(
            job.rid,
            reason,
            job.lane,
            predicted_wait_seconds=wait,
            retry_after_seconds=refusal.retry_after_seconds(
                wait, job.request.wait_limit_seconds, turn, crc32(job.rid.encode())
            ),
            needed_tokens=line.pool.need_tokens(job, line.reserve_of(job)),
            free_tokens=line.pool.free_tokens,
            queue_position=line.position(job),
        )
