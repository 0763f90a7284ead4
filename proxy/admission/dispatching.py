"""Sends what may go: asks a line who is due until nobody is, and lets idle pools take work from others."""

from dataclasses import replace

from proxy.admission.job import Job
from proxy.admission.limits import Mode
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.refusing import Refusing
from proxy.admission.types import Action, Dispatch, Slice, Tokenize


class Dispatching(Refusing):
    """Turns what a line finds due into actions."""

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
            self.fleet.changed(line)
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
            hopeless = self.is_hopeless(job, line, wait)
            verdict = "refuse" if hopeless else "queue" if waits else "admit"
        self.jobs[job.rid] = job
        job.rule = self.limits.mode.value
        line.pool.admit(job, now, line.reserve_of(job))
        self.fleet.changed(line)
        actions.append(replace(self._dispatched(job), verdict=verdict, predicted_wait_seconds=wait))
