"""Which pool takes a request: who serves its model, where it fits, where it costs least time.

Least time is the predicted wait and the prefill of what is not cached there: so a conversation
stays where it is resident until waiting for that pool costs more than prefilling it elsewhere.
Pools of the tier `long` are the place for long prompts, the others for all else. Either may
spill over: a short prompt into an idle long pool to save SPILL_SECONDS, a long one into the
others only when it would be refused otherwise, since it makes everybody else there wait.
"""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice

from proxy.admission import refusal
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.residency import Conversations
from proxy.admission.types import Reason, Request

LONG_TIER = "long"
SPILL_SECONDS = 2.0  # about what a short's few thousand tokens cost the long prompts there
EXACT_LINES = 8  # predicted one by one; with more, those with the least work before it
STEAL_SECONDS = 0.5  # a queued job moves only for a clear gain: predictions waver
STEAL_SCAN = 4  # of each lane, first in line: those behind wait for these


class Router:
    """Chooses among the lines of one controller. `limits` may be replaced."""

    def __init__(self, lines: Mapping[str, Line], conversations: Conversations, limits: Limits) -> None:
        self.limits = limits
        self.unseen: set[str] = set()  # backends that have not said yet what they serve
        self.retired: set[str] = set()  # models of pools that were taken away: nobody else's name
        self._lines = lines
        self._conversations = conversations

    def choose(self, job: Job, now: float) -> Line | None:
        """The line that has `job` done first; None when no open pool can ever take it."""
        request = job.request
        serving = [line for line in self._serving(request) if line.pool.open]
        able = [line for line in serving if refusal.limit_exceeded(line.pool, request) is None]
        if len(able) <= 1:
            return able[0] if able else None
        known = job.conversation or self._conversations.find(request)
        home = known.pool if known is not None else ""
        if len(able) > EXACT_LINES:
            at_home = [line for line in able if line.pool.name == home]
            least = nsmallest(EXACT_LINES, able, key=lambda line: self._guess(line, job, home))
            able = at_home + least
        return min(able, key=lambda line: self._rank(line, job, home, now))

    def obstacle(self, request: Request) -> Reason:
        """Why no open pool takes `request`."""
        if not any(line.pool.open for line in self._lines.values()):
            return Reason.NO_BACKEND
        serving = self._serving(request)
        if not serving:
            expected = (
                self.unseen
                or request.pinned_pool
                or any(request.model in line.pool.facts.models for line in self._lines.values())
            )
            return Reason.NO_BACKEND if expected else Reason.MODEL_NOT_FOUND
        closed = [line.pool for line in serving if not line.pool.open]
        comes_back = any(refusal.limit_exceeded(pool, request) is None for pool in closed)
        if comes_back or len(closed) == len(serving):
            return Reason.NO_BACKEND
        return Reason.CONTEXT_LENGTH_EXCEEDED

    def roomiest(self, request: Request) -> Line | None:
        """Of the open pools that serve it, the one that takes the longest prompts."""
        serving = [line for line in self._serving(request) if line.pool.open]
        return max(serving, key=lambda line: line.pool.max_prompt_tokens, default=None)

    def stealable(self, line: Line, now: float) -> Iterator[Job]:
        """Jobs queued elsewhere that would be done sooner by `line`, which has nothing to do."""
        pool = line.pool
        if (
            not pool.open
            or len(line)
            or pool.timeline.busy
            or pool.sliced is not None
            or now < pool.hold_until
        ):
            return
        for other in self._lines.values():
            if other is line or not len(other):
                continue
            for queue in (other.shorts, other.longs):
                for job in list(islice(queue.in_order(), STEAL_SCAN)):
                    if self._better(line, other, job, now):
                        yield job

    # --- inside --------------------------------------------------------------------------------

    def _better(self, line: Line, own: Line, job: Job, now: float) -> bool:
        request = job.request
        if refusal.limit_exceeded(line.pool, request) is not None:
            return False
        if line not in self._serving(request):
            return False
        home = job.conversation.pool if job.conversation is not None else ""
        here, idle = self._cost(line, job, home, now)
        return idle and here + STEAL_SECONDS < self._cost(own, job, home, now)[0]

    def _rank(self, line: Line, job: Job, home: str, now: float) -> tuple[float, bool, int, int]:
        pool = line.pool
        cost, _ = self._cost(line, job, home, now)
        return round(cost, 2), pool.name != home, pool.effective_tokens, pool.running_slots

    def _guess(self, line: Line, job: Job, home: str) -> tuple[bool, float, int]:
        """A cheap rank: is there room, how much prefill is before it and its own, what is taken."""
        pool = line.pool
        tokens = pool.uncached_tokens(job) + pool.backlog_tokens + line.waiting_tokens
        seconds = tokens / max(1.0, pool.costs.tokens_per_second) + self._detour_seconds(line, job, home)
        return len(line) > 0 or pool.free_tokens < job.prompt_tokens, seconds, pool.effective_tokens

    def _cost(self, line: Line, job: Job, home: str, now: float) -> tuple[float, bool]:
        """Seconds until its first token there, detour included; and whether it could start at once."""
        pool, lane = line.pool, job.lane
        if job.pool != pool.name:  # a job's lane is that of the line it is in
            job.lane = line.lane_of(job)
        idle = not len(line) and not pool.timeline.busy and pool.fits(job, line.reserve_of(job))
        wait = 0.0 if idle else line.predicted_wait(job, now)
        job.lane = lane
        prefill = pool.costs.prefill_seconds(pool.uncached_tokens(job))
        return wait + prefill + self._detour_seconds(line, job, home), idle

    def _detour_seconds(self, line: Line, job: Job, home: str) -> float:
        """What going to `line` has to save, since it is meant for others."""
        least = self.limits.long_tier_tokens
        long = least is not None and job.prompt_tokens >= least
        set_aside = line.pool.facts.tier == LONG_TIER
        if long == set_aside or (set_aside and line.pool.name == home):
            return 0.0
        return SPILL_SECONDS if set_aside else job.request.wait_limit_seconds

    def _serving(self, request: Request) -> list[Line]:
        """The lines for a request, those that are down included."""
        if request.pinned_pool:
            line = self._lines.get(request.pinned_pool)
            return [] if line is None or line.pool.leaving else [line]
        return self._naming(request.model)

    def _naming(self, model: str) -> list[Line]:
        """The lines for `model`.

        SGLang serves any name as its own. So does a server that reports none; and so do all, while
        it is certain that they serve the same model, and `strict_models` is off.
        """
        lines = [line for line in self._lines.values() if not line.pool.leaving]
        if not model:
            return lines
        base = model.partition(":")[0]  # "model:adapter", as SGLang names LoRA adapters
        named = [line for line in lines if model in line.pool.facts.models]
        named = named or [line for line in lines if base in line.pool.facts.models]
        if named or model in self.retired:
            return named
        nameless = [line for line in lines if not line.pool.facts.models]
        if nameless:
            return nameless
        different = len({frozenset(line.pool.facts.models) for line in self._lines.values()}) > 1
        return [] if self.limits.strict_models or different or self.unseen else lines
