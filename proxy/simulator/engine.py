"""A model of SGLang's scheduler on a virtual clock.

It does what `Scheduler.event_loop_normal` of SGLang 0.5.23 does, step by step: take in what arrived,
prefill if anything may be prefilled, else decode, and throw requests back when the pool is full. It
shares nothing with the admission controller, and is checked against the real server.
"""

import math
from heapq import heappop, heappush
from itertools import count
from typing import Any

from proxy.simulator.jobs import (
    DuplicateRid,
    Ended,
    EndReason,
    EngineConfig,
    EngineEvent,
    Job,
    LoadSnapshot,
    PromptTooLong,
    Started,
)
from proxy.simulator.prompt import Prompt
from proxy.simulator.publishing import Publisher
from proxy.simulator.scheduler import DecodeStep, PrefillStep, Scheduler


class Engine:
    """One server. Time moves only in `advance`; `submit` and `abort` happen at `now`."""

    def __init__(self, config: EngineConfig | None = None, *, now: float = 0.0) -> None:
        self.config = config or EngineConfig()
        self.now = now
        self.scheduler = Scheduler(self.config)
        self._live: dict[str, Job] = {}
        self._tokenizing: list[tuple[float, int, Job]] = []
        self._reading_until = now
        self._order = count()
        self._step: PrefillStep | DecodeStep | None = None
        self._step_ends = now
        self._aborts: list[str] = []
        self._events: list[EngineEvent] = []
        self._publisher = Publisher(self.config, self.scheduler, now)

    # --- what clients do -------------------------------------------------------------------------

    def submit(
        self,
        rid: str,
        prompt: Prompt,
        *,
        output_tokens: int,
        max_new: int | None = None,
        ignore_eos: bool = False,
        output_key: Any = None,
        delay_seconds: float | None = None,
    ) -> None:
        """Send a request; reading it takes `delay_seconds`, by default those of tokenizing, and comes first.

        `output_tokens` is where its end would come by itself, `max_new` what it asks for at most.
        Raises PromptTooLong and DuplicateRid.
        """
        config = self.config
        if rid in self._live:
            raise DuplicateRid(rid)
        if prompt.tokens >= config.context_tokens:
            raise PromptTooLong(prompt.tokens, config.context_tokens, of_pool=False)
        if prompt.tokens > config.max_request_tokens:
            raise PromptTooLong(prompt.tokens, config.max_request_tokens, of_pool=True)
        fitting = min(config.context_tokens, config.pool_tokens) - prompt.tokens - 2
        clipped = max(0, fitting if max_new is None else min(max_new, fitting))
        key = ("output of", rid) if output_key is None else output_key
        job = Job(rid, prompt, clipped, output_tokens, ignore_eos, key)
        self._live[rid] = job
        seconds = prompt.tokens * config.tokenize_token_seconds if delay_seconds is None else delay_seconds
        heappush(self._tokenizing, (self._read_by(seconds), next(self._order), job))

    def _read_by(self, seconds: float) -> float:
        """When a request that takes so long to read is with the scheduler: one after the other is read."""
        if seconds == 0:
            return self.now
        self._reading_until = max(self.now, self._reading_until) + seconds
        return self._reading_until

    def abort(self, rid_prefix: str) -> None:
        """End every request whose id starts so. What still is being tokenized is missed, as on SGLang."""
        self._aborts.append(rid_prefix)

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; refused while anything runs or waits."""
        if self._live:
            return False
        self.scheduler.kv.flush()
        return True

    # --- what they see ---------------------------------------------------------------------------

    def load(self) -> LoadSnapshot:
        """The load as last published."""
        return self._publisher.latest

    def generated(self) -> dict[str, int]:
        """Output tokens so far of all requests that have any."""
        return {job.rid: job.generated for job in self._live.values() if job.generated}

    @property
    def unfinished(self) -> int:
        """Requests sent and not ended."""
        return len(self._live)

    @property
    def expecting(self) -> bool:
        """Whether the step under way may lead to a first token."""
        return isinstance(self._step, PrefillStep) or bool(self.scheduler.waiting or self._tokenizing)

    def next_due(self) -> float | None:
        """When something may change next; None while nothing is on its way."""
        times = [self._step_ends] if self._step is not None else []
        if self._tokenizing:
            times.append(self._tokenizing[0][0])
        if self._step is None and (self._aborts or self.scheduler.busy):
            times.append(self.now)
        return min(times, default=None)

    def advance(self, to: float) -> list[EngineEvent]:
        """Move time on to `to`, or to the first moment before it when something happened; returns that."""
        while not self._events:
            if self._step is not None:
                if self._step_ends > to:
                    self.now = to
                    break
                self._finish_step()
            self._take_in()
            if self._events or self._start_step(to):
                continue
            if self._events:
                break
            arrival = self._tokenizing[0][0] if self._tokenizing else math.inf
            self.now = max(self.now, min(to, arrival))
            self._publisher.publish(self.now)
            if arrival > to:
                break
        events, self._events = self._events, []
        return events

    # --- the loop --------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """What the scheduler reads between two steps: new requests and aborts."""
        scheduler = self.scheduler
        while self._tokenizing and self._tokenizing[0][0] <= self.now:
            _, _, job = heappop(self._tokenizing)
            job.entered_at = self.now
            limit = self.config.max_queued_requests
            if limit is not None and len(scheduler.waiting) + 1 > limit:
                self._end(job, EndReason.QUEUE_FULL)
            else:
                scheduler.waiting.append(job)
        for prefix in self._aborts:
            for job in scheduler.abort(prefix):
                self._end(job, EndReason.ABORT)
        self._aborts.clear()

    def _start_step(self, to: float) -> bool:
        """Begin the next step; False when there is nothing to do."""
        scheduler = self.scheduler
        for job in scheduler.drop_aborted_chunk():
            self._end(job, EndReason.ABORT)
        step = scheduler.next_step(self.now, self._events)
        for event in self._events:
            if isinstance(event, Ended):
                self._live.pop(event.rid, None)
        if isinstance(step, DecodeStep) and not self._events:
            step = self._leap(step, to)
        self._step = step
        self._step_ends = self.now + (step.seconds if step is not None else 0.0)
        return step is not None

    def _leap(self, step: DecodeStep, to: float) -> DecodeStep:
        """Do at once all decode steps that no arrival, end, full pool or publication can disturb."""
        arrival = self._tokenizing[0][0] if self._tokenizing else math.inf
        most = min(self.scheduler.quiet_decodes(), self._publisher.silent_decodes)
        steps, ends, tokens = 0, self.now, step.tokens
        while steps < most:
            ends += self.config.pace.decode(tokens, step.requests)
            if ends > to or ends >= arrival:
                break
            self.now = ends
            tokens += step.requests
            steps += 1
        if steps == 0:
            return step
        self._publisher.decoded(steps, self.now)
        return self.scheduler.leap(steps)

    def _finish_step(self) -> None:
        step = self._step
        assert step is not None
        self.now, self._step = self._step_ends, None
        if isinstance(step, PrefillStep):
            self._publisher.prefilled(step, self.now)
            first, ended = self.scheduler.prefilled(step)
            self._events += [Started(self.now, job.rid, job.cached or 0) for job in first]
        else:
            self._publisher.decoded(1, self.now)
            ended = self.scheduler.decoded(step)
        for job in ended:
            self._end(job, EndReason.ABORT if job.aborting else job.end_reason)

    def _end(self, job: Job, reason: EndReason) -> None:
        self._live.pop(job.rid, None)
        self._events.append(
            Ended(self.now, job.rid, reason, job.prompt.tokens, job.generated, job.cached or 0)
        )
