"""Which paths exist for a client: admitted, forwarded, our own. Everything else is 404.

SGLang's management endpoints (weights, flush, abort, sessions, profiler, pause, LoRA, ...) are
closed by not being here; docs/security.md lists what they could do.
"""

import re

from proxy.tokens.shape import Api

INFERENCE: dict[str, Api] = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/generate": Api.GENERATE,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/score": Api.SCORE,
    "/v1/rerank": Api.RERANK,
    "/v1/classify": Api.CLASSIFY,
}

#: Harmless reads, forwarded uncounted: (method, path).
READS: frozenset[tuple[str, str]] = frozenset(
    {
        ("GET", "/v1/models"),
        ("GET", "/get_model_info"),
        ("GET", "/model_info"),
        ("POST", "/tokenize"),
        ("POST", "/v1/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/v1/detokenize"),
        ("POST", "/v1/messages/count_tokens"),
    }
)
#: A response that a server keeps: GET, and its cancellation: POST.
_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_-]{1,64})(/cancel)?")
MODEL_PREFIX = "/v1/models/"
#: A piece of a model's name. Nothing that a URL could read as more than a name: `..` leads elsewhere.
_MODEL_PIECE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~:@+=,-]+")


def is_read(method: str, path: str) -> bool:
    """Whether `method path` may be forwarded as it is. `path` is decoded."""
    return method in methods_of(path) and path not in INFERENCE


def methods_of(path: str) -> tuple[str, ...]:
    """The methods that `path` takes, where it is forwarded at all."""
    if path in INFERENCE:
        return ("POST",)
    if response := _RESPONSE.fullmatch(path):
        return ("POST",) if response[2] else ("GET",)
    return ("GET",) if _names_model(path) else tuple(method for method, read in READS if read == path)


def response_of(path: str) -> str | None:
    """The id of the response that `path` is about; None where it is about something else."""
    response = _RESPONSE.fullmatch(path)
    return response[1] if response else None


def _names_model(path: str) -> bool:
    name = path.removeprefix(MODEL_PREFIX)
    return name != path and all(_MODEL_PIECE.fullmatch(piece) for piece in name.split("/"))


def family_of(path: str) -> Api:
    """The API whose error shape an answer on `path` takes."""
    if path.startswith("/v1/messages"):
        return Api.MESSAGES
    return INFERENCE.get(path, Api.CHAT)
