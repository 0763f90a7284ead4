"""Who waits for one pool: its two lanes, which of them a job belongs to, and how long it will wait there."""

from collections.abc import Iterator
from itertools import islice

from proxy.admission.forecast import QUEUE_EXACT, Forecast
from proxy.admission.job import Job, State
from proxy.admission.limits import Limits
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges, FairQueue
from proxy.admission.reservation import Reservation
from proxy.admission.types import Lane

MIN_TELLING_SECONDS = 1.0  # shorter predictions are right or wrong by a tick
QUEUE_ROUGH = 6  # longs that a rough wait simulates one by one
BIAS_WEIGHT = 0.1
BIAS_MOST = 2.0


class Waiting:
    """The lanes of one pool. `Line` says who of them goes next."""

    def __init__(self, pool: Pool, limits: Limits, reservation: Reservation, charges: Charges) -> None:
        self.pool = pool
        self.shorts = FairQueue(charges)
        self.longs = FairQueue(charges)
        self.bias = 1.0  # of forecasts: actual waits over predicted ones, lately
        self._forecast = Forecast(pool, reservation)
        self._predicted: tuple[tuple[object, ...], float] = ((), 0.0)  # the last one, and what it rests on
        self._charges = charges
        self._limits = limits
        self._reservation = reservation

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on."""
        self._limits = limits
        self.pool.adopt(limits)

    def __len__(self) -> int:
        return self.shorts.requests + self.longs.requests

    @property
    def waiting_tokens(self) -> int:
        return self.shorts.tokens + self.longs.tokens

    def queue_of(self, job: Job) -> FairQueue:
        return self.longs if job.long else self.shorts

    def push(self, job: Job, *, front: bool = False) -> None:
        self.queue_of(job).push(job, front=front)

    def remove(self, job: Job) -> None:
        self.queue_of(job).remove(job)

    def jobs(self) -> Iterator[Job]:
        yield from self.shorts.in_order()
        yield from self.longs.in_order()

    def position(self, job: Job) -> int:
        """How many of its lane are before it."""
        return self.queue_of(job).position(job)

    # --- classification ------------------------------------------------------------------------

    def lane_of(self, job: Job) -> Lane:
        """By what the job would cost here: its uncached prompt, then its whole need.

        A short prefill that needs more room than shorts have queues with the longs: first fit
        would pass it for ever.
        """
        pool, cheap_tokens = self.pool, self._limits.short_prefill_tokens
        cheap = pool.uncached_tokens(job) <= cheap_tokens
        if cheap and pool.private_tokens(job) <= max(cheap_tokens, pool.express_tokens):
            return Lane.SHORT
        need = pool.need_tokens(job, self.reserve_of(job))
        return Lane.GIANT if pool.is_giant(need) else Lane.LONG

    def reserve_of(self, job: Job) -> int:
        return self._reservation.reserve_tokens(job.request) * job.request.sequences

    # --- prediction ----------------------------------------------------------------------------

    def waited(self, job: Job, waited_seconds: float) -> None:
        """A job has been sent that a forecast was made for when it came."""
        predicted = job.predicted_wait_seconds
        if predicted < MIN_TELLING_SECONDS:
            return
        ratio = min(BIAS_MOST, waited_seconds / (predicted / self.bias))
        self.bias += BIAS_WEIGHT * (max(1 / BIAS_MOST, ratio) - self.bias)

    def predicted_wait(self, job: Job, now: float) -> float:
        """Seconds until `job` would be sent; it may be queued already or not."""
        others = len(self) - (job.state is State.QUEUED and job.pool == self.pool.name)
        rests_on = job.rid, job.lane, now, self.pool.version, others, self._charges.version
        if self._predicted[0] != rests_on:
            self._predicted = rests_on, self._forecast_wait(job, now)
        return self.bias * self._predicted[1]

    def _forecast_wait(self, job: Job, now: float) -> float:
        queue = self.queue_of(job)
        position = queue.position(job)
        if job.long:
            ahead = list(islice(self.longs.in_order(), min(position, QUEUE_EXACT)))
            return self._forecast.long_wait(job, ahead, position, now)
        waits_here = job.state is State.QUEUED and job.pool == self.pool.name
        others, tokens = len(queue), queue.tokens
        if waits_here:
            others, tokens = others - 1, max(0, tokens - job.request.prompt_tokens)
        tokens_ahead = tokens * position // max(1, others)
        return self._forecast.short_wait(job, position, tokens_ahead, now)

    def rough_wait(self, now: float, *, long: bool) -> float:
        """Seconds that one more like those of a lane would wait behind all of them, roughly."""
        pool, queue = self.pool, self.longs if long else self.shorts
        head = queue.head()
        if head is None:
            return pool.backlog_tokens / max(1.0, pool.costs.tokens_per_second)
        if long:
            ahead = list(islice(queue.in_order(), QUEUE_ROUGH))
            return self.bias * self._forecast.long_wait(head, ahead, len(queue), now)
        return self.bias * self._forecast.short_wait(head, len(queue), queue.tokens, now)
