"""Peers are compared by what they add to the engine's own times of the same round."""

import pytest

from tests.bench.peers import SHOWN, added, main, table

DIRECT = {
    "c1_p50": 0.2,
    "c1_p99": 0.5,
    "rate": 9000.0,
    "request_cpu": 0.01,
    "delay_p50": 0.1,
    "delay_p99": 0.3,
    "pace": 3.0,
    "chunk_cpu": 2.0,
}


def test_times_are_what_is_added_and_the_pace_is_a_share_of_the_engines() -> None:
    found = added({**DIRECT, "c1_p50": 0.7, "delay_p99": 0.2, "pace": 4.0, "request_cpu": 0.4}, DIRECT)
    assert found["c1_p50"] == pytest.approx(0.5)
    assert found["delay_p99"] == pytest.approx(-0.1)
    assert found["pace"] == pytest.approx(0.75)
    assert (found["rate"], found["request_cpu"]) == (9000.0, 0.4)


def test_the_table_has_a_column_for_each_server() -> None:
    text = table({"proxy": added(DIRECT, DIRECT), "other": {**added(DIRECT, DIRECT), "rate": 1234.5}})
    head, *lines = text.splitlines()
    assert head.split() == ["proxy", "other"]
    assert len(lines) == len(SHOWN)
    assert lines[2].split()[-2:] == ["9,000.00", "1,234.50"]


def test_help_tells_how_to_install_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "install sglang-router" in capsys.readouterr().out
