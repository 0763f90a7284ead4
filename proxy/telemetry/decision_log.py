"""The decision log: one JSON line per admission decision, for replay and audit. No text of any prompt."""

import logging
import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import orjson

from proxy.telemetry.line_writer import LineWriter

logger = logging.getLogger(__name__)


class DecisionLog:
    """Appends to the file at `path`, created with access for its owner only.

    A file that cannot be written never harms a request: its lines are dropped, counted by
    `dropped`, and the log says so once. Truncation by logrotate (`copytruncate`) is fine.
    """

    def __init__(self, path: Path, *, dropped: Callable[[int], object]) -> None:
        self._dropped = dropped
        self._salt = os.urandom(16)
        self._unencodable_said = False

        def open_fd(flags: int = 0) -> int:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)

        try:  # a wrong path is told at the start, not with the first decision; a pipe must not hold that up
            os.close(open_fd(os.O_NONBLOCK))
        except OSError as error:
            logger.warning("decision log %s: cannot be opened: %s", path, error.strerror)
        self._writer = LineWriter(
            open_fd,
            dropped=dropped,
            said=lambda text: logger.warning("decision log %s: %s", path, text),
        )

    def alias(self, value: bytes) -> str:
        """The same for equal values of one run; nobody can tell the value by it, nor try guesses."""
        return blake2b(value, key=self._salt, digest_size=8).hexdigest()

    def write(self, decision: Mapping[str, object]) -> None:
        """One decision. Never blocks, never raises."""
        try:
            line = orjson.dumps(decision, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:  # a lone surrogate in a name, or a value JSON has no form for
            self._dropped(1)
            if not self._unencodable_said:
                self._unencodable_said = True
                logger.warning("decision log: a line cannot be encoded (%s); such lines are dropped", error)
            return
        self._writer.write(line)

    def close(self) -> None:
        """Writes what is pending and closes the file."""
        self._writer.close()
