"""Does the server count as we do? About ten small probes against its `/v1/tokenize`.

Pure but for the function that asks, so that start-up, `doctor` and tests can share it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer

Result = Literal["equal", "different", "estimated", "unanswered"]
RESULTS: tuple[Result, ...] = get_args(Result)

Ask = Callable[[dict[str, Any]], Awaitable[int | None]]
"""Posts a body to `/v1/tokenize` and gives its `count`, None when the server does not answer with one."""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
_TURNS = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is the capital of Switzerland?"},
    {"role": "assistant", "content": "It is Bern."},
    {"role": "user", "content": "Wie heißt sie auf Französisch, und wie viele Leute wohnen dort (2024)?"},
]
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 3}'},
}
_AGENT = [
    {"role": "user", "content": "How is the weather in Zürich?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"temp": 20.5, "sky": "☀️"}'},
]
_PLAIN: dict[str, str] = {
    "English": "It's 3:45 pm; we'll pay $1,234.56 (about 20%) — don't wait!\n\n  - one\n  - two\n",
    "code": "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\n\nclass A:\n\tpass\n",
    "JSON": '{"values": [1, 2.5e-3, null, true], "ключ": {"id": 12345678}}',
    "Chinese and Japanese": "敏捷的棕色狐狸跳过了懒狗。カタカナとひらがな、123年。",
    "many scripts": "Съешь ещё французских булок. नमस्ते สวัสดี שלום 한국어 naïve café",
    "emoji and spaces": "👩‍👩‍👧‍👦 🏳️‍🌈   \t\n \u3000x\u00a0y",
}
_CHATS: dict[str, dict[str, Any]] = {
    "chat": {"messages": _TURNS[1:2]},
    "chat of several turns": {"messages": _TURNS},
    "chat with tools": {"messages": _TURNS[:2], "tools": _TOOLS},
    "tool call and result": {"messages": _AGENT, "tools": _TOOLS},
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One question: our count and the server's, None where it did not answer."""

    name: str
    chat: bool
    ours: int
    exact: bool
    server: int | None

    @property
    def result(self) -> Result:
        """What came of it; `estimated`: our count does not claim to be exact."""
        if self.server is None:
            return "unanswered"
        if not self.exact:
            return "estimated"
        return "different" if self.differs else "equal"

    @property
    def differs(self) -> bool:
        """Whether both counted and the counts are not the same."""
        return self.server is not None and self.server != self.ours


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What the probes say. `wrong`: counts that claim to be exact are not; `verdict` is one sentence."""

    probes: tuple[Probe, ...]
    wrong: bool
    verdict: str

    @property
    def results(self) -> dict[str, int]:
        """How many probes came to each result."""
        found = [probe.result for probe in self.probes]
        return {result: found.count(result) for result in RESULTS}

    @property
    def error_share(self) -> float:
        """Mean of |ours / server - 1| over the probes that were answered."""
        errors = [abs(probe.ours / probe.server - 1) for probe in self.probes if probe.server]
        return sum(errors) / len(errors) if errors else 0.0


async def self_check(sizer: Sizer, ask: Ask, model: str = "") -> SelfCheck:
    """Asks all probes, one after the other. `model` goes into their bodies. Raises what `ask` raises."""
    probes = []
    for name, text in _PLAIN.items():
        sized = await sizer.size(Api.COMPLETIONS, orjson.dumps({"model": model, "prompt": text}))
        server = await ask({"model": model, "prompt": text})
        probes.append(Probe(name, False, sized.raw_tokens, sized.by_model, server))
    for name, chat in _CHATS.items():
        body = {"model": model} | chat
        sized = await sizer.size(Api.CHAT, orjson.dumps(body))
        probes.append(Probe(name, True, sized.raw_tokens, sized.by_model, await ask(body)))
    return _judged(tuple(probes), sizer.stats().note)


def _judged(probes: tuple[Probe, ...], note: str | None) -> SelfCheck:
    answered = [probe for probe in probes if probe.server is not None]
    exact = [probe for probe in answered if probe.exact]
    texts = [probe.name for probe in exact if not probe.chat and probe.differs]
    chats = [probe.name for probe in exact if probe.chat and probe.differs]
    if not answered:
        return SelfCheck(probes, False, "the server does not answer /v1/tokenize: counting is not checked")
    if not exact:
        reason = note or "no tokenizer directory is set"
        return SelfCheck(probes, False, f"counts are calibrated estimates: {reason}")
    if texts:
        verdict = f"the tokenizer directory is not this server's: counts differ for {', '.join(texts)}"
        return SelfCheck(probes, True, verdict)
    if chats:
        verdict = f"the server uses another chat template: counts differ for {', '.join(chats)}"
        return SelfCheck(probes, True, verdict)
    if note is not None:
        return SelfCheck(probes, False, f"plain prompts are counted exactly; {note}")
    return SelfCheck(probes, False, f"all {len(exact)} probes are counted as the server counts them")
