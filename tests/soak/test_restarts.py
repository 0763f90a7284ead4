"""The server killed and restarted under load: `python -m tests.soak.restarts` does it ten times."""

from pathlib import Path

from tests.load.figures import all_hold, table
from tests.soak.engines import engine
from tests.soak.outages import Outage
from tests.soak.restarts import lost, restarts, resumed_seconds

POOL_TOKENS = 40_000
KILLED_AT = 100.0


def test_traffic_resumes_and_nothing_is_lost_that_the_server_never_had(tmp_path: Path) -> None:
    server = engine(simulated=True, pool=POOL_TOKENS, speedup=4.0, folder=tmp_path, say=print)
    with server:
        rows = restarts(server, 1, tmp_path, print, load_seconds=0.8)
    assert all_hold(rows), f"\n{table(rows)}"


def finish(dispatched_at: float, at: float, *, completed: bool = False) -> dict[str, object]:
    return {"event": "finish", "rid": "r", "at": at, "dispatched_at": dispatched_at, "completed": completed}


def test_what_was_sent_before_the_server_died_may_fail_and_nothing_else() -> None:
    assert lost([finish(99.0, 100.1)], [KILLED_AT]) == []
    assert lost([finish(99.0, 101.0, completed=True)], []) == []
    assert len(lost([finish(101.0, 102.0)], [KILLED_AT])) == 1
    assert len(lost([finish(99.0, 99.5)], [KILLED_AT])) == 1
    refused = {"event": "refuse", "rid": "r", "waited_s": 5.0, "reason": "no_backend"}
    assert len(lost([refused], [KILLED_AT])) == 1
    assert lost([{**refused, "waited_s": 0.0}], [KILLED_AT]) == []  # told at once to come again


def test_traffic_resumes_with_the_first_token_after_the_restart() -> None:
    tokens = [{"event": "finish", "first_token_at": at} for at in (None, 99.0, 121.5, 122.0)]
    assert resumed_seconds(tokens, Outage(KILLED_AT, 120.0, 3.0)) == 1.5
    assert resumed_seconds(tokens, Outage(KILLED_AT, 121.75, 3.0)) == 0.0
