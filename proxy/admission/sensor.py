"""What the load polls and the streams teach about one pool. The ledger is the sensor that counts;
a poll corrects it: foreign traffic, rates, the engine's own ratio, lost aborts, and a budget that was
too large: the engine had to retract, or lets wait what it was sent."""

from collections import deque

from proxy.admission.costs import KNOWN_AFTER_TOKENS
from proxy.admission.job import Job, State
from proxy.admission.pool import Pool
from proxy.admission.types import LoadSample

FOREIGN_DEADBAND_SHARE = 0.005  # of K: smaller differences are rounding between two clocks
FOREIGN_DEADBAND_TOKENS = 512
SETTLE_SECONDS = 0.4  # a sample may still show what was released this shortly before it was taken
DRAIN_SHOWS_TOKENS = 2048  # a smaller job cannot be told from the noise of a poll
HISTORY_TOKENS = 32_768  # what a server's totals weigh, as if that much had been seen,
HISTORY_DEPTH_TOKENS = 8192  # in the middle of prompts of this depth
# The prefill that stalls a stream comes when it begins; a mean over less than its life takes that for all.
DECODE_LOOK_TOKENS = 1024
STALE_SECONDS = 2.0  # an older sample says nothing about foreign traffic
BLOCKED_SECONDS = 2.0  # so long the engine lets a request of ours wait, and prefills nothing


class Sensor:
    """Folds observations into a pool; keeps the previous sample to take differences."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last: LoadSample | None = None
        self._foreign: deque[tuple[int, int]] = deque(maxlen=2)  # between what and what it was
        self._released: deque[tuple[float, int]] = deque(maxlen=256)
        self._blocked_since: float | None = None

    @property
    def last(self) -> LoadSample | None:
        return self._last

    def observe(self, now: float, sample: LoadSample) -> tuple[list[Job], list[Job]]:
        """Take one poll in; gives back the jobs it shows to be prefilled, and those that are gone."""
        pool, last = self._pool, self._last
        if last is not None and sample.at <= last.at:
            return [], []
        if sample.waiting_uncached_tokens is not None:
            pool.timeline.observe(sample.at, sample.waiting_uncached_tokens)
        if last is None:
            self._learn_history(sample)
        else:
            self._learn_prefill(last, sample)
            self._watch_retractions(now, last, sample)
            self._watch_queueing(now, last, sample)
        pool.raise_budget(now)
        if sample.new_token_ratio is not None:
            pool.set_engine_ratio(sample.new_token_ratio)
        self._last = sample
        if now - sample.at > STALE_SECONDS:
            return [], []
        self._watch_foreign(sample)
        return self._prefilled(sample), self._drained(sample)

    def prefilled(self, now: float, job: Job) -> None:
        """A first token came; without the server's counters it is what the rate is learnt from."""
        counters = self._last is not None and self._last.prefill_busy_seconds_total is not None
        span = self._pool.timeline.span_seconds(job, now)
        if counters or span is None:
            return
        depth = job.prompt_tokens - job.uncached_tokens / 2
        self._pool.costs.learn_prefill(job.uncached_tokens, depth, span)

    def decoded(self, now: float, job: Job, generated_tokens: int, *, ended: bool = False) -> None:
        """A look at a stream: how many tokens it has produced so far, in all when it has `ended`."""
        if job.state is not State.DECODE:
            return
        steps = (generated_tokens - job.seen_tokens) / job.request.sequences
        if steps >= (1 if ended else DECODE_LOOK_TOKENS) and now > job.seen_at:
            self._pool.costs.learn_decode(steps, now - job.seen_at, long=job.long)
            job.seen_at, job.seen_tokens = now, generated_tokens

    def released(self, now: float, tokens: int) -> None:
        """A job gave `tokens` back; polls taken before now still count them."""
        self._released.append((now, tokens))

    def _learn_history(self, sample: LoadSample) -> None:
        """The server was there before us: its totals are a mean rate, at depths nobody has told."""
        tokens, seconds = sample.prefill_tokens_total, sample.prefill_busy_seconds_total
        if tokens and seconds and tokens >= KNOWN_AFTER_TOKENS and not self._pool.costs.known:
            told = min(tokens, HISTORY_TOKENS)
            self._pool.costs.learn_prefill(told, HISTORY_DEPTH_TOKENS, seconds * told / tokens)

    def _learn_prefill(self, last: LoadSample, sample: LoadSample) -> None:
        if None in (
            last.prefill_tokens_total,
            sample.prefill_tokens_total,
            last.prefill_busy_seconds_total,
            sample.prefill_busy_seconds_total,
        ):
            return
        assert last.prefill_tokens_total is not None
        assert sample.prefill_tokens_total is not None
        assert last.prefill_busy_seconds_total is not None
        assert sample.prefill_busy_seconds_total is not None
        tokens = sample.prefill_tokens_total - last.prefill_tokens_total
        seconds = sample.prefill_busy_seconds_total - last.prefill_busy_seconds_total
        rest = sample.waiting_uncached_tokens or 0
        depth = self._pool.timeline.depth_of_first(rest)
        middle = tokens / 2 if depth is None else max(0.0, depth - tokens / 2)
        self._pool.costs.learn_prefill(tokens, middle, seconds)

    def _watch_retractions(self, now: float, last: LoadSample, sample: LoadSample) -> None:
        if last.retractions_total is None or sample.retractions_total is None:
            return
        if sample.retractions_total > last.retractions_total:
            self._pool.cut_budget(now)

    def _watch_queueing(self, now: float, last: LoadSample, sample: LoadSample) -> None:
        """What we sent waits in the engine though it prefills nothing: it has less room than we thought."""
        ours = sample.waiting and not self._pool.foreign_tokens  # else it may be theirs that waits
        if not ours or self._moves(last, sample) or not self._overdue(sample):
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = sample.at
        elif sample.at - self._blocked_since >= BLOCKED_SECONDS:
            self._pool.cut_budget(now)
            self._blocked_since = sample.at

    @staticmethod
    def _moves(last: LoadSample, sample: LoadSample) -> bool:
        """Has it prefilled anything in between?"""
        before, after = last.prefill_tokens_total, sample.prefill_tokens_total
        if before is not None and after is not None:
            return after > before
        return (sample.waiting_uncached_tokens or 0) < (last.waiting_uncached_tokens or 0)

    def _overdue(self, sample: LoadSample) -> bool:
        """Was something of ours sent long ago that has no token yet, though there was a slot for it?"""
        slots = self._pool.facts.max_running_requests
        if slots is not None and sample.running >= slots:
            return False
        return any(self._arrived_by(job, sample.at) for job in self._pool.jobs.values())

    def _watch_foreign(self, sample: LoadSample) -> None:
        """Ours is between what is surely resident and U; foreign is what lies outside both.

        A prompt in prefill is there in part, slices between two of them not at all, an aborted
        request perhaps no more. Meanwhile what was believed before stands, as far as it is possible.
        """
        pool = self._pool
        just_left = 0
        for at, tokens in reversed(self._released):
            if at <= sample.at - SETTLE_SECONDS:
                break
            just_left += tokens
        unsettled = sum(map(self._unsettled_tokens, pool.jobs.values()))
        ours = pool.used_tokens - pool.unfilled_tokens
        waiting = min(unsettled, sample.waiting_uncached_tokens or 0)
        waiting = max(0, waiting - pool.facts.chunk_tokens)  # the chunk under way is among what is used, too
        least = sample.used_tokens - ours - just_left + waiting
        self._foreign.append((least, sample.used_tokens - ours + unsettled))
        if len(self._foreign) < 2:
            return
        least, most = min(low for low, _ in self._foreign), max(high for _, high in self._foreign)
        foreign = min(max(pool.foreign_tokens, least), most)
        deadband = max(FOREIGN_DEADBAND_TOKENS, int(FOREIGN_DEADBAND_SHARE * pool.facts.pool_tokens))
        foreign = foreign if foreign > deadband else 0
        pool.foreign_history.saw(sample.at, foreign, pool.facts.pool_tokens)
        if foreign != pool.foreign_tokens:
            pool.foreign_tokens = foreign
            pool.version += 1

    def _unsettled_tokens(self, job: Job) -> int:
        """Of what U counts for a job: what may not be in the engine, or not any more."""
        if job.state is State.DECODE:
            return 0
        own = self._pool.own_tokens(job) - job.taken_tokens - job.reserve_tokens + job.generated_tokens
        return own - (self._pool.unfilled_tokens if job is self._pool.sliced else 0)

    def _prefilled(self, sample: LoadSample) -> list[Job]:
        """An answer that does not stream shows its first token at its end; the poll knows earlier."""
        if sample.waiting or sample.waiting_uncached_tokens != 0:
            return []
        return [job for job in self._pool.jobs.values() if self._arrived_by(job, sample.at)]

    def _arrived_by(self, job: Job, at: float) -> bool:
        """Was it surely at the scheduler by then, without a token so far?"""
        if job.state is not State.PREFILL:
            return False
        timeline = self._pool.timeline
        sent_at, tokenizing = timeline.request_sent_at(job), timeline.tokenize_seconds(job)
        return at > sent_at + 2 * tokenizing + SETTLE_SECONDS

    def _drained(self, sample: LoadSample) -> list[Job]:
        pool = self._pool
        draining = [job for job in pool.jobs.values() if job.state is State.DRAINING]
        gone: list[Job] = []
        occupied = sample.used_tokens + (sample.waiting_uncached_tokens or 0)
        for job in draining:
            since = job.drain_until - pool.limits.drain_seconds
            big = job.resident_tokens >= DRAIN_SHOWS_TOKENS
            others = pool.used_tokens + pool.foreign_tokens - job.resident_tokens
            if big and sample.at > since + SETTLE_SECONDS and occupied <= others + DRAIN_SHOWS_TOKENS // 2:
                gone.append(job)
        return gone
