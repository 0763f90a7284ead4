"""Conversations that share a server too small for all of their contexts."""

from dataclasses import replace
from statistics import fmean, median

from tests.load.figures import Row, Run, inform, require
from tests.load.scenario import DIRECT, PROXIED, Engine, Mix, Runs, Scenario, Way, pace_of
from tests.load.verdicts import at_least, safety_rows
from tests.load.workload import Ask, Client, Said, Workload

ENGINE = Engine(pace="rtx6000-tp2", speedup=1.0)
SECONDS = 300.0
AGENTS = 20
TURNS = 12
FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 48_000, 900, 300
THINK_SECONDS = 3.0
FAIR_SHARES_MAX = 3.0
NOTABLE_WAIT_SECONDS = 5.0  # what is shorter is noise to a forecast
FORECAST_FACTOR = 2.0

LPM = Way("lpm", policy="lpm")
UNKEYED = Way(
    "proxied, no keys",
    proxied=True,
    change=lambda workload: workload.map(lambda ask: replace(ask, session="")),
)


def agents(mix: Mix) -> Workload:
    """Twenty agents: 48K in the first turn, 900 tokens more in each later one, 300 out; 300 s long.

    Scaled down: as much shorter, and as many fewer, but 8 at least: more than the pool holds.
    """
    draw = mix.draw()
    clients = []
    for number in range(max(8, round(AGENTS * mix.scale))):
        said: tuple[Said, ...] = ()
        asks: list[Ask] = []
        prompt_tokens = 0
        for turn in range(TURNS):
            fresh, seed = (TURN_TOKENS if turn else mix.long(FIRST_TOKENS)), draw.getrandbits(32)
            prompt_tokens += fresh
            kind = "turn" if turn else "first turn"
            asks.append(
                Ask(kind, prompt_tokens, OUTPUT_TOKENS, seed, said=said, session=f"agent-{number:02d}")
            )
            said = (*said, Said(fresh, OUTPUT_TOKENS, seed))
            prompt_tokens += OUTPUT_TOKENS
        clients.append(Client(0.2 * number, tuple(asks), think_seconds=THINK_SECONDS))
    return Workload(tuple(clients), seconds=SECONDS * mix.scale)


def judge_agents(runs: Runs) -> list[Row]:
    direct, lpm, proxied, unkeyed = (runs[way.name] for way in (DIRECT, LPM, PROXIED, UNKEYED))
    forecasts = [
        max(predicted / waited, waited / max(predicted, 0.1)) for waited, predicted in _long_waits(proxied)
    ]
    off = median(forecasts) if forecasts else 1.0
    return [
        *_rate_rows("keyed", proxied, direct, lpm),
        *_rate_rows("without keys", unkeyed, direct, lpm),
        inform("turns/s, bound: resident contexts / turn cycle", "", f"{bound():.3f}"),
        *_fairness_rows("keyed", proxied, direct),
        *_fairness_rows("without keys", unkeyed, direct),
        require(
            f"forecast of waits > {NOTABLE_WAIT_SECONDS:g} s, median factor off",
            "",
            f"{off:.2f} ({len(forecasts)} waits)",
            f"<= {FORECAST_FACTOR:g}",
            off <= FORECAST_FACTOR,
        ),
        inform("turns served; CPU seconds", _served(direct), _served(proxied)),
        *safety_rows(proxied, direct),
    ]


def turns_per_second(run: Run) -> float:
    """Of whole turns, over the time in which turns ended."""
    ends = [outcome.ended_at or 0.0 for outcome in run.outcomes]
    return sum(outcome.served for outcome in run.outcomes) / max(ends)


def bound() -> float:
    """Turns a second when as many contexts as fit are always resident, none is ever computed again, and
    each of them thinks, is prefilled and decodes in turn.
    """
    pace = pace_of(ENGINE)
    added = TURN_TOKENS + OUTPUT_TOKENS
    context = FIRST_TOKENS + TURNS / 2 * added
    contexts = ENGINE.pool / context
    decode = OUTPUT_TOKENS * pace.decode_seconds(ENGINE.pool)
    return contexts / (THINK_SECONDS + pace.prefill_seconds(added, round(context)) + decode)


def _rate_rows(how: str, run: Run, direct: Run, lpm: Run) -> list[Row]:
    rate, fcfs, other = map(turns_per_second, (run, direct, lpm))
    return [
        at_least(
            f"turns/s : first come, first served ({how})", f"{fcfs:.3f}", rate / fcfs, 2.0, _times(rate, fcfs)
        ),
        at_least(f"turns/s : lpm ({how})", f"{other:.3f}", rate / other, 1.2, _times(rate, other)),
    ]


def _times(rate: float, other: float) -> str:
    return f"{rate:.3f}: {rate / other:.2f} x"


def _fairness_rows(how: str, run: Run, direct: Run) -> list[Row]:
    least = min(turns_of_each(run))
    longest = _longest_wait(run)
    fair = len(turns_of_each(run)) / turns_per_second(run)
    return [
        require(
            f"turns of the unluckiest agent ({how})",
            str(min(turns_of_each(direct))),
            str(least),
            ">= 1",
            least >= 1,
        ),
        require(
            f"longest wait ({how})",
            f"{_longest_wait(direct):.0f} s",
            f"{longest:.0f} s",
            f"<= {FAIR_SHARES_MAX:g} x {fair:.0f} s, an equal share",
            longest <= FAIR_SHARES_MAX * fair,
        ),
    ]


def turns_of_each(run: Run) -> list[int]:
    """Turns served to each agent."""
    served = dict.fromkeys((outcome.client for outcome in run.outcomes), 0)
    for outcome in run.outcomes:
        served[outcome.client] += outcome.served
    return list(served.values())


def _longest_wait(run: Run) -> float:
    """For a first token, or in vain for one."""
    ends = [(outcome.first_at or outcome.ended_at or 0.0) - outcome.started_at for outcome in run.outcomes]
    return max(ends)


def _long_waits(run: Run) -> list[tuple[float, float]]:
    return [
        (decision.waited_seconds, decision.predicted_wait_seconds or 0.0)
        for decision in run.decisions
        if decision.dispatched and decision.waited_seconds > NOTABLE_WAIT_SECONDS
    ]


def _served(run: Run) -> str:
    cached = [outcome.cached_tokens or 0 for outcome in run.of("turn") if outcome.served]
    hit = f", {fmean(cached):,.0f} cached a turn" if cached else ""
    cpu = ", ".join(f"{name} {seconds:.0f}" for name, seconds in run.cpu_seconds.items())
    return f"{sum(outcome.served for outcome in run.outcomes)}{hit}; {cpu}"


AGENTS_SCENARIO = Scenario(
    "agents",
    "20 agents with 48K contexts and 12 turns each, a sixth of which fit the pool at once; 300 s",
    agents,
    judge_agents,
    engine=ENGINE,
    ways=(DIRECT, PROXIED, UNKEYED, LPM),
    decisions=True,
)
