"""The loads that the proxy is held to, by name: what is asked, of which server, and what must hold."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.load.figures import Row, Run, compare, inform, problems, quantile, require
from tests.load.workload import Ask, Client, Workload, poisson_times
from tests.sglang.shim.pacing import Pace, configured

STORY_POOL_TOKENS = 186_624
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Engine:
    """The server under load: pool in tokens, pace preset and what divides its times, queue order, SGLang's
    own flags.
    """

    pool: int = STORY_POOL_TOKENS
    pace: str | None = "h200-8b"
    speedup: float = 4.0
    policy: str = "fcfs"
    flags: tuple[str, ...] = ()


def pace_of(engine: Engine) -> Pace:
    """Its pace as the server will have it; no pace takes no time."""
    environ = {"SGLANG_CPU_PACE": engine.pace or "0,0,0,0", "SGLANG_CPU_SPEEDUP": str(engine.speedup)}
    pace = configured(environ)
    assert pace is not None
    return pace


@dataclass(frozen=True, slots=True)
class Mix:
    """What a load is drawn from: `scale` 1 is the full size, smaller is shorter and lighter (for tests);
    `lengths` multiplies the long prompts.
    """

    seed: int = 1
    scale: float = 1.0
    lengths: float = 1.0

    def draw(self) -> random.Random:
        return random.Random(self.seed)

    def long(self, tokens: int) -> int:
        return round(tokens * self.lengths)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`build` makes the load, `judge(direct, proxied)` the table.

    `settings` makes the proxy's environment; it is given the direct run, since a promise can only be
    set against what was measured.
    """

    name: str
    summary: str
    build: Callable[[Mix], Workload]
    judge: Callable[[Run, Run], list[Row]]
    engine: Engine = field(default_factory=Engine)
    settings: Callable[[Run], Mapping[str, str]] = lambda _: {"PROXY_MAX_QUEUE_SECONDS": "600"}


# --- the story: shorts among long prompts and one giant -----------------------------------------


def story(mix: Mix, *, shorts_end_by_eos: bool = False) -> Workload:
    """Shorts 8/s for 45 s; six clients with two 64K/500 each; one 180K/200 at 8 s.

    Scaled down: as much shorter, and fewer long clients with one request each; the giant stays.
    """
    draw = mix.draw()
    times = poisson_times(draw, 8.0, 45.0 * mix.scale)
    clients = [Client(at, (_short(draw, shorts_end_by_eos),)) for at in times]
    rounds = 2 if mix.scale >= HALF else 1
    for number in range(max(2, round(6 * mix.scale))):
        asks = tuple(Ask("long", mix.long(64_000), 500, draw.getrandbits(32)) for _ in range(rounds))
        clients.append(Client(0.1 * number, asks))
    giant = Ask("giant", mix.long(180_000), 200, draw.getrandbits(32))
    clients.append(Client(8.0 * mix.scale, (giant,)))
    return Workload(tuple(clients))


def _short(draw: random.Random, ends_by_eos: bool) -> Ask:
    prompt, seed = draw.randint(150, 450), draw.getrandbits(32)
    if ends_by_eos:
        return Ask("short", prompt, None, seed, min_tokens=draw.randint(20, 280), ends_by_itself=True)
    return Ask("short", prompt, 150, seed)


def judge_story(direct: Run, proxied: Run) -> list[Row]:
    before, after = direct.ttfts("short"), proxied.ttfts("short")
    return [
        compare("short TTFT p50", quantile(before, 0.5), quantile(after, 0.5), 1 / 10),
        compare("short TTFT p99", quantile(before, 0.99), quantile(after, 0.99), 1 / 4),
        *_long_rows(direct, proxied),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.05),
        *_common_rows(direct, proxied),
    ]


def judge_story_eos(direct: Run, proxied: Run) -> list[Row]:
    before, after = direct.ttfts("short"), proxied.ttfts("short")
    return [
        compare("short TTFT p50", quantile(before, 0.5), quantile(after, 0.5), 1 / 8),
        compare("short TTFT p99", quantile(before, 0.99), quantile(after, 0.99), None),
        *_long_rows(direct, proxied, None, None),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, None),
        *_common_rows(direct, proxied),
    ]


def _long_rows(direct: Run, proxied: Run, long: float | None = 1.3, giant: float | None = 1.8) -> list[Row]:
    return [
        compare("64K TTFT mean", _mean(direct.ttfts("long")), _mean(proxied.ttfts("long")), long),
        compare("180K TTFT", _mean(direct.ttfts("giant")), _mean(proxied.ttfts("giant")), giant),
    ]


# --- the same at the speed of the real machine ---------------------------------------------------


def at_true_speed(mix: Mix) -> Workload:
    """Shorts 2/s for 90 s; six clients with three 64K/500 each; one 180K/200 at 30 s."""
    draw = mix.draw()
    times = poisson_times(draw, 2.0, 90.0 * mix.scale)
    clients = [Client(at, (_short(draw, False),)) for at in times]
    for number in range(max(2, round(6 * mix.scale))):
        asks = tuple(Ask("long", mix.long(64_000), 500, draw.getrandbits(32)) for _ in range(3))
        clients.append(Client(0.1 * number, asks))
    giant = Ask("giant", mix.long(180_000), 200, draw.getrandbits(32))
    clients.append(Client(30.0 * mix.scale, (giant,)))
    return Workload(tuple(clients))


def judge_true_speed(direct: Run, proxied: Run) -> list[Row]:
    before, after = direct.ttfts("short"), proxied.ttfts("short")
    p50, p99 = quantile(after, 0.5), quantile(after, 0.99)
    return [
        require("short TTFT p50", f"{quantile(before, 0.5):.1f} s", f"{p50:.3f} s", "<= 0.2 s", p50 <= 0.2),
        require("short TTFT p99", f"{quantile(before, 0.99):.1f} s", f"{p99:.3f} s", "<= 0.6 s", p99 <= 0.6),
        *_long_rows(direct, proxied, 1.25, 1.25),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.08),
        *_common_rows(direct, proxied),
    ]


# --- outputs that are shorter than allowed ------------------------------------------------------


def outputs(mix: Mix, *, count: int = 12) -> Workload:
    """Requests of 12K at once, each allowed 8,192 tokens and using 100 to 6,000, spread evenly.

    Scaled down: shorter outputs of longer prompts, so that the pool still fills up.
    """
    draw = mix.draw()
    shortest, longest = 100, 6000
    step = (longest - shortest) / (count - 1)
    lengths = [round((shortest + step * number) * mix.scale) for number in range(count)]
    draw.shuffle(lengths)
    prompt = mix.long(12_000) + round((1 - mix.scale) * (longest + shortest) / 2)
    asks = [
        Ask("12K", prompt, 8192, draw.getrandbits(32), min_tokens=length, ends_by_itself=True)
        for length in lengths
    ]
    return Workload(tuple(Client(0.02 * number, (ask,)) for number, ask in enumerate(asks)))


def judge_outputs(direct: Run, proxied: Run) -> list[Row]:
    return [
        require(
            "retractions", str(direct.retractions), str(proxied.retractions), "0", proxied.retractions == 0
        ),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.1),
        compare("longest pause in a stream", _longest_gap(direct), _longest_gap(proxied), None),
        *_common_rows(direct, proxied),
    ]


def _longest_gap(run: Run) -> float:
    return max(outcome.longest_gap_seconds for outcome in run.outcomes)


# --- a batch of long prompts ---------------------------------------------------------------------


def batch(mix: Mix, *, obey_retry_after: bool = False) -> Workload:
    """30 x 64,000/500, 20 at once; scaled: as many fewer, but 6 at least and 4 at once."""
    draw = mix.draw()
    count = max(6, round(30 * mix.scale))
    asks = [Ask("long", mix.long(64_000), 500, draw.getrandbits(32)) for _ in range(count)]
    return Workload(
        tuple(Client(0.0, (ask,)) for ask in asks),
        concurrency=max(4, round(20 * mix.scale)),
        obey_retry_after=obey_retry_after,
    )


def judge_batch(direct: Run, proxied: Run) -> list[Row]:
    return [
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.03),
        compare("64K TTFT mean", _mean(direct.ttfts("long")), _mean(proxied.ttfts("long")), None),
        *_common_rows(direct, proxied),
    ]


def third_of_the_wait(direct: Run) -> Mapping[str, str]:
    """The promise of the refusal scenario: a third of what clients waited on average without the proxy."""
    return {"PROXY_MAX_QUEUE_SECONDS": f"{_mean(direct.ttfts('long')) / 3:.1f}"}


def judge_refusal(direct: Run, proxied: Run) -> list[Row]:
    promise = float(third_of_the_wait(direct)["PROXY_MAX_QUEUE_SECONDS"])
    refusals = [outcome for outcome in proxied.outcomes if outcome.refused]
    times = sorted(outcome.answer_seconds or 0.0 for outcome in refusals)
    waits = [outcome.wait_seconds for outcome in proxied.outcomes if outcome.served]
    known = [wait for wait in waits if wait is not None]
    served = sum(outcome.served for outcome in proxied.outcomes)
    wanted = len(direct.outcomes)
    answer_ms = 1000 * quantile(times, 0.99) if times else float("nan")
    longest = max(known, default=float("nan"))
    return [
        require("requests refused at first", "", str(len(refusals)), "some", bool(refusals)),
        replace(
            require(
                "refused after the last byte, p99", "", f"{answer_ms:.0f} ms", "<= 200 ms", answer_ms <= 200
            ),
            value=answer_ms,
            limit=200.0,
        ),
        require(
            "longest wait of the admitted",
            "",
            f"{longest:.1f} s",
            f"<= {promise:.1f} s, told",
            len(known) == len(waits) and longest <= promise,
        ),
        require("served in the end", str(wanted), str(served), "all", served == wanted),
        inform("attempts of the unluckiest", "", str(max(o.attempt for o in proxied.outcomes))),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, None),
        *_common_rows(direct, proxied),
    ]


# --- what always holds -----------------------------------------------------------------------------


def _common_rows(direct: Run, proxied: Run) -> list[Row]:
    short_queue = proxied.share_of_samples(waiting_at_most=1)
    failed = [*direct.failures, *proxied.failures]
    left = {name: value for name, value in proxied.ledger.items() if value != 0}
    return [
        require(
            "engine's own queue <= 1",
            f"{direct.share_of_samples(waiting_at_most=1):.1%}",
            f"{short_queue:.1%}",
            ">= 99 % of samples",
            short_queue >= 0.99,
        ),
        require(
            "failed requests",
            str(len(direct.failures)),
            str(len(proxied.failures)),
            "0" + (f": {'; '.join(problems(failed))[:120]}" if failed else ""),
            not failed,
        ),
        require("ledger at the end", "", str(left or 0), "exactly 0", not left and bool(proxied.ledger)),
        require(
            "prompt + output tokens", _work(direct), _work(proxied), "the same", direct.work == proxied.work
        ),
        inform("CPU seconds", _cpu(direct), _cpu(proxied)),
    ]


def _work(run: Run) -> str:
    return " + ".join(f"{tokens:,}" for tokens in run.work)


def _cpu(run: Run) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.cpu_seconds.items())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("story", "shorts 8/s, twelve 64K, one 180K", story, judge_story),
        Scenario(
            "story-eos",
            "the story with shorts that set no max_tokens and end by EOS",
            lambda mix: story(mix, shorts_end_by_eos=True),
            judge_story_eos,
        ),
        Scenario(
            "true-speed",
            "the story at the speed of the machine it is paced like: shorts 2/s, eighteen 64K, one 180K",
            at_true_speed,
            judge_true_speed,
            engine=Engine(speedup=1.0),
        ),
        Scenario("outputs", "12 x 12K, allowed 8,192, real outputs 100-6,000", outputs, judge_outputs),
        Scenario(
            "outputs-bold",
            "24 of them on an engine told to admit boldly, which then retracts",
            lambda mix: outputs(mix, count=24),
            judge_outputs,
            engine=Engine(flags=("--schedule-conservativeness", "0.1")),
        ),
        Scenario("batch30", "30 x 64,000/500, 20 at once", batch, judge_batch),
        Scenario(
            "refusal",
            "batch30 with a promise of a third of the direct mean wait; clients obey Retry-After",
            lambda mix: batch(mix, obey_retry_after=True),
            judge_refusal,
            settings=third_of_the_wait,
        ),
    )
}
