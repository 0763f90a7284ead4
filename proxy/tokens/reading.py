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
from proxy.tokens.shape import Api, BadRequest, Reading

_READERS: dict[Api, Callable[[dict[str, Any], MediaRules], Reading]] = {
    Api.CHAT: read_chat,
    Api.COMPLETIONS: read_completions,
    Api.RESPONSES: read_responses,
    Api.MESSAGES: read_messages,
    Api.GENERATE: read_generate,
    Api.EMBEDDINGS: read_embeddings,
}

_DEFAULT_RULES = MediaRules()


def read(api: Api, body: bytes, rules: MediaRules = _DEFAULT_RULES) -> Reading:
    """Parses `body` as a request to `api`. Raises BadRequest, and nothing else, for a bad one."""
    try:
        return _READERS[api](parse_object(body), rules)
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
