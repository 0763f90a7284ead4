"""Good requests of every kind: what mutations begin with."""

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Dice = random.Random
_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x02\x00\x00\x00\x02\x00\x08\x02\x00\x00\x00"
_WORDS = ("tell", "me", "a", "story", "of", "Zürich", "日本", "🙂", "x" * 40, "\\n", "0", "{}", "<|im_end|>")


@dataclass(frozen=True)
class Sample:
    """One request: its target, and its JSON body (None: it has none)."""

    method: str
    target: str
    body: Any = None


def text(dice: Dice) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.choice((0, 1, 5, 60))))


def _chat(dice: Dice) -> Sample:
    messages: list[Any] = [{"role": dice.choice(("system", "user")), "content": text(dice)}]
    if dice.random() < 0.3:
        image = "data:image/png;base64," + base64.b64encode(_PNG + bytes(40)).decode()
        part = {"type": "image_url", "image_url": {"url": image, "detail": "low"}}
        messages.append({"role": "user", "content": [{"type": "text", "text": text(dice)}, part]})
    if dice.random() < 0.3:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": text(dice)})
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 20}
    if dice.random() < 0.3:
        schema = {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}}
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    if dice.random() < 0.3:
        body |= {"n": 2, "stop": ["a", "b"], "seed": 1, "response_format": {"type": "text"}}
    return Sample("POST", "/v1/chat/completions", _streamed(dice, body))


def _completion(dice: Dice) -> Sample:
    prompt = dice.choice((text(dice), [text(dice), text(dice)], [1, 2, 3], [[1, 2], [3]]))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 5, "echo": False, "ignore_eos": True}
    return Sample("POST", "/v1/completions", _streamed(dice, body))


def _messages(dice: Dice) -> Sample:
    content = dice.choice((text(dice), [{"type": "text", "text": text(dice)}]))
    body = {
        "model": "tiny",
        "max_tokens": 9,
        "system": text(dice),
        "messages": [{"role": "user", "content": content}],
    }
    return Sample("POST", "/v1/messages", _streamed(dice, body))


def _responses(dice: Dice) -> Sample:
    content = [{"role": "user", "content": [{"type": "input_text", "text": text(dice)}]}]
    body = {"model": "tiny", "input": dice.choice((text(dice), content)), "instructions": text(dice)}
    return Sample("POST", "/v1/responses", _streamed(dice, {**body, "max_output_tokens": 9}))


def _generate(dice: Dice) -> Sample:
    asked = dice.choice(({"text": text(dice)}, {"input_ids": [1, 2, 3]}, {"text": [text(dice)] * 2}))
    return Sample("POST", "/generate", _streamed(dice, {**asked, "sampling_params": {"max_new_tokens": 5}}))


def _other(dice: Dice) -> Sample:
    model = {"model": "tiny"}
    return dice.choice(
        (
            Sample("POST", "/v1/embeddings", {**model, "input": text(dice)}),
            Sample("POST", "/v1/score", {**model, "query": "a", "items": ["b", "c"]}),
            Sample("POST", "/tokenize", {**model, "prompt": text(dice)}),
            Sample("POST", "/v1/messages/count_tokens", _messages(dice).body),
            Sample("POST", "/admission/explain", _chat(dice).body),
            Sample("GET", "/admission/explain?tokens=5000&max_tokens=5"),
            Sample("GET", "/v1/models"),
            Sample("GET", "/v1/models/tiny"),
            Sample("GET", "/admission/status"),
            Sample("GET", "/get_model_info"),
            Sample("GET", "/livez"),
            Sample("GET", "/metrics"),
        )
    )


def _streamed(dice: Dice, body: dict[str, Any]) -> dict[str, Any]:
    if dice.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": dice.random() < 0.5}}
    return body


_KINDS: tuple[Callable[[Dice], Sample], ...] = (
    *(_chat, _chat, _chat, _completion, _completion, _messages, _responses, _generate, _other),
)


def sample(dice: Dice) -> Sample:
    """Any of them."""
    return dice.choice(_KINDS)(dice)


def encoded(body: Any) -> bytes:
    """As clients send it; what JSON has no form for is written as Python writes it."""
    return json.dumps(body).encode("utf-8", "surrogatepass")
