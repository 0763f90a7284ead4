"""A load as data: who asks what, and when. The same seed gives the same load, to the byte."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

END_OF_TURN_ID = "2"
SURELY = 100  # a bias that no random logit outweighs
SESSION_HEADER = "x-session-id"
TENANT_HEADER = "x-tenant"
ANSWER_SEED = 1 << 40  # drawn seeds are smaller: no answer says what a question said


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of one token each after a space, what a chat adds around one user message, and what each
    exchange before it (a user's message and its answer) adds.
    """

    words: tuple[str, ...]
    chat_overhead_tokens: int
    exchange_overhead_tokens: int = 0

    @classmethod
    def of_model(cls, folder: Path) -> Self:
        """Reads what tests/sglang/model.py wrote: the words beside the tokenizer, and the tokenizer."""
        known = json.loads((folder / "texts.json").read_text())
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        exchange = "".join(f"<|im_start|>{role}\n a<|im_end|>\n" for role in ("user", "assistant"))
        around = len(tokenizer.encode(exchange).ids) - 2 * len(tokenizer.encode(" a").ids)
        return cls(tuple(known["words"]), known["chat_overhead_tokens"], around)

    def chat_text(self, prompt_tokens: int, seed: int) -> str:
        """Random words that make a chat prompt of exactly `prompt_tokens`."""
        return self.text(prompt_tokens - self.chat_overhead_tokens, seed)

    def text(self, tokens: int, seed: int) -> str:
        """Random words of that many tokens."""
        if tokens < 1:
            raise ValueError(f"a message needs {1 - tokens} tokens more than it was given")
        return "".join(f" {word}" for word in random.Random(seed).choices(self.words, k=tokens))


@dataclass(frozen=True, slots=True)
class Said:
    """An earlier turn of a conversation: the prompt tokens it added, and its answer's, which is made up
    beforehand too, so that the same seed gives the same prompts whatever the model says.
    """

    prompt_tokens: int
    answer_tokens: int
    text_seed: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One chat request. `kind` is the class it is counted in.

    Outputs are fixed in one of two ways: `ends_by_itself` False fills `max_tokens` exactly (the
    end of the turn is ignored); True ends by EOS right after `min_tokens`, as a real model does
    that has said what it had to say, while `max_tokens` (None: not sent) is only a bound.
    """

    kind: str
    prompt_tokens: int
    max_tokens: int | None
    text_seed: int
    min_tokens: int = 0
    ends_by_itself: bool = False
    stream: bool = True
    ask_usage: bool = True
    said: tuple[Said, ...] = ()  # `prompt_tokens` counts these, too
    session: str = ""
    tenant: str = ""
    priority: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What tells a proxy who asks."""
        named = {SESSION_HEADER: self.session, TENANT_HEADER: self.tenant}
        return {name: value for name, value in named.items() if value}

    @property
    def output_tokens(self) -> int:
        """The completion tokens the server will report."""
        if self.ends_by_itself:
            return self.min_tokens + 1  # the EOS itself counts
        if self.max_tokens is None:
            raise ValueError("an output without any end")
        return self.max_tokens

    def body(self, vocabulary: Vocabulary, model: str) -> bytes:
        """The request body; its prompt is exactly `prompt_tokens` long in the tiny model's tokens."""
        made: dict[str, object] = {
            "model": model,
            "messages": self._messages(vocabulary),
            "stream": self.stream,
        }
        if self.max_tokens is not None:
            made["max_tokens"] = self.max_tokens
        if self.ends_by_itself:
            made |= {"min_tokens": self.min_tokens, "logit_bias": {END_OF_TURN_ID: SURELY}}
        else:
            made["ignore_eos"] = True
        if self.stream and self.ask_usage:
            made["stream_options"] = {"include_usage": True}
        if self.priority is not None:
            made["priority"] = self.priority
        return json.dumps(made).encode()

    def _messages(self, vocabulary: Vocabulary) -> list[dict[str, str]]:
        own = self.prompt_tokens - sum(turn.prompt_tokens + turn.answer_tokens for turn in self.said)
        asked = [*((turn.prompt_tokens, turn.text_seed) for turn in self.said), (own, self.text_seed)]
        messages: list[dict[str, str]] = []
        overhead = vocabulary.chat_overhead_tokens
        for number, (tokens, seed) in enumerate(asked):
            messages.append({"role": "user", "content": vocabulary.text(tokens - overhead, seed)})
            overhead = vocabulary.exchange_overhead_tokens
            if number < len(self.said):
                answer = vocabulary.text(self.said[number].answer_tokens, ANSWER_SEED + seed)
                messages.append({"role": "assistant", "content": answer})
        return messages


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one thing after the other, the first `start_seconds` after the load began."""

    start_seconds: float
    asks: tuple[Ask, ...]
    think_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` bounds the requests under way (None: none does).

    `obey_retry_after`: a refused client waits as long as it was told and asks again, for at most
    `patience_seconds` in all; with `obey_should_retry` it does not, where it was told not to.
    `seconds`: when it is over, and who still waits goes away (None: when all is answered).
    """

    clients: tuple[Client, ...]
    concurrency: int | None = None
    obey_retry_after: bool = False
    obey_should_retry: bool = False
    patience_seconds: float = 600.0
    seconds: float | None = None

    @property
    def asks(self) -> list[Ask]:
        return [ask for client in self.clients for ask in client.asks]

    def map(self, change: Callable[[Ask], Ask]) -> "Workload":
        """The same clients with every request changed."""
        clients = (replace(client, asks=tuple(map(change, client.asks))) for client in self.clients)
        return replace(self, clients=tuple(clients))

    def only(self, wanted: Callable[[Client], bool]) -> "Workload":
        """The clients that are `wanted`, as they were."""
        return replace(self, clients=tuple(filter(wanted, self.clients)))


def poisson_times(draw: random.Random, per_second: float, seconds: float) -> list[float]:
    """Arrival times of a Poisson process over `seconds`."""
    times: list[float] = []
    now = draw.expovariate(per_second)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(per_second)
    return times
