"""Pauses of the counting thread, in which the event loop gets the interpreter.

A thread that gives the interpreter up and takes it back every few microseconds, as counting does
around every call into Rust, can keep another one waiting for tens of milliseconds: each release wakes
the waiter and restarts its timer, and it comes too late each time. A short sleep lets it in.
"""

import threading
import time

_WORK_SECONDS = 0.002
_PAUSE_SECONDS = 0.00005
_LET_GO_ITEMS = 4_096

_thread = threading.local()


def start_breathing() -> None:
    """From now on this thread pauses where it calls `breathe`."""
    _thread.due = time.perf_counter() + _WORK_SECONDS


def breathe() -> None:
    """Pauses if this thread is one that does, and has worked for a while; costs 0.1 us if not."""
    due = getattr(_thread, "due", None)
    if due is not None and time.perf_counter() >= due:
        time.sleep(_PAUSE_SECONDS)
        _thread.due = time.perf_counter() + _WORK_SECONDS


def let_go(value: object) -> None:
    """Empties a long list bit by bit: to free a hundred thousand objects at once takes 10 ms."""
    if isinstance(value, list):
        while len(value) > _LET_GO_ITEMS:
            del value[-_LET_GO_ITEMS:]
            breathe()
