"""Outputs that are shorter than allowed, and batches of long prompts."""

from collections.abc import Mapping
from dataclasses import replace

from tests.load.figures import Row, Run, compare, inform, quantile, require
from tests.load.scenario import Engine, Mix, Runs, Scenario
from tests.load.verdicts import common_rows, mean_ttft
from tests.load.workload import Ask, Client, Workload


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


def judge_outputs(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    return [
        require(
            "retractions", str(direct.retractions), str(proxied.retractions), "0", proxied.retractions == 0
        ),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.1),
        compare("longest pause in a stream", _longest_gap(direct), _longest_gap(proxied), None),
        *common_rows(direct, proxied),
    ]


def _longest_gap(run: Run) -> float:
    return max(outcome.longest_gap_seconds for outcome in run.outcomes)


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


def judge_batch(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    return [
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.03),
        compare("64K TTFT mean", mean_ttft(direct, "long"), mean_ttft(proxied, "long"), None),
        *common_rows(direct, proxied),
    ]


def third_of_the_wait(runs: Runs) -> Mapping[str, str]:
    """The promise of the refusal scenario: a third of what clients waited on average without the proxy.

    Raises KeyError without a direct run.
    """
    return {"PROXY_MAX_QUEUE_SECONDS": f"{mean_ttft(runs['direct'], 'long') / 3:.1f}"}


def judge_refusal(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    promise = float(third_of_the_wait(runs)["PROXY_MAX_QUEUE_SECONDS"])
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
        *common_rows(direct, proxied),
    ]


BATCHES = (
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
