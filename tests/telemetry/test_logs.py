import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.admission.types import Lane
from proxy.telemetry.logs import ThreadedHandler, configure, escaped, request_line
from proxy.telemetry.loop_lag import watch_loop_lag

logger = logging.getLogger("proxy.test")


class Output:
    """What the log wrote, after everything pending is flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def text(self) -> str:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, ThreadedHandler):
                handler.close()
        return self.path.read_text()


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    out = Output(tmp_path / "log")
    yield out
    out.text()
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    os.close(out.fd)


def full_line() -> None:
    request_line(
        logger,
        request_id="r-1",
        tenant="acme",
        model="Qwen/Qwen3-8B",
        lane=Lane.LONG,
        outcome="completed",
        status=200,
        prompt_tokens=64_000,
        completion_tokens=500,
        wait_seconds=1.23456,
        ttft_seconds=5.5,
        backend="box-1",
    )


def test_a_request_is_one_text_line(output: Output) -> None:
    configure("info", "text", fd=output.fd)
    full_line()
    line = output.text()
    assert line.count("\n") == 1
    assert line.split(" ", 1)[1] == (
        "INFO proxy.test: request request_id=r-1 tenant=acme model=Qwen/Qwen3-8B lane=long "
        "prompt_tokens=64000 wait_seconds=1.2346 ttft_seconds=5.5 outcome=completed status=200 "
        "completion_tokens=500 backend=box-1\n"
    )


def test_a_request_is_one_json_object(output: Output) -> None:
    configure("info", "json", fd=output.fd)
    full_line()
    entry = json.loads(output.text())
    assert (entry["message"], entry["level"], entry["logger"]) == ("request", "info", "proxy.test")
    assert (entry["lane"], entry["prompt_tokens"], entry["wait_seconds"]) == ("long", 64_000, 1.2346)


def test_what_a_request_never_reached_is_left_out(output: Output) -> None:
    configure("info", "json", fd=output.fd)
    request_line(logger, request_id="r", outcome="refused", status=429, reason="queue_full")
    entry = json.loads(output.text())
    assert "ttft_seconds" not in entry
    assert entry["reason"] == "queue_full"


HOSTILE = [
    "a\nFAKE line",
    "a b=1 status=200",
    "\x1b[31mred",
    "\u2028",
    "\ud800",
    "\u202eabc",
    "\x85",
    '"',
    "\x7f",
]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_stays_inside_its_field(output: Output, log_format: str, value: str) -> None:
    configure("info", log_format, fd=output.fd)
    request_line(logger, request_id="r", outcome="completed", status=200, model=value, tenant=value)
    logger.warning("odd model %s", value)
    text = output.text()
    assert text.isascii()
    assert text.count("\n") == len(text.splitlines()) == 2
    assert all(ch == "\n" or ch.isprintable() for ch in text)
    if log_format == "text":
        assert text.splitlines()[0].endswith(" outcome=completed status=200")
    else:
        assert json.loads(text.splitlines()[0])["model"] == value


def test_a_field_cannot_replace_what_the_line_says_of_itself(output: Output) -> None:
    configure("info", "json", fd=output.fd)
    logger.info("true", extra={"fields": {"message": "false", "level": "debug"}})
    entry = json.loads(output.text())
    assert (entry["message"], entry["level"]) == ("true", "info")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_values_are_cut(output: Output, log_format: str) -> None:
    configure("info", log_format, fd=output.fd)
    request_line(logger, request_id="r", outcome="completed", status=200, model="m" * 100_000)
    assert len(output.text()) < 1000


def test_a_traceback_is_indented_and_escaped(output: Output) -> None:
    configure("info", "text", fd=output.fd)
    try:
        raise ValueError("bad\n2026-12-01T00:00:00.000Z INFO forged\x1b[0m")
    except ValueError:
        logger.exception("failed")
    first, *trace = output.text().splitlines()
    assert first.endswith("ERROR proxy.test: failed")
    assert all(line.startswith("    ") for line in trace)
    assert "\x1b" not in "".join(trace)


def test_a_traceback_in_json_is_a_field(output: Output) -> None:
    configure("info", "json", fd=output.fd)
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: bad" in json.loads(output.text())["exception"]


def test_the_level_is_obeyed_and_chatty_libraries_are_quiet(output: Output) -> None:
    configure("warning", "text", fd=output.fd)
    full_line()
    configure("debug", "text", fd=output.fd)
    logging.getLogger("httpcore").debug("authorization: Bearer secret")
    logging.getLogger("httpx").info("HTTP Request: POST ...")
    logger.debug("shown")
    assert output.text().count("\n") == 1


def test_configuring_twice_does_not_write_twice(output: Output) -> None:
    configure("info", "text", fd=output.fd)
    configure("info", "text", fd=output.fd)
    full_line()
    assert output.text().count("\n") == 1


def test_lost_lines_are_told_once_writing_works(output: Output) -> None:
    configure("info", "text", fd=output.fd)
    handler = next(h for h in logging.getLogger().handlers if isinstance(h, ThreadedHandler))
    handler.count_lost(3)
    full_line()
    full_line()
    text = output.text()
    assert text.count("3 log lines could not be written and are lost") == 1
    assert text.count("\n") == 3


def test_a_malformed_log_call_does_not_raise(output: Output, capsys: pytest.CaptureFixture[str]) -> None:
    handler = ThreadedHandler(output.fd)
    handler.emit(logging.LogRecord("proxy", logging.INFO, __file__, 1, "%d", ("not a number",), None))
    handler.close()
    assert "not a number" in capsys.readouterr().err


def test_escaping_leaves_ordinary_text_alone() -> None:
    assert escaped("Qwen3 ü 中") == "Qwen3 ü 中"


async def test_loop_lag_is_seen() -> None:
    seen: list[float] = []
    task = asyncio.create_task(watch_loop_lag(seen.append, interval_seconds=0.01))
    await asyncio.sleep(0.005)
    time.sleep(0.1)
    await asyncio.sleep(0.02)
    task.cancel()
    assert max(seen) > 0.05
