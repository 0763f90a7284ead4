"""From a request body to what the engine is to do, with SGLang's own words for what it does not take."""

from __future__ import annotations

import random
import uuid
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from proxy.simulator.prompt import TokenPrompt
from proxy.simulator.text import VOCABULARY, tokenize, tokenize_chat

COMPLETION_TOKENS = 16  # `/v1/completions` without `max_tokens`
GENERATE_TOKENS = 128  # `/generate` without `max_new_tokens`


class Api(Enum):
    """The three ways to ask for tokens."""

    CHAT = auto()
    COMPLETIONS = auto()
    GENERATE = auto()


class Rejected(Exception):
    """What the server answers 400 to."""

    def __init__(self, message: str, *, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long outputs are that end by themselves: log-normal around `median_tokens`, drawn from the seed."""

    seed: int = 0
    median_tokens: int = 150
    spread: float = 0.5

    def draw(self, prompt: bytes, index: int) -> int:
        """The same prompt gets the same length."""
        rng = random.Random(f"{self.seed} {zlib.crc32(prompt)} {index}")
        return max(1, round(self.median_tokens * rng.lognormvariate(0.0, self.spread)))


@dataclass(frozen=True, slots=True)
class Sequence:
    """One output to be made; `index` is its choice's."""

    index: int
    rid: str
    prompt: TokenPrompt
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, read."""

    api: Api
    model: str
    stream: bool
    max_new: int | None
    ignore_eos: bool
    tokenized: bool
    sequences: list[Sequence] = field(default_factory=list)
    prompt_tokens: int = 0  # each prompt once, whatever `n`
    include_usage: bool = False
    continuous_usage: bool = False
    batch: bool = False


def read(api: Api, body: Mapping[str, Any], *, model: str, context_tokens: int, lengths: Lengths) -> Wanted:
    """Raises Rejected."""
    sampling = body.get("sampling_params") or {} if api is Api.GENERATE else body
    if not isinstance(sampling, Mapping):
        raise Rejected("sampling_params must be an object")
    prompts, tokenized, batch = _prompts(api, body)
    max_new = _max_new(api, sampling)
    for ids in prompts:
        _check_length(len(ids), max_new, context_tokens)
    if max_new is not None and max_new > context_tokens:
        raise Rejected(
            f"max_completion_tokens is too large: {max_new}."
            f"This model supports at most {context_tokens} completion tokens."
        )
    ignore_eos = bool(sampling.get("ignore_eos"))
    least = int(sampling.get("min_tokens" if api is not Api.GENERATE else "min_new_tokens") or 0)
    options = body.get("stream_options") or {}
    wanted = Wanted(
        api=api,
        model=str(body.get("model") or model),
        stream=bool(body.get("stream")),
        max_new=max_new,
        ignore_eos=ignore_eos,
        tokenized=tokenized,
        prompt_tokens=sum(map(len, prompts)),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        batch=batch,
    )
    copies = _count(sampling.get("n"))
    rid = str(body.get("rid") or uuid.uuid4().hex)
    for number, ids in enumerate(prompts):
        packed = ids.tobytes()
        for copy in range(copies):
            index = number * copies + copy
            own = uuid.uuid4().hex if copies > 1 else f"{rid}_{number}" if batch else rid
            output = context_tokens if ignore_eos else least or lengths.draw(packed, index)
            wanted.sequences.append(Sequence(index, own, TokenPrompt(packed), output))
    return wanted


def _prompts(api: Api, body: Mapping[str, Any]) -> tuple[list[array[int]], bool, bool]:
    """The prompts as ids; whether they came as ids; whether there is a batch."""
    if api is Api.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Rejected("1 validation error: messages: Field required", kind="Bad Request")
        if not messages:
            raise Rejected("Messages cannot be empty.")
        return [tokenize_chat(messages, body.get("tools"))], False, False
    ids = body.get("input_ids") if api is Api.GENERATE else None
    given = ids if ids is not None else body.get("text" if api is Api.GENERATE else "prompt")
    if not given:
        raise Rejected("Prompt cannot be empty")
    if isinstance(given, str):
        return [tokenize(given)], False, False
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        return [tokenize(item) for item in given], False, True
    if isinstance(given, list) and all(isinstance(item, int) for item in given):
        return [_ids(given)], True, False
    if isinstance(given, list) and all(isinstance(item, list) for item in given):
        return [_ids(item) for item in given], True, True
    raise Rejected("prompt must be a text, token ids, or a list of either", kind="Bad Request")


def _ids(given: list[Any]) -> array[int]:
    if not all(isinstance(item, int) and 0 <= item < VOCABULARY for item in given):
        raise Rejected(f"token ids must be below {VOCABULARY}")
    return array("I", given)


def _max_new(api: Api, sampling: Mapping[str, Any]) -> int | None:
    if api is Api.GENERATE:
        given = sampling.get("max_new_tokens", GENERATE_TOKENS)
    elif api is Api.COMPLETIONS:
        given = sampling.get("max_tokens", COMPLETION_TOKENS)
    else:
        given = sampling.get("max_completion_tokens", sampling.get("max_tokens"))
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool):
        raise Rejected("1 validation error: max_tokens: Input should be a valid integer", kind="Bad Request")
    if given < 0:
        raise Rejected(f"max_new_tokens must be at least 0, got {given}.")
    return given


def _count(given: object) -> int:
    if given is None:
        return 1
    if not isinstance(given, int) or given < 1:
        raise Rejected("range() arg 3 must not be zero", kind="BadRequest")
    return given


def _check_length(tokens: int, max_new: int | None, context_tokens: int) -> None:
    if tokens >= context_tokens:
        raise Rejected(
            f"The input ({tokens} tokens) is longer than the model's context length "
            f"({context_tokens} tokens)."
        )
    if max_new is not None and tokens + max_new > context_tokens >= max_new:
        raise Rejected(
            "Requested token count exceeds the model's maximum context length of "
            f"{context_tokens} tokens. You requested a total of {tokens + max_new} tokens: {tokens} tokens "
            f"from the input messages and {max_new} tokens for the completion. Please reduce the number of "
            "tokens in the input messages or the completion to fit within the limit."
        )
