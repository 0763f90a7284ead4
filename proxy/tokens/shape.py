"""What a request asks for, and what its prompt is made of, whatever API it came through.

A `Shape` is small and lives as long as the request; a `Prompt` holds the texts and is dropped once
they are counted, so that a queue of long requests does not keep every text twice.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Api(StrEnum):
    """The families of inference endpoints. The value is also a label of metrics and logs."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    RERANK = "rerank"
    CLASSIFY = "classify"


class BadRequest(Exception):
    """The body is not what the API takes: a 400 in that API's own shape.

    `param` names the field as a client would write it (`messages[3].content`), None when the body
    as a whole is wrong.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Shape:
    """What admission, forwarding and calibration need to know of a request; never its text.

    `max_tokens` is what the engine will use: the API's own default when the field is absent, None
    when it runs to EOS or the end of the context.
    `sequences` is n x batch items: each takes a running slot and writes its own output.
    `largest_id` is the largest token id the client sent, None without ids: an id outside the
    vocabulary kills the server, so that the caller compares it with the vocabulary's size.
    `cache_scope` are the fields that keep equal prompts apart in the engine's prefix cache.
    `history` is an id under which the server keeps earlier turns that the body does not show.
    `preamble` is a digest of what the prompt begins with, before any history. `kept`: the server keeps the
    answer for requests to come. `background`: it answers at once, and the work goes on.
    `fields` are the top-level keys of the body, for the table of fields that steer the engine.
    """

    api: Api
    model: str
    stream: bool = False
    wants_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    sequences: int = 1
    batch: int = 1
    largest_id: int | None = None
    media: int = 0
    media_tokens: int = 0
    session: str | None = None
    user: str | None = None
    history: str | None = None
    preamble: bytes = b""
    kept: bool = False
    background: bool = False
    cache_scope: tuple[str, ...] = ()
    fields: frozenset[str] = frozenset()

    @property
    def has_ids(self) -> bool:
        """Whether the prompt, or a part of it, came as token ids."""
        return self.largest_id is not None


class Media(NamedTuple):
    """One image, video, audio clip or file: its tokens, and a digest that tells it from others."""

    kind: str
    tokens: int
    digest: bytes


@dataclass(slots=True)
class Unit:
    """The smallest piece of a prompt that others share whole: a message, the tools, a plain text.

    `label` tells units of equal text apart (the role), `overhead_tokens` is what the template puts
    around it. Of `texts`, `media` and `ids` only what the prompt really has is set.
    """

    label: str
    texts: list[str] = field(default_factory=list)
    overhead_tokens: int = 0
    media: list[Media] | None = None
    ids: list[int] | None = None


@dataclass(slots=True)
class Prompt:
    """All that is to be counted: the items of a batch, each a list of units in prompt order.

    `repeats`: how many of the other items the first one stands before, so often it counts.
    """

    items: list[list[Unit]]
    tools: bool = False
    repeats: int = 1


class Reading(NamedTuple):
    """A read request: its shape, and the prompt to be counted."""

    shape: Shape
    prompt: Prompt
