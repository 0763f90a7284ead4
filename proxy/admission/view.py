"""Looks at a controller without changing it: what `/admission/status` and `/admission/explain` show."""

from dataclasses import dataclass, field

from proxy.admission import refusal
from proxy.admission.controller import Controller
from proxy.admission.job import Job, State
from proxy.admission.line import Line
from proxy.admission.types import Lane, Reason, Request


@dataclass(frozen=True, slots=True)
class ResidentView:
    """One request that holds a place in a pool."""

    rid: str
    lane: Lane
    state: str
    tenant: str
    prompt_tokens: int
    committed_tokens: int
    generated_tokens: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class WaitingView:
    """One queued request; `position` counts those of its lane before it."""

    rid: str
    lane: Lane
    tenant: str
    prompt_tokens: int
    position: int
    waited_seconds: float
    predicted_wait_seconds: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """The ledgers of one pool in tokens."""

    name: str
    up: bool
    pool_tokens: int
    budget_tokens: int
    committed_tokens: dict[Lane, int]
    held_tokens: int
    held_contexts: int
    foreign_tokens: int
    free_tokens: int
    backlog_tokens: int
    engine_tokens: int
    running_slots: int
    max_running_requests: int | None
    gate_closed: bool
    prefill_tokens_per_second: float | None
    seconds_per_decode_token: float
    long_prefill_ends_in_seconds: float | None
    tier: str = "default"
    leaving: bool = False  # it takes nothing new, and will be gone when what runs there has ended
    resident: list[ResidentView] = field(default_factory=list)
    waiting: list[WaitingView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen to a request if it came now."""

    decision: str  # "admit", "queue", "refuse"
    lane: Lane | None
    pool: str | None
    reason: Reason | None
    needed_tokens: int
    free_tokens: int
    limit_tokens: int | None
    predicted_wait_seconds: float
    predicted_prefill_seconds: float
    queue_position: int
    in_the_way: list[str]


def pool_view(line: Line, now: float, *, most_waiting: int = 100) -> PoolView:
    """One pool and its line. Predictions are made for the first `most_waiting` of each lane."""
    pool = line.pool
    free_at = pool.timeline.free_at(now)
    return PoolView(
        name=pool.name,
        up=pool.up,
        pool_tokens=pool.facts.pool_tokens,
        budget_tokens=pool.budget_tokens,
        committed_tokens=pool.committed_by_lane(),
        held_tokens=pool.held_tokens,
        held_contexts=len(pool.holds),
        foreign_tokens=pool.foreign_tokens,
        free_tokens=pool.free_tokens,
        backlog_tokens=pool.backlog_tokens,
        engine_tokens=round(pool.engine_tokens),
        running_slots=pool.running_slots,
        max_running_requests=pool.facts.max_running_requests,
        gate_closed=line.gate.closed(now),
        prefill_tokens_per_second=pool.costs.tokens_per_second if pool.costs.known else None,
        seconds_per_decode_token=pool.costs.seconds_per_decode_token,
        long_prefill_ends_in_seconds=max(0.0, free_at - now) if pool.timeline.busy else None,
        tier=pool.facts.tier,
        leaving=pool.leaving,
        resident=[_resident(line, job, now) for job in pool.jobs.values()],
        waiting=_waiting(line, now, most_waiting),
    )


def explain(controller: Controller, request: Request, now: float) -> Explanation:
    """Walk the decision for `request` without admitting it."""
    job = Job(request, now, now + request.wait_limit_seconds, Lane.SHORT, request.prompt_tokens)
    line = None if controller.draining else controller.route(job, now)
    if line is None:
        reason = Reason.DRAINING if controller.draining else controller.router.obstacle(request)
        most = controller.router.roomiest(request)
        if most is None or reason is not Reason.CONTEXT_LENGTH_EXCEEDED:
            return Explanation(
                "refuse", None, None, reason, request.prompt_tokens, 0, None, 0.0, 0.0, 0, [str(reason)]
            )
        roomiest = most.pool
        limit = refusal.limit_exceeded(roomiest, request)
        return Explanation(
            "refuse",
            most.lane_of(job),
            None,
            Reason.CONTEXT_LENGTH_EXCEEDED,
            request.prompt_tokens,
            roomiest.free_tokens,
            limit,
            0.0,
            0.0,
            0,
            [f"the prompt is longer than the {limit} tokens that any pool takes"],
        )
    job.lane = line.lane_of(job)
    pool, reserve = line.pool, line.reserve_of(job)
    wait, obstacles = 0.0, line.obstacles(job, now)
    refused: Reason | None = None
    if obstacles:
        wait = max(0.01, line.predicted_wait(job, now))
        if controller.is_hopeless(job, line, wait):
            refused = Reason.WOULD_MISS_DEADLINE
    if obstacles and controller.queue_full(job):
        refused = Reason.QUEUE_FULL
        obstacles = [*obstacles, "the queue is full"]
    return Explanation(
        decision="refuse" if refused else "queue" if obstacles else "admit",
        lane=job.lane,
        pool=pool.name,
        reason=refused,
        needed_tokens=pool.need_tokens(job, reserve),
        free_tokens=pool.free_tokens,
        limit_tokens=None,
        predicted_wait_seconds=wait,
        predicted_prefill_seconds=pool.timeline.prefill_seconds(job, pool.uncached_tokens(job)),
        queue_position=line.position(job),
        in_the_way=obstacles,
    )


def _resident(line: Line, job: Job, now: float) -> ResidentView:
    return ResidentView(
        rid=job.rid,
        lane=job.lane,
        state=State(job.state).value,
        tenant=job.request.tenant,
        prompt_tokens=job.prompt_tokens,
        committed_tokens=line.pool.own_tokens(job),
        generated_tokens=job.generated_tokens,
        age_seconds=now - job.dispatched_at,
    )


def _waiting(line: Line, now: float, most: int) -> list[WaitingView]:
    rows: list[WaitingView] = []
    for queue in (line.shorts, line.longs):
        for position, job in enumerate(queue.in_order()):
            if position >= most:
                break
            rows.append(
                WaitingView(
                    job.rid,
                    job.lane,
                    job.request.tenant,
                    job.prompt_tokens,
                    position,
                    now - job.arrived_at,
                    line.predicted_wait(job, now),
                )
            )
    return rows
