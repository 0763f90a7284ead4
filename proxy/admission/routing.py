"""Which pool takes a request: who serves its model, where it fits, where it costs least time.

Least time is the predicted wait and the prefill of what is not cached there: so a conversation
stays where it is resident until waiting for that pool costs more than prefilling it elsewhere.
Pools of the tier `long` are the place for long prompts, the others for all else. Either may
spill over: a short prompt into an idle long pool to save SPILL_SECONDS, a long one into the
others only when it would be refused otherwise, since it makes everybody else there wait.
"""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from math import inf

from proxy.admission import refusal
from proxy.admission.fleet import FEW_LINES, Fleet, Kind
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.residency import Conversations
from proxy.admission.types import Reason, Request

Candidates = list[tuple[float, int, Line]]  # seconds, roughly; and a number that tells any two apart

LONG_TIER = "long"
SPILL_SECONDS = 2.0  # about what a short's few thousand tokens cost the long prompts there
CLOSE_LINES = (3, 1)  # of many lines, predicted one by one for a short, and for a long: the best, roughly,
PREFIX_LINES = 2  # and so many of those that have its prefix
STEAL_SECONDS = 0.5  # a queued job moves only for a clear gain: predictions waver
STEAL_SCAN = 4  # of each lane, first in line: those behind wait for these
STEAL_LOOK_SECONDS = 0.25  # of many lines: how long one that found nothing does not look again
MODELS_KEPT = 256  # names as clients write them: there may be any number


class Router:
    """Chooses among the lines of one controller. `limits` may be replaced."""

    def __init__(self, fleet: Fleet, conversations: Conversations, limits: Limits) -> None:
        self.limits = limits
        self.unseen: set[str] = set()  # backends that have not said yet what they serve
        self.retired: set[str] = set()  # models of pools that were taken away: nobody else's name
        self._fleet = fleet
        self._lines = fleet.lines
        self._conversations = conversations
        self._named: dict[str, _Serving] = {}  # what `_naming` has found, as long as the fleet is as it was
        self._named_version = -1
        self._look_again_at: dict[str, float] = {}  # when a pool without work may try to steal again

    def choose(self, job: Job, now: float) -> Line | None:
        """The line that has `job` done first; None when no open pool can ever take it."""
        serving = self._serving(job.request)
        if len(serving.lines) > FEW_LINES:
            return self._choose_of_many(serving, job, now)
        able = [line for line in serving.lines if takes(line, job.request)]
        if len(able) <= 1:
            return able[0] if able else None
        home = self._home(job)
        return min(able, key=lambda line: self._rank(line, job, home, now))

    def _choose_of_many(self, serving: "_Serving", job: Job, now: float) -> Line | None:
        """Predicts for those only that have the least to do, that it was at last, or that have its prefix."""
        self._fleet.rank(now)
        home = self._home(job)
        kinds = [kind for kind in self._fleet.kinds if kind.models in serving.models]
        long = job.prompt_tokens > self.limits.short_prefill_tokens
        first: Candidates = []
        full: Candidates = []
        for kind in kinds:
            self._add_soonest(kind, long, job, now, first, full)
        most = CLOSE_LINES[long]
        found = [line for _, _, line in sorted(first)[:most] + sorted(full)[:most]]
        at_home = self._lines.get(home)
        if at_home is not None and serving.has(at_home) and takes(at_home, job.request):
            found.insert(0, at_home)
        if job.request.segments:
            found += self._having_prefix(serving, job, home)
        return min(dict.fromkeys(found), key=lambda line: self._rank(line, job, home, now), default=None)

    def _add_soonest(
        self, kind: Kind, long: bool, job: Job, now: float, first: Candidates, full: Candidates
    ) -> None:
        """Of one kind those that may have it done first; and, while none has room, those that soon will."""
        request, tokens = job.request, job.prompt_tokens
        none_yet = len(full)
        most = CLOSE_LINES[long]
        roomy = waiting = 0
        for (queued, at, taken, number), line in self._fleet.soonest(kind, long=long):
            if not takes(line, request):
                continue
            pool = line.pool
            own = tokens / max(1.0, pool.costs.tokens_per_second)
            candidate = max(0.0, at - now) + own + self._detour_seconds(line, job, ""), number, line
            if not queued and pool.budget_tokens - taken < tokens:
                if len(full) < none_yet + most:
                    full.append(candidate)
                continue
            first.append(candidate)
            roomy, waiting = roomy + (not queued), waiting + queued
            if most in (roomy, waiting):
                break
        if roomy:
            del full[none_yet:]

    def _having_prefix(self, serving: "_Serving", job: Job, home: str) -> list[Line]:
        """Those that save most by it, of those with short waits that have the start of its prompt."""
        first = job.request.segments[0]
        having = [line for line in serving.lines if line.pool.has(first) and takes(line, job.request)]
        soonest = nsmallest(FEW_LINES, having, key=lambda line: self._fleet.standing(line, long=False))
        return nsmallest(PREFIX_LINES, soonest, key=lambda line: self._guess(line, job, home))

    def obstacle(self, request: Request) -> Reason:
        """Why no open pool takes `request`."""
        if not any(line.pool.open for line in self._lines.values()):
            return Reason.NO_BACKEND
        serving = self._serving(request).lines
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

    def may_come(self, request: Request) -> bool:
        """No open pool takes `request`: may one come (back) that does? Not one that was let go."""
        let_go = request.pinned_pool and not self._serving(request).lines
        return not let_go and self.obstacle(request) is Reason.NO_BACKEND

    def roomiest(self, request: Request) -> Line | None:
        """Of the open pools that serve it, the one that takes the longest prompts."""
        serving = [line for line in self._serving(request).lines if line.pool.open]
        return max(serving, key=lambda line: line.pool.max_prompt_tokens, default=None)

    def models(self, request: Request) -> frozenset[tuple[str, ...]]:
        """What the servers that `request` may go to serve."""
        return self._serving(request).models

    def servers(self, job: Job) -> int:
        """How many pools `job` and its like are served by at once; 1 where it would go to others' only."""
        able = [line for line in self._serving(job.request).lines if takes(line, job.request)]
        return sum(not self._detour_seconds(line, job, "") for line in able) or 1

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
        few = self._fleet.few
        if not few and now < self._look_again_at.get(pool.name, -inf):
            return
        for other in self._lines.values() if few else self._fleet.latest():
            if other is line or not len(other):
                continue
            for queue in (other.shorts, other.longs):
                for job in list(islice(queue.in_order(), STEAL_SCAN)):
                    if self._better(line, other, job, now):
                        yield job
        self._look_again_at[pool.name] = now + STEAL_LOOK_SECONDS

    # --- inside --------------------------------------------------------------------------------

    def _home(self, job: Job) -> str:
        """The pool that has its conversation."""
        known = job.conversation or self._conversations.find(job.request)
        return known.pool if known is not None else ""

    def _better(self, line: Line, own: Line, job: Job, now: float) -> bool:
        request = job.request
        if not takes(line, request) or not self._serving(request).has(line):
            return False
        lane, job.lane = job.lane, line.lane_of(job)
        fits = line.pool.fits(job, line.reserve_of(job))
        job.lane = lane
        if not fits:
            return False
        home = job.conversation.pool if job.conversation is not None else ""
        return self._cost(line, job, home, now) + STEAL_SECONDS < self._cost(own, job, home, now)

    def _rank(self, line: Line, job: Job, home: str, now: float) -> tuple[float, bool, int, int]:
        pool = line.pool
        cost = self._cost(line, job, home, now)
        return round(cost, 2), pool.name != home, pool.effective_tokens, pool.running_slots

    def _guess(self, line: Line, job: Job, home: str) -> tuple[bool, float, int]:
        """A cheap rank: is there room, how much prefill is before it and its own, what is taken."""
        pool = line.pool
        tokens = pool.uncached_tokens(job) + pool.backlog_tokens + line.waiting_tokens
        seconds = tokens / max(1.0, pool.costs.tokens_per_second) + self._detour_seconds(line, job, home)
        return len(line) > 0 or pool.free_tokens < job.prompt_tokens, seconds, pool.effective_tokens

    def _cost(self, line: Line, job: Job, home: str, now: float) -> float:
        """Seconds until its first token there, detour included."""
        pool, lane = line.pool, job.lane
        if job.pool != pool.name:  # a job's lane is that of the line it is in
            job.lane = line.lane_of(job)
        idle = not len(line) and not pool.timeline.busy and pool.fits(job, line.reserve_of(job))
        wait = 0.0 if idle else line.predicted_wait(job, now)
        job.lane = lane
        prefill = pool.costs.prefill_seconds(pool.uncached_tokens(job))
        return wait + prefill + self._detour_seconds(line, job, home)

    def _detour_seconds(self, line: Line, job: Job, home: str) -> float:
        """What going to `line` has to save, since it is meant for others."""
        least = self.limits.long_tier_tokens
        long = least is not None and job.prompt_tokens >= least
        set_aside = line.pool.facts.tier == LONG_TIER
        if long == set_aside or (set_aside and line.pool.name == home):
            return 0.0
        return SPILL_SECONDS if set_aside else job.request.wait_limit_seconds

    def _serving(self, request: Request) -> "_Serving":
        """The lines for a request, those that are down included."""
        if request.pinned_pool:
            line = self._lines.get(request.pinned_pool)
            return _Serving([] if line is None or line.pool.leaving else [line])
        if self._named_version != self._fleet.version or len(self._named) > MODELS_KEPT:
            self._named.clear()
            self._named_version = self._fleet.version
        serving = self._named.get(request.model)
        if serving is None:
            serving = self._named[request.model] = _Serving(self._naming(request.model))
        return serving

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


class _Serving:
    """The lines for one name of a model."""

    __slots__ = ("lines", "models")

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.models = frozenset(line.pool.facts.models for line in lines)

    def has(self, line: Line) -> bool:
        return line in self.lines


def takes(line: Line, request: Request) -> bool:
    """Is it open for new work, and can it ever take this request?"""
    return line.pool.open and refusal.limit_exceeded(line.pool, request) is None
