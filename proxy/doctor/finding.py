"""What doctor has to say, and how serious it is."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Only trouble changes the exit status."""

    TROUBLE = "trouble"  # it does not work, or not as said
    WARNING = "warning"  # it works worse than it could
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and what to do about it, if anything."""

    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting that would suit better: NAME=VALUE, and why."""

    variable: str
    value: str
    reason: str


def trouble(text: str, remedy: str = "") -> Finding:
    return Finding(Level.TROUBLE, text, remedy)


def warning(text: str, remedy: str = "") -> Finding:
    return Finding(Level.WARNING, text, remedy)


def note(text: str, remedy: str = "") -> Finding:
    return Finding(Level.NOTE, text, remedy)
