"""A workload's requests as chat bodies: spans become messages, a turn's answer what was really said."""

from collections.abc import Mapping
from typing import Any

from proxy.simulator.text import words
from proxy.simulator.workload import Ask

# What a chat template adds: to every message, and once around them all.
MESSAGE_TOKENS = 2
FRAME_TOKENS = 2


def body_of(ask: Ask, *, model: str, said: Mapping[str, str], tokens_per_word: float = 1.0) -> dict[str, Any]:
    """A streaming chat body of about `ask.prompt_tokens` tokens: exactly so many on the simulator.

    `said` holds earlier outputs by their keys; a span with such a key is the assistant's. `tokens_per_word`
    is the server's tokenizer on `text.words`.
    """
    messages = []
    for number, (key, tokens) in enumerate(ask.spans):
        spoken = said.get(key)
        if spoken is not None:
            messages.append({"role": "assistant", "content": spoken})
            continue
        around = MESSAGE_TOKENS + (FRAME_TOKENS if number == 0 else 0)
        count = max(1, round((tokens - around) / tokens_per_word))
        messages.append({"role": "user", "content": words(key, count)})
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ask.max_tokens is not None:
        body["max_tokens"] = ask.max_tokens
    if ask.min_tokens:
        body["min_tokens"] = ask.min_tokens
    if ask.ignore_eos:
        body["ignore_eos"] = True
    return body
