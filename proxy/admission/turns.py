"""How the slices of a long prompt and the shorts that wait take turns."""

from proxy.admission.job import Job
from proxy.admission.waiting import Waiting

CRAMPED_SHORTS = 8  # decodes get time between slices once no more than so many shorts fit beside them


class Turns(Waiting):
    """Says when the next slice of the prompt under way should go."""

    def _take_turns(self, job: Job, end: int, now: float) -> bool:
        """Must the next slice wait, so that shorts get in before it?"""
        pool = self.pool
        if not pool.slicing.shorts_recent(now):
            return False
        first = self.shorts.head()
        if first is not None:
            if pool.fits(first, self.reserve_of(first)):
                return not pool.timeline.open_for_shorts(now)
            if now < pool.slicing.rested_at:  # it waits for a running one, which slices would stall
                return True
        elif now < pool.slicing.half_rested_at and self._shorts_cramped():
            return True
        if not pool.timeline.busy:
            return False
        if pool.short_backlog_tokens:
            return True  # the engine's own queue is for one
        # whoever comes next finds no more than about one slice in front
        depth = job.slice_sent_tokens
        ahead = max(0.0, pool.timeline.free_at(now) - now) + pool.costs.prefill_seconds(end - depth, depth)
        return ahead > pool.slicing.compute_seconds

    def _shorts_cramped(self) -> bool:
        """Will the next few shorts find no room, unless some of those that run end before?"""
        pool = self.pool
        running = sum(1 for job in pool.jobs.values() if not job.long)
        return pool.short_room_tokens * running < CRAMPED_SHORTS * pool.short_tokens

    def next_slice(self, now: float) -> int | None:
        """How far the prefill under way should go next: the end of a slice, or of the whole prompt.

        0 means that the request itself should follow now; None that there is nothing to send yet.
        """
        pool, job = self.pool, self.pool.sliced
        if job is None or not pool.up or now < pool.hold_until:
            return None
        end = None if job.unsliceable else pool.slicing.next_end(job, pool.facts, now)
        if end is not None:
            if not pool.slice_fits(end - job.slice_sent_tokens):
                return None
            if self._take_turns(job, end, now):
                return None
            if job.slice_ends and not job.sliced_tokens:
                return None  # until one was answered nothing says that the first has begun
            ahead = pool.slicing.overhead_seconds(end)
            return end if pool.timeline.open_for_long(ahead, now) else None
        if job.ids_tokens is None and not job.unsliceable:
            return None
        ahead = pool.timeline.tokenize_seconds(job)
        return 0 if not pool.timeline.busy or now >= pool.timeline.free_at(now) - ahead else None
