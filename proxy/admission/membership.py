"""Pools that come, go, or change: whoever waits for one is found another, or waits for one to come."""

from collections.abc import Iterable

from proxy.admission.dispatching import Dispatching
from proxy.admission.job import Job
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.sensor import Sensor
from proxy.admission.types import (
    Action,
    NewLimits,
    PoolDown,
    PoolFacts,
    PoolGone,
    PoolLeaving,
    PoolUp,
)


class Membership(Dispatching):
    """The events of pools, and new limits."""

    def _pool_up(self, now: float, event: PoolUp, actions: list[Action]) -> Iterable[Line]:
        name, facts = event.pool, event.facts
        self.router.unseen.discard(name.partition("/")[0])
        self.router.retired.difference_update(facts.models)
        line = self.lines.get(name)
        if line is None:
            line = self._new_line(name, facts)
            self.fleet.add(line)
        else:
            line.pool.refresh(facts)
        self._sensors[name] = self._new_sensor(line.pool)
        self.fleet.regrouped()
        waiting = [*line.jobs(), *self._homeless.values()]
        for job in waiting:  # sizes may have changed: sort them again
            self._unqueue(job)
            self._place(now, job, actions)
        return list(self.lines.values())

    def _new_line(self, name: str, facts: PoolFacts) -> Line:
        return Line(Pool(name, facts, self.limits), self.limits, self.reservation, self.charges)

    def _new_sensor(self, pool: Pool) -> Sensor:
        return Sensor(pool)

    def _pool_down(self, now: float, event: PoolDown, actions: list[Action]) -> Iterable[Line]:
        line = self.lines.get(event.pool)
        if line is None:
            self.router.unseen.add(event.pool)
            self.fleet.regrouped()
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
        self.fleet.regrouped()
        if event.stays:
            for job in list(self._homeless.values()):
                self._unqueue(job)
                self._place(now, job, actions)
            return self.lines.values()
        while line.pool.holds:
            line.pool.drop_hold(line.pool.holds[0])
        for job in [*line.jobs(), *self._homeless.values()]:
            self._unqueue(job)
            self._place(now, job, actions)
        return self.lines.values()

    def _pool_gone(self, now: float, event: PoolGone, actions: list[Action]) -> Iterable[Line]:
        self.router.unseen.discard(event.pool)
        self.fleet.regrouped()
        line = self.lines.get(event.pool)
        if line is None:
            return ()
        self.router.retired.update(line.pool.facts.models)
        self._pool_leaving(now, PoolLeaving(event.pool), actions)
        for job in list(line.pool.jobs.values()):
            self._release(now, job)
        self.fleet.remove(line)
        del self._sensors[event.pool]
        return self.lines.values()

    def _new_limits(self, _: float, event: NewLimits, __: list[Action]) -> Iterable[Line]:
        self.limits = self.router.limits = event.limits
        self.reservation.adopt(event.limits.output_reserve_quantile, event.limits.output_reserve_cap)
        self.fleet.regrouped()
        for line in self.lines.values():
            line.adopt(event.limits)
        return self.lines.values()

    def _place(self, now: float, job: Job, actions: list[Action]) -> None:
        """Find a queued job a line again; while those that could take it are down it waits for one."""
        line = self.route(job, now)
        if line is None:
            if self.router.may_come(job.request):
                self._homeless[job.rid] = job
                job.pool = ""
                self._note_deadline(job)
                return
            self._leave(job, unused_tokens=job.metered_tokens)
            actions.append(self._turned_away(now, job))
            return
        job.lane = line.lane_of(job)
        self._enqueue(job, line)
