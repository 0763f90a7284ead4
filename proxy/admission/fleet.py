"""All lines, and what is asked of all of them at every step, without walking them at every step.

Whoever changes a line says so (`changed`); what is noted of it is made anew when somebody asks. So a
step costs by what it changed, not by how many pools there are.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from math import inf, log2
from typing import NamedTuple

from proxy.admission.line import Line
from proxy.admission.types import PoolFacts

FEW_LINES = 8  # so many are looked at one by one
LATEST_LINES = 4  # of each kind, that others may take work from
ALIKE = 16  # a lane's standing is noted anew when more than a sixteenth of those that wait came or left,
LONG_RANK_SECONDS = 0.25  # or so long after the ledgers changed where longs wait; else at once,
RANK_SECONDS = 1.0  # or so long after in any case
STALE_ALARMS = 64  # and twice as many as there are lines, before they are swept out
SPEED_CLASSES = 2.0  # per doubling: within one the prefill of the same prompt differs by at most 1.4
LOOK_SECONDS = 0.2  # some things change with time alone, slowly, and no alarm tells them

#: what a newcomer to a lane finds: whether others of it wait, when they will have gone (0: at once),
#: how many tokens are taken; and a number that tells any two lines apart
Standing = tuple[bool, float, int, int]
Ranked = list[tuple[Standing, Line]]


class Kind(NamedTuple):
    """Lines that differ only in what they have to do: they serve the same models, about as fast."""

    models: tuple[str, ...]
    tier: str
    speed: int


class _Place:
    """Where a lane is ranked, and what that rests on."""

    __slots__ = ("at", "standing", "version", "waiting")

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self.version = -1
        self.waiting = 0
        self.at = -inf


class _Note:
    """What was seen of a line when it was looked at last."""

    __slots__ = (
        "alarm_at",
        "facts",
        "kind",
        "line",
        "looked_at",
        "number",
        "places",
        "rate",
        "waiting_requests",
        "waiting_tokens",
    )

    def __init__(self, line: Line, number: int) -> None:
        self.line = line
        self.number = number
        self.kind: Kind | None = None
        self.rate = 0.0
        self.facts: PoolFacts | None = None
        self.places = (_Place(), _Place())  # of the short lane, and of the long
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.alarm_at: float | None = None
        self.looked_at = -inf


class Fleet:
    """The lines by the names of their pools."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.version = 0  # changes with who is there and what they serve
        self._notes: dict[str, _Note] = {}
        self._numbers = 0
        self._unheard: dict[str, _Note] = {}  # changed since their alarm was set
        self._unranked: dict[str, _Note] = {}  # changed since the last ranking
        self._kinds: dict[Kind, tuple[Ranked, Ranked]] = {}  # by lane, the soonest first
        self._alarms: list[tuple[float, int, str]] = []
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.pool_tokens = 0  # of all pools together

    @property
    def few(self) -> bool:
        """Are there so few that each may be looked at?"""
        return len(self.lines) <= FEW_LINES

    # --- who is there --------------------------------------------------------------------------

    def add(self, line: Line) -> None:
        """A pool that was not known."""
        name = line.pool.name
        self._numbers += 1
        self.lines[name] = line
        self._notes[name] = _Note(line, self._numbers)
        self.regrouped()
        self.changed(line)

    def remove(self, line: Line) -> None:
        """Its pool is gone; nobody waits there any more."""
        name = line.pool.name
        note = self._notes.pop(name)
        self._count(note, 0, 0)
        self._take_out(note)
        self._unheard.pop(name, None)
        self._unranked.pop(name, None)
        del self.lines[name]
        self.regrouped()

    def regrouped(self) -> None:
        """Lines came, went, or serve something else."""
        self.version += 1
        self.pool_tokens = sum(line.pool.facts.pool_tokens for line in self.lines.values())

    def changed(self, line: Line) -> None:
        """Who waits in `line`, or what its pool holds, has changed."""
        name = line.pool.name
        note = self._unheard[name] = self._unranked[name] = self._notes[name]
        self._count(note, len(line), line.waiting_tokens)

    # --- what waits ----------------------------------------------------------------------------

    def _count(self, note: _Note, requests: int, tokens: int) -> None:
        self.waiting_requests += requests - note.waiting_requests
        self.waiting_tokens += tokens - note.waiting_tokens
        note.waiting_requests, note.waiting_tokens = requests, tokens

    # --- where one would wait least ----------------------------------------------------------------

    @property
    def kinds(self) -> Iterable[Kind]:
        return self._kinds

    def soonest(self, kind: Kind, *, long: bool) -> Ranked:
        """The lines of a kind, that with the shortest wait in this lane first, roughly."""
        return self._kinds[kind][long]

    def standing(self, line: Line, *, long: bool) -> Standing:
        """What a newcomer to this lane of `line` finds there, roughly."""
        return self._notes[line.pool.name].places[long].standing or (False, 0.0, 0, 0)

    def latest(self) -> Iterator[Line]:
        """Lines that somebody waits in: of each kind and lane those with the longest wait."""
        for lanes in list(self._kinds.values()):
            for ranked in lanes:
                for (queued, *_), line in ranked[: -LATEST_LINES - 1 : -1]:
                    if queued:
                        yield line

    def rank(self, now: float) -> None:
        """Note the standing of those that have changed."""
        if not self.few:
            for note in self._unranked.values():
                self._rank(note, now)
            self._unranked.clear()

    def _rank(self, note: _Note, now: float) -> None:
        line, pool = note.line, note.line.pool
        rate = pool.costs.tokens_per_second
        if note.kind is None or rate != note.rate or pool.facts is not note.facts:
            note.rate, note.facts = rate, pool.facts
            kind = Kind(pool.facts.models, pool.facts.tier, int(SPEED_CLASSES * log2(max(1.0, rate))))
            if kind != note.kind:
                self._take_out(note)
                note.kind = kind
                self._kinds.setdefault(kind, ([], []))
        assert note.kind is not None
        lanes = self._kinds[note.kind]
        for long, place in ((False, note.places[False]), (True, note.places[True])):
            waiting = line.longs.requests if long else line.shorts.requests
            alike = abs(waiting - place.waiting) <= place.waiting // ALIKE
            most_seconds = RANK_SECONDS
            if place.version != pool.version:
                most_seconds = LONG_RANK_SECONDS if long and waiting else 0.0
            if place.standing is not None and alike and now - place.at < most_seconds:
                continue
            if place.standing is not None:
                del lanes[long][bisect_left(lanes[long], (place.standing,))]
            seconds = line.rough_wait(now, long=long)
            ready_at = now + seconds if seconds else 0.0
            place.standing = waiting > 0, ready_at, pool.effective_tokens, note.number
            place.version, place.waiting, place.at = pool.version, waiting, now
            insort(lanes[long], (place.standing, line))

    def _take_out(self, note: _Note) -> None:
        if note.kind is None:
            return
        lanes = self._kinds[note.kind]
        for ranked, place in zip(lanes, note.places, strict=True):
            if place.standing is not None:
                del ranked[bisect_left(ranked, (place.standing,))]
                place.standing = None
        if not lanes[0]:
            del self._kinds[note.kind]
        note.kind = None

    # --- when to look again ------------------------------------------------------------------------

    def wakeup(self, now: float) -> float | None:
        """When the first of them wants to be looked at although nothing happens."""
        for note in self._unheard.values():
            self._set_alarm(note, now)
        self._unheard.clear()
        while self._alarms:
            at, number, name = self._alarms[0]
            found = self._notes.get(name)
            set_for_it = found is not None and found.number == number and found.alarm_at == at
            if set_for_it and at > now:
                return at
            heapq.heappop(self._alarms)
            if found is not None and set_for_it:
                found.alarm_at = None
                again_at = self._set_alarm(found, now)
                if again_at is not None and again_at <= now:
                    return again_at
        return None

    def _set_alarm(self, note: _Note, now: float) -> float | None:
        at = note.line.wakeup(now)
        if at is not None and at != note.alarm_at:
            heapq.heappush(self._alarms, (at, note.number, note.line.pool.name))
        note.alarm_at = at
        if len(self._alarms) > 2 * len(self._notes) + STALE_ALARMS:
            set_ones = [(other.alarm_at, other) for other in self._notes.values()]
            self._alarms = [(at, n.number, n.line.pool.name) for at, n in set_ones if at is not None]
            heapq.heapify(self._alarms)
        return at

    def looked_at(self, line: Line, now: float) -> None:
        """`line` was asked who may go."""
        self._notes[line.pool.name].looked_at = now

    def due(self, now: float) -> list[Line]:
        """Those where time alone may have changed something: all, while they are few."""
        if self.few:
            return list(self.lines.values())
        return [
            note.line
            for name, note in self._notes.items()
            if note.looked_at <= now - LOOK_SECONDS
            or name in self._unheard
            or (note.alarm_at is not None and note.alarm_at <= now)
        ]
