"""Sizes and ids of requests by the model's own tokenizer and chat template."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from proxy.tokens.chain import Chain
from proxy.tokens.counter import EXACT_MOST_CHARS, Counter
from proxy.tokens.exact.code_rendered import rendered_in_code
from proxy.tokens.exact.from_messages import from_messages
from proxy.tokens.exact.from_responses import from_responses
from proxy.tokens.exact.messages import ChatInput, chat_input
from proxy.tokens.exact.template import ChatTemplate, TemplateFailed, load_template
from proxy.tokens.exact.tokenizer import Tokenizer
from proxy.tokens.guard import EncoderFailed, guarded
from proxy.tokens.measure import Measured, new_chain, total
from proxy.tokens.shape import Api, Prompt, Shape

logger = logging.getLogger(__name__)

# Rendering is Python from end to end: with more messages it would take longer than it is worth.
_MOST_MESSAGES = 20_000
_PLAIN = (Api.COMPLETIONS, Api.GENERATE, Api.EMBEDDINGS, Api.CLASSIFY)
_JOINED = (Api.SCORE, Api.RERANK)  # the server joins texts, or renders them, by rules of the model


class ExactCounter:
    """Counts what the server will count, where that can be known from the body.

    `counter` counts texts by the model's vocabulary, for what is not exact. `note` says why chats are
    not, None when they are.
    """

    def __init__(self, directory: Path, chat_template: Path | None, *, memo_entries: int) -> None:
        """Reads a model's tokenizer directory: 1 to 5 s of CPU, off the event loop.

        `chat_template` replaces the directory's own, as SGLang's `--chat-template`.
        Raises OSError, ValueError or Unsupported.
        """
        self.tokenizer = Tokenizer(directory)
        self.counter = Counter(self.tokenizer.engine, memo_entries=memo_entries, most_chars=EXACT_MOST_CHARS)
        self.note = rendered_in_code(directory) if chat_template is None else None
        self._template: ChatTemplate | None = None
        if self.note is None:
            try:
                self._template = load_template(directory, self.tokenizer.config, chat_template)
            except TemplateFailed as error:
                self.note = f"the chat template cannot be used: {error}"
            if self._template is None and self.note is None:
                self.note = "the tokenizer directory has no chat template"

    def measure(
        self, shape: Shape, prompt: Prompt, document: dict[str, Any], *, sampled: bool
    ) -> Measured | None:
        """The size of a request, None when it takes the default rules: no template, ids, or messages that the
        template or this code does not take."""
        if shape.has_ids or shape.api in _JOINED:
            return None
        plain = shape.api in _PLAIN
        batches = _plain_texts(prompt) if plain else self._rendered(shape.api, document)
        if batches is None:
            return None
        around = len(self.tokenizer.prefix) + len(self.tokenizer.suffix) if plain else 0
        chains = []
        for texts in batches:
            chain = new_chain(self.counter, shape, sampled=sampled)
            chain.label("exact", around)
            for text in texts:
                self._add(chain, text)
            chains.append(chain)
        if shape.media_tokens:
            chains[-1].medium(b"", shape.media_tokens)
        segments = tuple(chains[0].segments) if len(chains) == 1 else ()
        return Measured(*total(chains), segments, exact=not sampled and shape.media == 0)

    def _add(self, chain: Chain, text: str) -> None:
        for piece in self.tokenizer.pieces(text):
            if isinstance(piece, int):
                chain.special(piece)
            else:
                chain.text(piece)
            chain.close()

    def ids(self, shape: Shape, prompt: Prompt, document: dict[str, Any]) -> list[int] | None:
        """The exact ids of a single prompt, None when they cannot be known."""
        if shape.media or shape.batch > 1:
            return None
        if shape.has_ids:
            return next((unit.ids for unit in prompt.items[0] if unit.ids is not None), None)
        plain = shape.api in _PLAIN
        batches = _plain_texts(prompt) if plain else self._rendered(shape.api, document)
        if batches is None:
            return None
        try:
            ids = [token for text in batches[0] for token in guarded(self.tokenizer.ids, text)]
        except EncoderFailed as error:
            self.counter.failed(error)
            return None
        return [*self.tokenizer.prefix, *ids, *self.tokenizer.suffix] if plain else ids

    def _rendered(self, api: Api, document: dict[str, Any]) -> list[list[str]] | None:
        """The one prompt of a chat, and what continues its last message, which is encoded by itself."""
        template = self._template
        if template is None:
            return None
        try:
            chat = _as_chat(api, document, inline_system=template.inline_system)
            if chat is None or not 0 < len(chat["messages"]) <= _MOST_MESSAGES:
                return None
            given = chat_input(chat, parts=template.parts, reorders=template.reorders)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            logger.debug("messages that the server will not take (%s)", type(error).__name__)
            return None
        for attempt in _attempts(given):
            try:
                text = template.render(attempt.messages, attempt.tools, attempt.options)
            except TemplateFailed as error:
                logger.debug("chat template: %s", error)
                continue
            return [[text, given.continued] if given.continued else [text]]
        return None


def _as_chat(api: Api, document: dict[str, Any], *, inline_system: bool) -> dict[str, Any] | None:
    """The chat request that the server makes of a body, None when that is not known."""
    if api is Api.MESSAGES:
        return from_messages(document, inline_system=inline_system)
    if api is Api.RESPONSES:
        return from_responses(document, inline_system=inline_system)
    return document


def _attempts(given: ChatInput) -> Iterator[ChatInput]:
    """As given; then, as SGLang tries when that fails, with the bare functions as tools."""
    yield given
    if given.tools:
        yield given._replace(tools=[tool.get("function", tool) for tool in given.tools])


def _plain_texts(prompt: Prompt) -> list[list[str]] | None:
    if any(unit.overhead_tokens for item in prompt.items for unit in item):  # embeddings as input
        return None
    return [[text for unit in item for text in unit.texts] for item in prompt.items]
