"""What all the clients of a soak got."""

from collections import Counter
from dataclasses import dataclass, field

from tests.load.outcome import Outcome


@dataclass
class Tally:
    """Every request ends in one of `ends`; those that nobody answered are in `unanswered` as well."""

    ends: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return self.ends.total()

    def note(self, outcome: Outcome, *, left: bool) -> None:
        """`left`: it went away by itself, so that nothing is owed to it."""
        if outcome.served:
            self.ends["served"] += 1
        elif left:
            self.ends["left"] += 1
        elif outcome.refused:
            self.ends["refused"] += 1
        elif _is_answer(outcome):
            self.ends["told of a failure"] += 1
        else:
            self.lost(f"{outcome.kind}: status {outcome.status}, {outcome.error}")

    def lost(self, what: str) -> None:
        self.ends["unanswered"] += 1
        self.unanswered.append(what)

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {end}" for end, count in self.ends.most_common())


def _is_answer(outcome: Outcome) -> bool:
    """A status with its whole body, a stream that ends with its error, or a body cut off as it came."""
    if outcome.status == 0:
        return False
    return not (outcome.broken and outcome.streams)
