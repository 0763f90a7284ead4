"""From outcome to answer, in one table: status, headers and a body in the shape of the API called."""

import math
import random
from dataclasses import dataclass, replace

import orjson

from proxy.admission.refusal import spread_seconds
from proxy.admission.types import Lane, Reason, Refuse
from proxy.tokens.shape import Api

MAX_RETRY_AFTER_SECONDS = 60  # older OpenAI SDKs ignore larger values and retry at once
EARLY_SECONDS = 16  # by so much less are those told who should come later than that: not all at once


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets when the backend's own answer does not."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    type: str  # OpenAI's `error.type`
    anthropic_type: str
    retry: bool
    message: str


_RATE = ("rate_limit_error", "rate_limit_error")
_DOWN = ("service_unavailable_error", "overloaded_error")

TABLE: dict[Reason, _Row] = {
    Reason.WOULD_MISS_DEADLINE: _Row(
        429,
        *_RATE,
        True,
        "The request would wait about {wait:.0f} s for {needed} KV-cache tokens ({free} are free now), "
        "{beyond} the {limit:.0f} s it may wait. Retry in about {retry:.0f} s, send a shorter prompt, "
        "or allow a longer wait with the header x-request-timeout-ms.",
    ),
    Reason.QUEUE_FULL: _Row(429, *_RATE, True, "The queue is full. Retry in about {retry:.0f} s."),
    Reason.TENANT_LIMIT: _Row(
        429, *_RATE, True, "This tenant's limit is reached{reached}. Retry in about {retry:.0f} s."
    ),
    Reason.DEADLINE: _Row(
        429,
        *_RATE,
        True,
        "The request waited its full {limit:.0f} s and {needed} KV-cache tokens did not become free. "
        "Retry in about {retry:.0f} s.",
    ),
    Reason.CONTEXT_LENGTH_EXCEEDED: _Row(
        400,
        "invalid_request_error",
        "invalid_request_error",
        False,
        "This request has {needed} prompt tokens; the server can take at most {most}. "
        "Shorten the prompt: retrying will not help.",
    ),
    Reason.MODEL_NOT_FOUND: _Row(
        404,
        "invalid_request_error",
        "not_found_error",
        False,
        "No backend serves the model of this request; GET /v1/models lists those that are served.",
    ),
    Reason.NO_BACKEND: _Row(
        503, *_DOWN, True, "No backend that can take this request is up. Retry in about {retry:.0f} s."
    ),
    Reason.DRAINING: _Row(503, *_DOWN, True, "The proxy is shutting down. Retry in about {retry:.0f} s."),
}


#: A request that is more than its tenant may ever hold.
_OVERSIZED = replace(
    TABLE[Reason.TENANT_LIMIT],
    retry=False,
    message="This request needs {needed} tokens, more than its tenant may hold{reached}. "
    "Shorten the prompt: retrying will not help.",
)


def refused(api: Api, refuse: Refuse, wait_limit_seconds: float) -> Answer:
    """The answer to a request that admission turned away."""
    row = TABLE[refuse.reason]
    if refuse.tenant_limit is not None and refuse.retry_after_seconds is None:
        row = _OVERSIZED
    retry_seconds = refuse.retry_after_seconds or 1.0
    limit = refuse.tenant_limit
    message = row.message.format(
        wait=refuse.predicted_wait_seconds,
        beyond="longer than" if refuse.predicted_wait_seconds > wait_limit_seconds else "too close to",
        needed=refuse.needed_tokens,
        free=refuse.free_tokens,
        limit=wait_limit_seconds,
        most=refuse.limit_tokens,
        reached=f": {limit.name}={limit.most}, {limit.used} in use" if limit is not None else "",
        retry=math.ceil(retry_seconds),
    )
    details: dict[str, object] = {
        "predicted_wait_s": round(refuse.predicted_wait_seconds, 3),
        "needed_tokens": refuse.needed_tokens,
        "free_tokens": refuse.free_tokens,
        "queue_position": refuse.queue_position,
    }
    if refuse.limit_tokens is not None:
        details["limit_tokens"] = refuse.limit_tokens
    if limit is not None:
        details |= {"limit": limit.name, "limit_value": limit.most, "limit_used": limit.used}
    headers: list[tuple[bytes, bytes]] = [(b"x-admission-reason", refuse.reason.value.encode())]
    if row.retry:
        whole = max(1, math.ceil(retry_seconds))
        details["retry_after_s"] = whole
        if whole > MAX_RETRY_AFTER_SECONDS:
            headers.append((b"x-should-retry", b"false"))
            whole = MAX_RETRY_AFTER_SECONDS - whole % EARLY_SECONDS
        headers.append((b"retry-after", str(whole).encode()))
    else:
        headers.append((b"x-should-retry", b"false"))
    body = error_body(
        api, message, row.type, row.anthropic_type, code=refuse.reason.value, param=None, details=details
    )
    return Answer(row.status, body, tuple(headers))


def bad_request(api: Api, message: str, param: str | None = None, *, status: int = 400) -> Answer:
    """400, or another 4xx that is the client's own doing (404, 405, 413)."""
    kinds = {404: "not_found_error", 401: "authentication_error", 403: "permission_error"}
    kind = kinds.get(status, "invalid_request_error")
    anthropic = "request_too_large" if status == 413 else kind
    return Answer(status, error_body(api, message, kind, anthropic, code=None, param=param))


def no_response(api: Api, param: str, *, gone: bool) -> Answer:
    """404: a response of an earlier request is not to be found. It does not say whose it may be."""
    message = (
        "The server that has this response is gone. Send the whole conversation as input."
        if gone
        else "There is no such response, or it is not remembered any more."
    )
    kind = "not_found_error"
    return Answer(404, error_body(api, message, kind, kind, code="response_not_found", param=param))


def unauthorized(api: Api) -> Answer:
    """401: no key, or none that we know. It does not say which."""
    kind = "authentication_error"
    message = "A valid API key is needed, as Authorization: Bearer or as x-api-key."
    body = error_body(api, message, kind, kind, code="invalid_api_key", param=None)
    return Answer(401, body, ((b"www-authenticate", b"Bearer"),))


def wrong_method(api: Api, method: str, path: str, allowed: tuple[str, ...]) -> Answer:
    """405: the path is served, but not like this."""
    reply = bad_request(api, f"{path} does not take {method}", status=405)
    return replace(reply, headers=((b"allow", ", ".join(allowed).encode()),))


def body_too_large(api: Api, limit_bytes: int) -> Answer:
    """413."""
    return bad_request(api, f"the request body is larger than {limit_bytes} bytes", status=413)


def body_too_slow(api: Api) -> Answer:
    """408. What is left of the body could come at any time: the connection is of no more use."""
    reply = bad_request(api, "the request body did not arrive in time", status=408)
    return replace(reply, headers=((b"connection", b"close"),))


def no_room(api: Api) -> Answer:
    """429 while the bodies of all requests take all the memory they may."""
    return refused(api, Refuse("", Reason.QUEUE_FULL, Lane.SHORT, 0.0, _soon_seconds(), 0, 0, 0), 0.0)


def no_backend(api: Api) -> Answer:
    """503 to what needs no place: there is nobody to ask."""
    return refused(api, Refuse("", Reason.NO_BACKEND, Lane.SHORT, 0.0, _soon_seconds(), 0, 0, 0), 0.0)


def _soon_seconds() -> float:
    """Some seconds, not the same for all."""
    return spread_seconds(random.getrandbits(16))


def upstream_error(api: Api, status: int, message: str, code: str | None = None) -> Answer:
    """The backend failed, or said no, before anything was sent to the client."""
    if 400 <= status < 500:
        kind = anthropic = "invalid_request_error"
    else:
        kind, anthropic = "server_error", "api_error"
    return Answer(status, error_body(api, message, kind, anthropic, code=code, param=None))


def stream_error(api: Api, message: str, *, after: bytes = b"") -> bytes:
    """The event that ends a stream whose backend died under it.

    `after` is what was sent last: an event that was cut in two is ended first, or ours would be part of it.
    """
    body = error_body(api, message, "server_error", "api_error", code="upstream_broken", param=None)
    cut = b"" if not after or after.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
    return cut + _last_event(api, body)


def error_event(api: Api, reply: Answer) -> bytes:
    """`reply` to a client that has its 200 already: the error, with the status it would have had."""
    body = orjson.loads(reply.body)
    body["error"]["status"] = reply.status
    return _last_event(api, orjson.dumps(body))


def _last_event(api: Api, body: bytes) -> bytes:
    """An error, and how a stream of `api` ends after it."""
    if api is Api.MESSAGES:
        return b"event: error\ndata: " + body + b"\n\n"
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def error_body(
    api: Api,
    message: str,
    kind: str,
    anthropic_kind: str,
    *,
    code: str | None,
    param: str | None,
    details: dict[str, object] | None = None,
) -> bytes:
    """One error in the shape of `api`: Anthropic's for `/v1/messages`, OpenAI's elsewhere."""
    if api is Api.MESSAGES:
        error: dict[str, object] = {"type": anthropic_kind, "message": message, **(details or {})}
        return orjson.dumps({"type": "error", "error": error})
    error = {"message": message, "type": kind, "code": code, "param": param, **(details or {})}
    return orjson.dumps({"error": error})
