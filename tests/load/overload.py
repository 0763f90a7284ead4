"""Three times what the server can do, then a third of it: who is refused, what is told, what is served."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import linear_regression

from tests.load.figures import Row, Run, inform, quantile, require
from tests.load.outcome import Outcome
from tests.load.scenario import PROXIED, Engine, Mix, Runs, Scenario, Way
from tests.load.verdicts import at_least, safety_rows, share_of
from tests.load.workload import Ask, Client, Workload, poisson_times

DEADLINE_SECONDS = 20.0
OVERLOAD, OVERLOAD_SECONDS = 3.0, 60.0
RELIEF, RELIEF_SECONDS = 0.3, 90.0
WARM_UP_SHARE = 1 / 6  # of the overload, before goodput counts
PROMPT_TOKENS, OUTPUT_TOKENS = (9_000, 23_000), 200
CAPACITY_AT_ONCE = 24  # twice what fits the pool: the engine never runs dry
CAPACITY_REQUESTS = 80
REFUSAL_SECONDS = 0.050
SAMPLE_SECONDS = 0.25
REASON_HEADER, LATE = "x-admission-reason", "deadline"


def capacity_load(mix: Mix) -> Workload:
    """The same requests as fast as the server takes them."""
    draw = mix.draw()
    count = CAPACITY_AT_ONCE + round(CAPACITY_REQUESTS * mix.scale)
    clients = tuple(Client(0.0, (_ask("batch", draw, mix),)) for _ in range(count))
    return Workload(clients, concurrency=CAPACITY_AT_ONCE)


def overload(mix: Mix, runs: Runs) -> Workload:
    """For 60 s three times, then for 90 s a third of the capacity that was measured.

    Refused clients come back when they were told to, unless told not to.
    """
    draw = mix.draw()
    per_second = capacity(runs[CAPACITY.name]) / (sum(PROMPT_TOKENS) / 2 * mix.lengths + OUTPUT_TOKENS)
    turn, relief_seconds = OVERLOAD_SECONDS * mix.scale, RELIEF_SECONDS * mix.scale
    crowd = poisson_times(draw, OVERLOAD * per_second, turn)
    few = poisson_times(draw, RELIEF * per_second, relief_seconds)
    clients = [Client(at, (_ask("overload", draw, mix),)) for at in crowd]
    clients += [Client(turn + at, (_ask("relief", draw, mix),)) for at in few]
    patience_seconds = turn + relief_seconds
    return Workload(
        tuple(clients), obey_retry_after=True, obey_should_retry=True, patience_seconds=patience_seconds
    )


def _ask(kind: str, draw: random.Random, mix: Mix) -> Ask:
    prompt = round(draw.randint(*PROMPT_TOKENS) * mix.lengths)
    return Ask(kind, prompt, OUTPUT_TOKENS, draw.getrandbits(32))


def capacity(run: Run) -> float:
    """Tokens a second, prompts and outputs, while there was always something to do."""
    ends = sorted(outcome.ended_at or 0.0 for outcome in run.outcomes if outcome.served)
    last_start = max(outcome.started_at for outcome in run.outcomes)
    return tokens_per_second(run, ends[CAPACITY_AT_ONCE // 2], last_start)


def tokens_per_second(run: Run, begins: float, ends: float) -> float:
    """Of the requests served: how steeply the sum of what they needed rises with the times of their ends.

    A fitted line, since requests end in waves: a count between two moments would hold one more or less.
    """
    done = [
        (outcome.ended_at or 0.0, outcome.want_prompt_tokens + outcome.want_output_tokens)
        for outcome in run.outcomes
        if outcome.served
    ]
    steps = round((ends - begins) / SAMPLE_SECONDS)
    times = [begins + SAMPLE_SECONDS * step for step in range(steps + 1)]
    sums = [sum(tokens for at, tokens in done if at <= time) for time in times]
    return linear_regression(times, sums).slope


def judge_overload(runs: Runs) -> list[Row]:
    most, proxied = capacity(runs[CAPACITY.name]), runs[PROXIED.name]
    turn = min(outcome.started_at for outcome in proxied.of("relief"))
    refused = [outcome for outcome in proxied.outcomes if outcome.refused]
    late = [outcome for outcome in refused if outcome.headers.get(REASON_HEADER) == LATE]
    waits = [outcome.wait_seconds or 0.0 for outcome in proxied.outcomes if outcome.served]
    kept = share_of([wait <= DEADLINE_SECONDS for wait in waits] + [False] * len(late))
    goodput = tokens_per_second(proxied, WARM_UP_SHARE * turn, turn)
    return [
        inform("requests served, refused", "", f"{len(waits)}, {len(refused)} times"),
        at_least(
            f"admitted within {DEADLINE_SECONDS:g} s",
            "",
            kept,
            0.98,
            f"{kept:.1%} of {len(waits) + len(late)}",
        ),
        inform("longest wait of the admitted", "", f"{max(waits, default=0.0):.1f} s"),
        *_refusal_rows(refused),
        _return_row(proxied, refused, turn),
        at_least(
            "goodput : capacity",
            f"{most:,.0f} tok/s",
            goodput / most,
            0.95,
            f"{goodput:,.0f} tok/s: {goodput / most:.2f}",
        ),
        *safety_rows(proxied),
    ]


def _refusal_rows(refused: Sequence[Outcome]) -> list[Row]:
    """Told at once, the counting of the prompt included; who was to wait and then could not is no such."""
    told = sorted(
        outcome.answer_seconds or 0.0 for outcome in refused if outcome.headers.get(REASON_HEADER) != LATE
    )
    p99 = quantile(told, 0.99) if told else float("inf")
    return [
        require(
            "refused after the last byte, p99",
            "",
            f"{1000 * p99:.0f} ms",
            f"<= {1000 * REFUSAL_SECONDS:g} ms",
            p99 <= REFUSAL_SECONDS,
        ),
        inform("told not to come back", "", str(sum(not outcome.may_retry for outcome in refused))),
    ]


def _return_row(run: Run, refused: Sequence[Outcome], turn: float) -> Row:
    """Those that were told to come back once the crowd had gone, and did."""
    attempts = {(outcome.client, outcome.attempt): outcome for outcome in run.outcomes}
    back = [
        attempts[again]
        for outcome in refused
        if outcome.may_retry
        and outcome.retry_at >= turn
        and (again := (outcome.client, outcome.attempt + 1)) in attempts
    ]
    share = share_of([outcome.served for outcome in back])
    return at_least(
        "back after the overload, admitted at once", "", share, 0.8, f"{share:.0%} of {len(back)}"
    )


def short_patience(_: Runs) -> Mapping[str, str]:
    """What is promised."""
    return {"PROXY_MAX_QUEUE_SECONDS": f"{DEADLINE_SECONDS:g}"}


CAPACITY = Way("capacity", build=lambda mix, _: capacity_load(mix))

OVERLOAD_SCENARIO = Scenario(
    "overload",
    "three times the measured capacity for 60 s, then a third of it for 90 s; nobody waits over 20 s",
    capacity_load,
    judge_overload,
    engine=Engine(speedup=1.0),
    settings=short_patience,
    ways=(CAPACITY, replace(PROXIED, build=overload)),
)
