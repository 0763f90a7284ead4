"""A trace file's lines as objects, and values in them as numbers: JSON Lines, or CSV with a header."""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any

Line = Mapping[str, Any]


class TraceError(ValueError):
    """The file cannot be used; the text is one line that says where and why."""


def objects(file: Iterable[str], name: str) -> Iterator[tuple[int, Line]]:
    """Each line with its number; a CSV file's rows as objects of texts. Raises TraceError."""
    lines = iter(file)
    first = next(lines, "").lstrip("\ufeff")
    if first.strip() and not first.lstrip().startswith("{"):
        header = next(csv.reader([first]))
        for number, row in enumerate(csv.DictReader(lines, fieldnames=header), start=2):
            yield number, {key: value for key, value in row.items() if value not in (None, "")}
        return
    for number, line in enumerate(chain([first], lines), start=1):
        if line.strip():
            yield number, _object(line, f"{name}, line {number}")


def _object(line: str, where: str) -> Line:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where}: not JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise TraceError(f"{where}: not a JSON object")
    return value


def first_of(line: Line, names: Iterable[str]) -> Any:
    """The value under the first of these names that has one, else None."""
    return next((line[name] for name in names if line.get(name) is not None), None)


def tokens(value: object) -> int:
    """Raises ValueError."""
    count = number(value, "a number of tokens")
    if not 0 <= count <= 1e8:
        raise ValueError(f"{value!r} is not a number of tokens")
    return round(count)


def number(value: Any, what: str) -> float:
    """Raises ValueError for what is not finite."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{value!r} is not {what}")
    return found


def moment(text: str) -> float | None:
    """Seconds since the epoch of an ISO time (of UTC, where it names no zone); None for another text."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
