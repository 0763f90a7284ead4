"""Recorded traffic, read for a replay: the proxy's decision log, or any trace with times and lengths.

A line is a JSON object (JSON Lines), or the file is CSV with a header. Known are

    the log of PROXY_DECISION_LOG       ts, event, rid, prompt_tokens, max_tokens, tenant, segments ...
    Mooncake's traces                   timestamp (ms), input_length, output_length, hash_ids
    Azure's LLM inference traces (CSV)  TIMESTAMP, ContextTokens, GeneratedTokens

and anything that has a time, prompt tokens and output tokens under one of these names. Equal `segments`
(name and tokens) or `hash_ids` (blocks of 512 tokens) in front are shared prefixes; without them every
prompt is taken to be new. Equal `session`s are one conversation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.simulator.trace_lines import Line, TraceError, first_of, moment, number, objects, tokens
from proxy.simulator.workload import Ask, Client, Turn, Workload

__all__ = ["Trace", "TraceError", "read_trace"]

HASH_BLOCK_TOKENS = 512  # of Mooncake's hash_ids
USUAL_OUTPUT_TOKENS = 256  # where a line tells nothing about its output
_TIMES = ("ts", "timestamp", "time", "arrived_at", "TIMESTAMP")
_PROMPTS = ("prompt_tokens", "input_length", "input_tokens", "ContextTokens")
_OUTPUTS = ("completion_tokens", "output_length", "output_tokens", "GeneratedTokens")
_EVENTS = ("dispatch", "refuse")
_EPOCH_SECONDS = (1e9, 1e11)  # from 2001 on, and not yet milliseconds


@dataclass(slots=True)
class Arrived:
    """One request. `at`: seconds on the trace's own clock. `output_tokens` None: not recorded."""

    at: float
    prompt_tokens: int
    output_tokens: int | None = None
    max_tokens: int | None = None
    reserve_tokens: int | None = None
    tenant: str = "default"
    model: str = ""
    session: str = ""
    ignore_eos: bool = False
    prefix: tuple[tuple[str, int], ...] = ()  # what may be shared, from the start: (name, tokens)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload, and what had to be assumed to replay it, in sentences."""

    workload: Workload
    notes: tuple[str, ...]


def read_trace(
    path: Path, *, unit: str = "auto", model: str = "", seconds: float | None = None, load: float = 1.0
) -> Trace:
    """The requests of the file at `path`, the first arriving at 0.

    `unit`: of its times, "s", "ms" or "auto". `model`: only its requests. `seconds`: only those of the
    first so many. `load`: how many times faster they arrive than they did. Raises TraceError and OSError.
    """
    reading = _Reading(path.name)
    with path.open(encoding="utf-8", newline="") as file:
        for line_number, line in objects(file, path.name):
            reading.take(line_number, line)
    arrived = [request for request in reading.requests.values() if model in ("", request.model)]
    if not arrived:
        of = f" of model {model!r}" if model else ""
        raise TraceError(f"{path.name}: no request{of} in it")
    guessed = unit == "auto" and reading.milliseconds
    last = _start_at_zero(arrived, (1e-3 if unit == "ms" or guessed else 1.0) / load)
    kept = [request for request in arrived if seconds is None or request.at <= seconds]
    clients = tuple(_client(position, request) for position, request in enumerate(kept))
    of = f", of {len(arrived)} in {last:.0f} s" if len(kept) < len(arrived) else ""
    notes = [f"{len(kept)} requests in {kept[-1].at:.0f} s{of}"]
    if guessed:
        notes.append("times are whole numbers: taken as milliseconds (--trace-unit s, if they are seconds)")
    notes += reading.notes(kept, one_model=bool(model))
    return Trace(Workload(path.name, clients), tuple(notes))


def _start_at_zero(arrived: list[Arrived], scale: float) -> float:
    """Sorts by time, the first at 0 s; gives the last one's time."""
    arrived.sort(key=lambda request: request.at)
    first = arrived[0].at
    for request in arrived:
        request.at = (request.at - first) * scale
    return arrived[-1].at


class _Reading:
    """Takes a file line by line. What is logged twice under one id is one request."""

    def __init__(self, name: str) -> None:
        self.requests: dict[str, Arrived] = {}
        self.milliseconds = True  # whole numbers that are no point in time, as Mooncake's
        self._name = name
        self._refused = 0
        self._segment_tokens: dict[str, int] = {}

    def take(self, line_number: int, line: Line) -> None:
        """One line. Raises TraceError."""
        event, rid = line.get("event"), str(line.get("rid") or f"line {line_number}")
        try:
            if event is None or event in _EVENTS:
                self.requests.setdefault(rid, self._arrived(line))
                self._refused += event == "refuse"
            elif rid in self.requests:  # its end, with the true length of its answer
                output = first_of(line, _OUTPUTS)
                self.requests[rid].output_tokens = None if output is None else tokens(output)
        except ValueError as error:
            raise TraceError(f"{self._name}, line {line_number}: {error}") from None

    def _arrived(self, line: Line) -> Arrived:
        output, most = first_of(line, _OUTPUTS), line.get("max_tokens")
        prompt, reserve = first_of(line, _PROMPTS), line.get("reserve_tokens")
        if prompt is None:
            raise ValueError("has no prompt_tokens or input_length")
        return Arrived(
            at=self._time(line) - number(line.get("waited_s") or 0.0, "a time"),
            prompt_tokens=max(1, tokens(prompt)),
            output_tokens=None if output is None else tokens(output),
            max_tokens=None if most is None else max(1, tokens(most)),
            reserve_tokens=None if reserve is None else tokens(reserve),
            tenant=str(line.get("tenant") or "default"),
            model=str(line.get("model") or ""),
            session=str(line.get("session") or ""),
            ignore_eos=line.get("ignore_eos") is True,
            prefix=self._segments(line.get("segments")) or _blocks(line.get("hash_ids")),
        )

    def _segments(self, value: object) -> tuple[tuple[str, int], ...]:
        """`segments` of the decision log. One that comes again may have been estimated anew: it is as
        long as it was at first, or it would not be the same. Raises ValueError."""
        if not isinstance(value, list):
            return ()
        found = []
        for item in value:
            if not (isinstance(item, list) and len(item) == 2):
                raise ValueError("segments are not pairs of a name and tokens")
            name = f"segment {item[0]}"
            found.append((name, self._segment_tokens.setdefault(name, max(1, tokens(item[1])))))
        return tuple(found)

    def _time(self, line: Line) -> float:
        value = first_of(line, _TIMES)
        if value is None:
            raise ValueError("has no ts or timestamp")
        at = moment(value) if isinstance(value, str) else None
        if at is not None:
            self.milliseconds = False
            return at
        at = number(value, "a time")
        low, high = _EPOCH_SECONDS
        self.milliseconds &= at.is_integer() and "ts" not in line and not low <= at < high
        return at

    def notes(self, kept: Sequence[Arrived], *, one_model: bool) -> Iterator[str]:
        """What was assumed."""
        unknown = sum(request.output_tokens is None for request in kept)
        if unknown:
            yield (
                f"the outputs of {unknown} are not recorded: taken to be as long as what was reserved, "
                f"or max_tokens, or {USUAL_OUTPUT_TOKENS} tokens"
            )
        if self._refused:
            yield f"{self._refused} in the file were refused; a retry of one is a request of its own here"
        if not any(request.prefix for request in kept):
            yield "no shared prefixes are recorded: every prompt is taken to be new"
        names = sorted({request.model for request in kept if request.model})
        if len(names) > 1 and not one_model:
            shown = ", ".join(names[:5])
            yield f"it has {len(names)} models ({shown}), here all on one pool: choose one with --model"


# --- from lines to requests -------------------------------------------------------------------


def _client(position: int, request: Arrived) -> Client:
    name = f"trace {position}"
    output = request.output_tokens
    if output is None:
        guess = request.reserve_tokens or request.max_tokens or USUAL_OUTPUT_TOKENS
        output = min(guess, request.max_tokens or guess)
    ask = Ask(
        _size(request.prompt_tokens),
        _spans(name, request),
        max(1, output),
        max_tokens=request.max_tokens,
        output_key=f"{name} answer",
        ignore_eos=request.ignore_eos,
        tenant=request.tenant,
        session=request.session,
    )
    return Client(name, (Turn(ask),), request.at)


def _blocks(value: object) -> tuple[tuple[str, int], ...]:
    """Mooncake's `hash_ids`."""
    return tuple((f"block {block}", HASH_BLOCK_TOKENS) for block in value) if isinstance(value, list) else ()


def _spans(name: str, request: Arrived) -> tuple[tuple[str, int], ...]:
    """The prompt's pieces: what may be shared as far as it reaches, and a rest of its own."""
    spans: list[tuple[str, int]] = []
    rest = request.prompt_tokens
    for key, size in request.prefix:
        if rest < size:  # the last block is not whole: equal ones are shared as well
            return (*spans, (key, rest)) if rest else tuple(spans)
        spans.append((key, size))
        rest -= size
    return (*spans, (name, rest)) if rest else tuple(spans)


def _size(prompt_tokens: int) -> str:
    for name, most in (("to 1K", 1_000), ("to 8K", 8_192), ("to 32K", 32_768), ("to 128K", 131_072)):
        if prompt_tokens <= most:
            return name
    return "over 128K"
