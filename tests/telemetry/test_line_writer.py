import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.telemetry.decision_log import DecisionLog
from proxy.telemetry.line_writer import LineWriter


class Lost:
    """Counts lines, and sentences, from any thread."""

    def __init__(self) -> None:
        self.lines = 0
        self.said: list[str] = []

    def count(self, lines: int) -> None:
        self.lines += lines


def opener(path: Path) -> Callable[[], int]:
    return lambda: os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_lines_arrive_in_order_and_complete(tmp_path: Path) -> None:
    lost = Lost()
    writer = LineWriter(opener(tmp_path / "log"), dropped=lost.count, said=lost.said.append)
    for number in range(5000):
        writer.write(str(number).encode())
    writer.close()
    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(5000)]
    assert (lost.lines, lost.said) == (0, [])


def test_a_reader_that_stalls_costs_lines_but_never_time() -> None:
    reading, writing = os.pipe()
    lost = Lost()
    writer = LineWriter(lambda: writing, dropped=lost.count, said=lost.said.append, capacity_lines=10)
    began = time.monotonic()
    for _ in range(2000):
        writer.write(b"x" * 1000)
    assert time.monotonic() - began < 1.0
    assert lost.lines > 0
    os.close(reading)  # the stuck write now fails, so that the thread can end
    writer.close()


def test_a_full_disk_is_said_once_counted_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost()
    full = threading.Event()
    full.set()
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        if full.is_set() and threading.current_thread().name == "line-writer":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    writer = LineWriter(
        opener(tmp_path / "log"), dropped=lost.count, said=lost.said.append, retry_seconds=0.02
    )
    for _ in range(3):
        writer.write(b"lost")
    until(lambda: lost.lines == 3)
    full.clear()
    time.sleep(0.03)
    writer.write(b"kept")
    writer.close()
    assert (tmp_path / "log").read_text() == "kept\n"
    assert lost.lines == 3
    assert lost.said == [
        "cannot write: [Errno 28] No space left on device; lines are dropped until it works again",
        "writing works again; 3 lines were lost",
    ]


def test_a_half_written_line_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost()
    real_write = os.write
    calls: list[int] = []

    def write(fd: int, data: bytes) -> int:
        if threading.current_thread().name != "line-writer":
            return real_write(fd, data)
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(fd, data[:3])
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    writer = LineWriter(
        opener(tmp_path / "log"), dropped=lost.count, said=lost.said.append, retry_seconds=0.0
    )
    writer.write(b"first")
    until(lambda: lost.lines == 1)
    writer.write(b"second")
    writer.close()
    assert (tmp_path / "log").read_text() == "fir\nsecond\n"


def test_writing_after_close_is_counted(tmp_path: Path) -> None:
    lost = Lost()
    writer = LineWriter(opener(tmp_path / "log"), dropped=lost.count, said=lost.said.append)
    writer.close()
    writer.close()
    writer.write(b"late")
    assert lost.lines == 1


def test_a_decision_is_one_json_line(tmp_path: Path) -> None:
    lost = Lost()
    log = DecisionLog(tmp_path / "decisions.jsonl", dropped=lost.count)
    log.write({"rid": "r1", "action": "dispatch", "wait_seconds": 0.25, "text": "a\nb"})
    log.write({"rid": "r2", "action": "refuse"})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [line["rid"] for line in lines] == ["r1", "r2"]
    assert (tmp_path / "decisions.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_decision_log_that_cannot_be_opened_is_said_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost()
    with caplog.at_level(logging.WARNING):
        log = DecisionLog(tmp_path / "missing" / "d.jsonl", dropped=lost.count)
        assert "d.jsonl: cannot be opened: No such file or directory" in caplog.text
        log.write({"a": 1})
        log.write({"a": 2})
        log.close()
    assert lost.lines == 2
    assert len([r for r in caplog.records if "cannot write" in r.getMessage()]) == 1


def test_a_decision_that_cannot_be_encoded_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost()
    log = DecisionLog(tmp_path / "d.jsonl", dropped=lost.count)
    log.write({"a": object()})
    log.write({"model": "\ud800"})
    log.write({"a": 1})
    log.close()
    assert (tmp_path / "d.jsonl").read_text() == '{"a":1}\n'
    assert lost.lines == 2
    assert len(caplog.records) == 1
