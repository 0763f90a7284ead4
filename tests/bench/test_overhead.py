"""The harness measures what it says: engine and client agree, in C++ and in Python."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.overhead import main
from tests.bench.targets import TARGETS, Target, medians, table
from tests.bench.tools import COMPILERS, Tools, build, engine_server
from tests.load.process import ServerProcess, free_port
from tests.load.proxy import REPOSITORY

WITHOUT_COMPILER = not any(shutil.which(name) for name in COMPILERS)


@pytest.fixture(scope="module", params=["compiled", "stand-in"])
def tools(request: pytest.FixtureRequest) -> Tools:
    if request.param == "compiled":
        if WITHOUT_COMPILER:
            pytest.skip("no C++ compiler")
        return build(REPOSITORY / ".cache" / "bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.bench.tools.COMPILERS", ())
        return build(Path("unused"))


@pytest.fixture(scope="module")
def engine(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log_path = tmp_path_factory.mktemp("engine") / "engine.log"
    server = engine_server(tools.engine, log_path, say=lambda _: None)
    with server:
        yield server


def test_requests_are_answered_and_timed(tools: Tools, engine: ServerProcess) -> None:
    found = tools.load("requests", engine.port, connections=4, seconds=0.3)
    assert found["requests"] > 20
    assert 0 < found["latency_us"]["p50"] <= found["latency_us"]["p99"] < 1e6


def test_an_open_loop_keeps_its_rate_with_bodies_of_any_size(tools: Tools, engine: ServerProcess) -> None:
    found = tools.load("requests", engine.port, connections=4, seconds=0.5, rate=40, bytes=100_000)
    assert found["requests"] in (20, 21)  # by when the last was due


@pytest.mark.parametrize("interval_us", [0, 5000])
def test_every_chunk_of_every_stream_is_seen_once(
    tools: Tools, engine: ServerProcess, interval_us: int
) -> None:
    found = tools.load("streams", engine.port, connections=8, chunks=30, interval_us=interval_us)
    assert (found["requests"], found["chunks"]) == (8, 240)
    assert 0 < found["delay_us"]["p50"] < 1e6
    if interval_us:
        assert 4000 < found["gap_us"]["p50"] < 20_000
        assert found["seconds"] > 0.13


def test_wrong_answers_are_no_measurement(tools: Tools, engine: ServerProcess) -> None:
    with pytest.raises(RuntimeError, match=r"wrong|ended"):
        tools.load("requests", free_port(), connections=1, seconds=0.1)


def test_a_whole_run_with_a_proxy_keeps_what_it_found(tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--seconds", "0.2", "--only", "c1", "s64", "--out", str(tmp_path)]
    assert main(arguments) in (0, 1)
    (kept,) = tmp_path.glob("overhead-*/overhead.json")
    figures = json.loads(kept.read_text())["medians"]
    assert set(figures) == {"c1_p50", "c1_p99", "s64_p50", "s64_p99", "s64_cpu"}
    assert all(value < 1e5 for value in figures.values())


LEAST = Target("rate", "requests", "/s", 100, 200, at_least=True)
MOST = Target("delay", "added delay", "ms", 1.0, 0.5)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (LEAST, 99, "FAIL"),
        (LEAST, 100, "ok"),
        (LEAST, 200, "ok +"),
        (MOST, 1.1, "FAIL"),
        (MOST, 1.0, "ok"),
        (MOST, -0.1, "ok +"),
        (Target("x", "only shown", "ms"), 1e9, ""),
    ],
)
def test_a_verdict_is_on_the_right_side_of_the_bound(target: Target, value: float, verdict: str) -> None:
    assert target.verdict(value) == verdict


def test_the_table_shows_the_middle_and_the_range_of_the_rounds() -> None:
    rounds = [{"c1_p50": value} for value in (0.3, 2.0, 0.4)]
    assert medians(rounds) == {"c1_p50": 0.4}
    (_, line) = table(medians(rounds), rounds).splitlines()
    assert line.startswith(TARGETS[0].text)
    assert line.split()[-10:] == ["0.4", "0.3", "..", "2", "<=", "1", "<=", "0.5", "ok", "+"]
