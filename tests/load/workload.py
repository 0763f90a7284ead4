"""A load as data: who asks what, and when. The same seed gives the same load, to the byte."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Self

END_OF_TURN_ID = "2"
SURELY = 100  # a bias that no random logit outweighs


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of one token each after a space, and what a chat adds around one user message."""

    words: tuple[str, ...]
    chat_overhead_tokens: int

    @classmethod
    def of_model(cls, folder: Path) -> Self:
        """Reads what tests/sglang/model.py wrote beside the tokenizer."""
        known = json.loads((folder / "texts.json").read_text())
        return cls(tuple(known["words"]), known["chat_overhead_tokens"])

    def chat_text(self, prompt_tokens: int, seed: int) -> str:
        """Random words that make a chat prompt of exactly `prompt_tokens`."""
        count = prompt_tokens - self.chat_overhead_tokens
        if count < 1:
            raise ValueError(f"a chat prompt has more than {self.chat_overhead_tokens} tokens")
        return "".join(f" {word}" for word in random.Random(seed).choices(self.words, k=count))


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
        content = vocabulary.chat_text(self.prompt_tokens, self.text_seed)
        made: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
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
        return json.dumps(made).encode()


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
    `patience_seconds` in all.
    """

    clients: tuple[Client, ...]
    concurrency: int | None = None
    obey_retry_after: bool = False
    patience_seconds: float = 600.0

    @property
    def asks(self) -> list[Ask]:
        return [ask for client in self.clients for ask in client.asks]


def poisson_times(draw: random.Random, per_second: float, seconds: float) -> list[float]:
    """Arrival times of a Poisson process over `seconds`."""
    times: list[float] = []
    now = draw.expovariate(per_second)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(per_second)
    return times
