"""From a parsed body to its shape and prompt: one reader for each API."""

from collections.abc import Callable
from typing import Any

from proxy.tokens.anthropic import read_messages
from proxy.tokens.body import parse_object
from proxy.tokens.chat import read_chat
from proxy.tokens.completions import read_completions, read_embeddings
from proxy.tokens.generate import read_generate
from proxy.tokens.media import MediaRules
from proxy.tokens.responses import read_responses
from proxy.tokens.score import read_classify, read_rerank, read_score
from proxy.tokens.shape import Api, BadRequest, Reading

_READERS: dict[Api, Callable[[dict[str, Any], MediaRules], Reading]] = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_completions,
    Api.RESPONSES: read_responses,
    Api.MESSAGES: read_messages,
    Api.GENERATE: read_generate,
    Api.EMBEDDINGS: read_embeddings,
    Api.SCORE: read_score,
    Api.RERANK: read_rerank,
    Api.CLASSIFY: read_classify,
}

_DEFAULT_RULES = MediaRules()


def read(api: Api, body: bytes, rules: MediaRules = _DEFAULT_RULES) -> Reading:
    """Parses and reads `body` as a request to `api`. Raises BadRequest, and nothing else, for a bad one."""
    return read_document(api, parse_object(body), rules)


def read_document(api: Api, document: dict[str, Any], rules: MediaRules = _DEFAULT_RULES) -> Reading:
    """The same for a body that is parsed already."""
    try:
        return _READERS[api](document, rules)
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
