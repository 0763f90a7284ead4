"""Shorts among long prompts and one giant, and the same shorts alone."""

import random

from tests.load.figures import Row, compare, require
from tests.load.scenario import Engine, Mix, Runs, Scenario
from tests.load.verdicts import common_rows, mean_ttft, ttft, under
from tests.load.workload import Ask, Client, Workload, poisson_times

HALF = 0.5
SHORTS_ONLY_P99_MORE_SECONDS = 0.010


def story(mix: Mix, *, shorts_end_by_eos: bool = False) -> Workload:
    """Shorts 8/s for 45 s; six clients with two 64K/500 each; one 180K/200 at 8 s.

    Scaled down: as much shorter, and fewer long clients with one request each; the giant stays.
    """
    draw = mix.draw()
    times = poisson_times(draw, 8.0, 45.0 * mix.scale)
    clients = [Client(at, (_short(draw, shorts_end_by_eos),)) for at in times]
    clients += _longs(draw, mix, 2 if mix.scale >= HALF else 1)
    giant = Ask("giant", mix.long(180_000), 200, draw.getrandbits(32))
    clients.append(Client(8.0 * mix.scale, (giant,)))
    return Workload(tuple(clients))


def at_true_speed(mix: Mix) -> Workload:
    """Shorts 2/s for 90 s; six clients with three 64K/500 each; one 180K/200 at 30 s."""
    draw = mix.draw()
    times = poisson_times(draw, 2.0, 90.0 * mix.scale)
    clients = [Client(at, (_short(draw, False),)) for at in times]
    clients += _longs(draw, mix, 3)
    giant = Ask("giant", mix.long(180_000), 200, draw.getrandbits(32))
    clients.append(Client(30.0 * mix.scale, (giant,)))
    return Workload(tuple(clients))


def shorts_only(mix: Mix) -> Workload:
    """The load at true speed without its long requests."""
    return at_true_speed(mix).only(lambda client: client.asks[0].kind == "short")


def _short(draw: random.Random, ends_by_eos: bool) -> Ask:
    prompt, seed = draw.randint(150, 450), draw.getrandbits(32)
    if ends_by_eos:
        return Ask("short", prompt, None, seed, min_tokens=draw.randint(20, 280), ends_by_itself=True)
    return Ask("short", prompt, 150, seed)


def _longs(draw: random.Random, mix: Mix, each: int) -> list[Client]:
    clients = []
    for number in range(max(2, round(6 * mix.scale))):
        asks = tuple(Ask("long", mix.long(64_000), 500, draw.getrandbits(32)) for _ in range(each))
        clients.append(Client(0.1 * number, asks))
    return clients


def judge_story(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    return [
        compare("short TTFT p50", ttft(direct, "short", 0.5), ttft(proxied, "short", 0.5), 1 / 10),
        compare("short TTFT p99", ttft(direct, "short", 0.99), ttft(proxied, "short", 0.99), 1 / 4),
        *_long_rows(runs),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.05),
        *common_rows(direct, proxied),
    ]


def judge_story_eos(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    return [
        compare("short TTFT p50", ttft(direct, "short", 0.5), ttft(proxied, "short", 0.5), 1 / 8),
        compare("short TTFT p99", ttft(direct, "short", 0.99), ttft(proxied, "short", 0.99), None),
        *_long_rows(runs, None, None),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, None),
        *common_rows(direct, proxied),
    ]


def judge_true_speed(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    rival = runs.get("shortest-prefill-first")
    rows = [
        under("short TTFT p50", ttft(direct, "short", 0.5), ttft(proxied, "short", 0.5), 0.2),
        under("short TTFT p99", ttft(direct, "short", 0.99), ttft(proxied, "short", 0.99), 0.6),
        *_long_rows(runs, 1.25, 1.25),
        compare("all work done", direct.duration_seconds, proxied.duration_seconds, 1.08),
        *common_rows(direct, proxied),
    ]
    if rival is not None:
        before, after = ttft(rival, "short", 0.99), ttft(proxied, "short", 0.99)
        rows.append(compare("short TTFT p99, against shortest-prefill-first", before, after, 1 / 5))
        before, after = mean_ttft(rival, "giant"), mean_ttft(proxied, "giant")
        rows.append(compare("180K TTFT, against shortest-prefill-first", before, after, 0.9))
    return rows


def judge_shorts_only(runs: Runs) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    before, after = ttft(direct, "short", 0.99), ttft(proxied, "short", 0.99)
    more = after - before
    return [
        compare("short TTFT p50", ttft(direct, "short", 0.5), ttft(proxied, "short", 0.5), None),
        require(
            "short TTFT p99",
            f"{1000 * before:.1f} ms",
            f"{1000 * after:.1f} ms",
            f"<= {1000 * SHORTS_ONLY_P99_MORE_SECONDS:g} ms more, not {1000 * more:.1f}",
            more <= SHORTS_ONLY_P99_MORE_SECONDS,
        ),
        *common_rows(direct, proxied),
    ]


def _long_rows(runs: Runs, long: float | None = 1.3, giant: float | None = 1.8) -> list[Row]:
    direct, proxied = runs["direct"], runs["proxied"]
    return [
        compare("64K TTFT mean", mean_ttft(direct, "long"), mean_ttft(proxied, "long"), long),
        compare("180K TTFT", mean_ttft(direct, "giant"), mean_ttft(proxied, "giant"), giant),
    ]


STORIES = (
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
    Scenario(
        "shorts-only",
        "the shorts of true-speed alone: what the proxy itself costs them",
        shorts_only,
        judge_shorts_only,
        engine=Engine(speedup=1.0),
    ),
)
