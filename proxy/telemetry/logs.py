"""Log lines: text for people, JSON for collectors. Never a prompt, never a key.

Whatever clients can influence (model names, tenants, request ids) is escaped, so that no
value can start a line of its own, forge a field, or drive a terminal.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from proxy.admission.types import Lane
from proxy.telemetry.line_writer import LineWriter

_STDERR = 2
_LONGEST_VALUE = 200
# C0, DEL, C1, line separators, bidirectional overrides, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_to_json = json.JSONEncoder(default=str).encode
# Their debug lines show headers, and with them keys; their info lines repeat our own.
_QUIET = ("httpx", "httpcore", "uvicorn.access")


def configure(level: str, log_format: str, *, fd: int = _STDERR) -> None:
    """Sends every log line of the process to `fd`: `level` is debug ... error, `log_format` text or json."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, ThreadedHandler)]:
        root.removeHandler(handler)
        handler.close()
    handler = ThreadedHandler(fd)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def request_line(
    logger: logging.Logger,
    *,
    request_id: str,
    outcome: str,
    status: int,
    tenant: str = "default",
    model: str = "",
    lane: Lane | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    wait_seconds: float | None = None,
    ttft_seconds: float | None = None,
    backend: str | None = None,
    reason: str | None = None,
    trace_id: str | None = None,
) -> None:
    """The one line a request leaves. None: it never got that far, and the field is left out."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "request_id": request_id,
        "tenant": tenant,
        "model": model,
        "lane": None if lane is None else lane.value,
        "prompt_tokens": prompt_tokens,
        "wait_seconds": None if wait_seconds is None else round(wait_seconds, 4),
        "ttft_seconds": None if ttft_seconds is None else round(ttft_seconds, 4),
        "outcome": outcome,
        "reason": reason,
        "status": status,
        "completion_tokens": completion_tokens,
        "backend": backend,
        "trace_id": trace_id,
    }
    shown = {key: value for key, value in fields.items() if value is not None}
    # without the walk up the stack that `logger.info` makes for the caller's name
    logger.handle(
        logger.makeRecord(logger.name, logging.INFO, "", 0, "request", (), None, extra={"fields": shown})
    )


class ThreadedHandler(logging.Handler):
    """Hands lines to a thread: a full pipe behind stderr must not stop the event loop."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._lost = 0
        self._writer = LineWriter(lambda: os.dup(fd), dropped=self.count_lost, said=_nowhere_to_say)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 (logging's own way: say what was wrong with the call, go on)
            self.handleError(record)
            return
        if self._lost:
            line += f"\n{self._lost_line()}"
        self._writer.write(line.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        self._writer.close()
        super().close()

    def count_lost(self, lines: int) -> None:
        """Remembers lost lines for the next one that can be written."""
        self._lost += lines

    def _lost_line(self) -> str:
        lost, self._lost = self._lost, 0
        text = f"{lost} log lines could not be written and are lost"
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))


def _nowhere_to_say(_: str) -> None:
    """The log itself cannot be written; the first line that can be tells how many are missing."""


class TextFormatter(logging.Formatter):
    """`2026-12-01T13:29:00.123Z INFO proxy.api: request lane=short wait_seconds=0.1`"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        for key, value in _fields(record).items():
            line += f" {key}={_text_value(value)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {escaped(part)}" for part in trace)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line, ASCII only: the same fields as the text, with their types kept."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        entry |= {key: _cut(value) for key, value in _fields(record).items() if key not in entry}
        return _to_json(entry).replace("\x7f", "\\u007f")


def escaped(text: str) -> str:
    """`text` on one line, with every character that could act on a terminal or a parser spelt out."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return value[:_LONGEST_VALUE] + "..."
    return value


def _text_value(value: object) -> str:
    if type(value) is int or type(value) is float:
        return str(value)
    text = str(_cut(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text).replace("\x7f", "\\u007f")


def _time(record: logging.LogRecord) -> str:
    seconds, fraction = divmod(record.created, 1)
    return f"{_date(int(seconds))}.{int(fraction * 1000):03d}Z"


@lru_cache(maxsize=2)
def _date(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
