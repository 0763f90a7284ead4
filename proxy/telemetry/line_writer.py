"""Writes lines in a thread of its own, so that a slow or full disk never holds up the event loop."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

# About ten seconds of a busy proxy; what does not fit is counted and dropped.
CAPACITY_LINES = 20_000
_BATCH_LINES = 500
# Lines are gathered this long: a thread that wakes up for each takes the interpreter from the loop.
_GATHER_SECONDS = 0.02
_RETRY_SECONDS = 5.0


class LineWriter:
    """Appends lines to what `open_fd` opens, in order, from a daemon thread.

    `dropped(n)` is told of lost lines, from any thread. `said(text)` gets one sentence when
    writing begins to fail and one when it works again; it must not write here.
    """

    def __init__(
        self,
        open_fd: Callable[[], int],
        *,
        dropped: Callable[[int], object],
        said: Callable[[str], object],
        capacity_lines: int = CAPACITY_LINES,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._open_fd = open_fd
        self._dropped = dropped
        self._said = said
        self._retry_seconds = retry_seconds
        self._capacity_lines = capacity_lines
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._fd: int | None = None
        self._retry_at = 0.0
        self._lost = 0
        self._torn = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Takes one line without its newline. Never blocks, never raises."""
        if self._closed.is_set() or self._lines.qsize() >= self._capacity_lines:
            self._dropped(1)
        else:
            self._lines.put(line)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Writes what is queued, at most for `timeout_seconds`, and ends the thread."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._lines.put(None)
        self._thread.join(timeout_seconds)  # should it be stuck: a daemon dies with us

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = [self._lines.get()]
            if self._lines.qsize() < _BATCH_LINES:
                self._closed.wait(_GATHER_SECONDS)
            while len(batch) < _BATCH_LINES and batch[-1] is not None:
                try:
                    batch.append(self._lines.get_nowait())
                except queue.Empty:
                    break
            ended = batch[-1] is None
            lines = [line for line in batch if line is not None]
            if lines:
                self._write_batch(lines)
        self._close_fd()

    def _write_batch(self, lines: list[bytes]) -> None:
        if self._fd is None and time.monotonic() < self._retry_at:
            self._lose(len(lines))
            return
        data = b"\n".join(lines) + b"\n"
        written = 0
        try:
            if self._fd is None:
                self._fd = self._open_fd()
            if self._torn:
                os.write(self._fd, b"\n")  # ends the half line of the last failure
                self._torn = False
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self._torn = self._torn or (written > 0 and data[written - 1 : written] != b"\n")
            self._lose(len(lines) - data.count(b"\n", 0, written), error)
            self._close_fd()
            self._retry_at = time.monotonic() + self._retry_seconds
            return
        if self._lost:
            self._said(f"writing works again; {self._lost} lines were lost")
            self._lost = 0

    def _lose(self, lines: int, error: OSError | None = None) -> None:
        self._dropped(lines)
        if self._lost == 0:
            self._said(f"cannot write: {error}; lines are dropped until it works again")
        self._lost += lines

    def _close_fd(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):  # some file systems report a full disk only here
                os.close(self._fd)
            self._fd = None
