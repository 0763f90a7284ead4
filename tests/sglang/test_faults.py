"""Clients that leave and an engine that dies."""

from pathlib import Path

from tests.load.crash import crash
from tests.load.departures import departures
from tests.load.figures import Row, table
from tests.load.scenario import Engine
from tests.sglang.server import SGLangServer


def require_all(rows: list[Row]) -> None:
    print(f"\n{table(rows)}")
    assert all(row.ok for row in rows), f"\n{table(rows)}"


def test_tokens_of_clients_that_left_are_back_at_once_and_charged_once(
    server: SGLangServer, engine: Engine, tmp_path: Path
) -> None:
    require_all(departures(server, engine, tmp_path, print))


def test_everybody_gets_an_answer_when_the_engine_is_killed_and_traffic_resumes_by_itself(
    server: SGLangServer, engine: Engine, tmp_path: Path
) -> None:
    require_all(crash(server, engine, tmp_path, print))
