"""Traffic described in a few words: `short:8/s:150-450:150`, `long:6x2:64000:500`, `giant@8:180K:200`.

    NAME[@START]:[HOW:]PROMPT:OUTPUT[:OPTIONS]

`HOW` is `R/s` (arrivals as a Poisson process of that rate, until the mix ends) or `CxN` (C clients that
send N requests each, one after the other); without it there is one request. `START` is in seconds.
`PROMPT` and `OUTPUT` are tokens: `300`, `150-450` (drawn evenly), `64K` (64,000). An output of `150` is
exactly that long and says so in `max_tokens`; `~150` ends by itself somewhere around 150, which nobody in
front of the server can know; `~150/4096` does so too and says `max_tokens` 4096.
`OPTIONS`, comma-separated: `tenant=NAME`, `think=SECONDS` (a client's pause between its requests) and
`grow=TOKENS` (a client's requests are one conversation that grows by its answers and that much a turn).
"""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.simulator.mixes import agents, true_speed_story
from proxy.simulator.workload import Ask, Client, Turn, Workload

STAGGER_SECONDS = 0.05  # between the first requests of clients that start together
_SPREAD = 0.5  # sigma of the log-normal length of outputs that end by themselves
_FORM = "NAME[@START]:[RATE/s or CLIENTSxREQUESTS:]PROMPT:OUTPUT[:OPTIONS]"
_OPTIONS = ("tenant", "think", "grow")

BUILT_IN: Mapping[str, Callable[[int], Workload]] = {
    # the mix of docs/algorithm.md: shorts 2/s for 90 s, six clients with three 64K each, one 180K
    "story": lambda seed: true_speed_story(seed=seed),
    # 20 conversations of 12 turns on 48K each
    "agents": lambda seed: agents(20, seed=seed),
}


class MixError(ValueError):
    """The description cannot be read; the text is one line that says which part and why."""


@dataclass(frozen=True, slots=True)
class Span:
    """A length in tokens, drawn evenly from `low` to `high`."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return self.low if self.low == self.high else rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Output:
    """Output lengths. `by_itself`: the model ends it near the length drawn, `max_tokens` is the client's."""

    length: Span
    by_itself: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of request. Neither `rate` nor `clients`: a single one."""

    name: str
    prompt: Span
    output: Output
    starts_at: float = 0.0
    rate: float | None = None
    clients: int = 1
    each: int = 1
    tenant: str = "default"
    think_seconds: float = 0.0
    grow_tokens: int | None = None


def workload_of(texts: Sequence[str], *, seconds: float, seed: int) -> Workload:
    """The traffic that `texts` describe together, in built-in names or in words.

    `seconds`: how long arrivals at a rate go on. Raises MixError.
    """
    whole = Workload("", ())
    names: set[str] = set()
    for number, text in enumerate(texts):
        part = None if text in BUILT_IN else parse_part(text)
        name = part.name if part else text
        if name in names:
            raise MixError(f"two parts of the mix are called {name!r}")
        names.add(name)
        rng = random.Random(f"{text} {number} {seed}")
        whole += _made(part, seconds, rng) if part else BUILT_IN[text](seed)
    if not whole.requests:
        raise MixError(f"no request arrives within {seconds:g} s" if texts else "no traffic is described")
    return replace(whole, name=", ".join(texts))


def parse_part(text: str) -> Part:
    """One description. Raises MixError."""
    fields = [field.strip() for field in text.split(":")]
    name, _, start = fields[0].partition("@")
    if not name or len(fields) < 3:
        known = ", ".join(BUILT_IN)
        raise MixError(f"mix {text!r}: expected {_FORM}, or one of {known}")
    how = fields[1] if _is_how(fields[1]) else ""
    sizes = fields[2 if how else 1 :]
    if len(sizes) not in (2, 3):
        raise MixError(f"mix {text!r}: expected {_FORM}")
    try:
        part = Part(name, _span(sizes[0]), _output(sizes[1]), starts_at=_seconds(start) if start else 0.0)
        part = _with_how(part, how) if how else part
        return _with_options(part, sizes[2]) if len(sizes) == 3 else part
    except ValueError as error:
        raise MixError(f"mix {text!r}: {error}") from None


def _is_how(text: str) -> bool:
    return text.endswith("/s") or re.fullmatch(r"\d+x\d+", text) is not None


def _with_how(part: Part, text: str) -> Part:
    if text.endswith("/s"):
        rate = _number(text[:-2], "a rate")
        if not 0 < rate <= 10_000:
            raise ValueError(f"a rate of {text} is not above 0 and at most 10000 a second")
        return replace(part, rate=rate)
    clients, each = (int(number) for number in text.split("x"))
    if not clients or not each:
        raise ValueError(f"{text} is nobody")
    return replace(part, clients=clients, each=each)


def _with_options(part: Part, text: str) -> Part:
    for option in filter(None, text.split(",")):
        key, _, value = option.partition("=")
        match key:
            case "tenant" if value:
                part = replace(part, tenant=value)
            case "think":
                part = replace(part, think_seconds=_seconds(value))
            case "grow":
                part = replace(part, grow_tokens=_tokens(value))
            case _:
                raise ValueError(f"{option!r} is none of {', '.join(f'{o}=...' for o in _OPTIONS)}")
    if part.rate is not None and (part.think_seconds or part.grow_tokens is not None):
        raise ValueError("think and grow are for clients (CxN), not for arrivals at a rate")
    return part


def _span(text: str) -> Span:
    low, dash, high = text.partition("-")
    span = Span(_tokens(low), _tokens(high if dash else low))
    if span.low > span.high:
        raise ValueError(f"{text}: the first is larger than the second")
    return span


def _output(text: str) -> Output:
    if not text.startswith("~"):
        if "/" in text:
            raise ValueError(f"{text}: only an output that ends by itself (~) takes a max_tokens")
        return Output(_span(text))
    length, slash, most = text[1:].partition("/")
    return Output(_span(length), by_itself=True, max_tokens=_tokens(most) if slash else None)


def _tokens(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    value = round(float(match[1]) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if not 0 < value <= 100_000_000:
        raise ValueError(f"{text!r} is no number of tokens")
    return value


def _seconds(text: str) -> float:
    value = _number(text, "seconds")
    if value < 0:
        raise ValueError(f"{text!r} s is in the past")
    return value


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not {what}")
    return value


# --- from parts to requests -------------------------------------------------------------------


def _made(part: Part, seconds: float, rng: random.Random) -> Workload:
    clients = _arrivals(part, seconds, rng) if part.rate is not None else _clients(part, rng)
    return Workload(part.name, tuple(clients))


def _arrivals(part: Part, seconds: float, rng: random.Random) -> list[Client]:
    made: list[Client] = []
    assert part.rate is not None
    at = part.starts_at + rng.expovariate(part.rate)
    while at < seconds:
        name = f"{part.name} {len(made)}"
        made.append(Client(name, (Turn(_ask(part, name, (), rng)),), at))
        at += rng.expovariate(part.rate)
    return made


def _clients(part: Part, rng: random.Random) -> list[Client]:
    made = []
    for number in range(part.clients):
        name = f"{part.name} {number}"
        turns: list[Turn] = []
        for turn in range(part.each):
            said = _said(part, turns)
            ask = _ask(part, f"{name} {turn}", said, rng)
            turns.append(Turn(ask, part.think_seconds * rng.uniform(0.8, 1.2) if turn else 0.0))
        made.append(Client(name, tuple(turns), part.starts_at + number * STAGGER_SECONDS))
    return made


def _said(part: Part, turns: Sequence[Turn]) -> tuple[tuple[str, int], ...]:
    """What a conversation's next request repeats: the prompt before it and its answer."""
    if part.grow_tokens is None or not turns:
        return ()
    last = turns[-1].ask
    return (*last.spans, (last.output_key, last.output_tokens))


def _ask(part: Part, key: str, said: tuple[tuple[str, int], ...], rng: random.Random) -> Ask:
    drawn = part.output.length.draw(rng)
    own = part.grow_tokens if said and part.grow_tokens else part.prompt.draw(rng)
    if part.output.by_itself:
        drawn = max(1, round(drawn * rng.lognormvariate(-(_SPREAD**2) / 2, _SPREAD)))
        drawn = min(drawn, part.output.max_tokens or drawn)
    return Ask(
        part.name,
        (*said, (key, own)),
        drawn,
        max_tokens=part.output.max_tokens if part.output.by_itself else drawn,
        output_key=f"{key} answer",
        tenant=part.tenant,
    )
