"""What the scheduler says of its load, and how rarely it does."""

from collections import deque

from proxy.simulator.jobs import EngineConfig, LoadSnapshot
from proxy.simulator.scheduler import PrefillStep, Scheduler

# SGLang publishes its load after every prefill step and every this many decode steps.
PUBLISH_DECODE_STEPS = 15
HIT_RATE_WINDOW_SECONDS = 15.0


class Publisher:
    """The load as last published, and the counters in it."""

    def __init__(self, config: EngineConfig, scheduler: Scheduler, now: float) -> None:
        self._config = config
        self._scheduler = scheduler
        self._decode_steps = 0
        self._prefill_tokens = 0
        self._prefill_seconds = 0.0
        self._hits: deque[tuple[float, int, int]] = deque()
        self.latest = self._snapshot(now)

    @property
    def silent_decodes(self) -> int:
        """Decode steps before the one that publishes."""
        return PUBLISH_DECODE_STEPS - 1 - self._decode_steps

    def prefilled(self, step: PrefillStep, now: float) -> None:
        """A prefill step ran; its requests are where they were."""
        self._prefill_tokens += step.batch.tokens
        self._prefill_seconds += step.seconds
        self._hits.append((now, step.batch.hit_tokens, step.batch.tokens))
        self.publish(now)

    def decoded(self, steps: int, now: float) -> None:
        """So many decode steps ran."""
        self._decode_steps += steps
        if self._decode_steps >= PUBLISH_DECODE_STEPS:
            self.publish(now)

    def publish(self, now: float) -> None:
        """Say what is."""
        self.latest = self._snapshot(now)
        self._decode_steps = 0

    def _snapshot(self, now: float) -> LoadSnapshot:
        scheduler, kv = self._scheduler, self._scheduler.kv
        hit_rate = self._hit_rate(now)
        running = len(scheduler.running)
        decoding = running > 0 and scheduler.chunked is None
        lengths = sum(job.length for job in scheduler.running)
        return LoadSnapshot(
            at=now,
            running=running,
            waiting=len(scheduler.waiting),
            waiting_uncached_tokens=scheduler.waiting_uncached_tokens(hit_rate),
            used_tokens=kv.used,
            total_tokens=kv.used + sum(job.length for job in scheduler.waiting),
            available_tokens=kv.available,
            evictable_tokens=kv.evictable,
            prefill_tokens_total=self._prefill_tokens,
            prefill_busy_seconds_total=self._prefill_seconds,
            new_token_ratio=scheduler.ratio,
            retractions_total=scheduler.retractions,
            cache_hit_rate=hit_rate,
            decode_tokens_per_second=running / self._config.pace.decode(lengths, running)
            if decoding
            else 0.0,
        )

    def _hit_rate(self, now: float) -> float:
        while self._hits and self._hits[0][0] <= now - HIT_RATE_WINDOW_SECONDS:
            self._hits.popleft()
        hit = sum(hit for _, hit, _ in self._hits)
        total = hit + sum(computed for _, _, computed in self._hits)
        return hit / total if total else 0.0
