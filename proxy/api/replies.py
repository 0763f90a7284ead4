"""Responses for what does not stream: JSON that people read, and errors in the API's own shape."""

from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from proxy.api.answers import bad_request
from proxy.api.paths import family_of
from proxy.tokens.shape import Api


class JsonReply(Response):
    """Indented JSON: `curl` is this API's first client."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)


def refuse(api: Api, status: int, message: str, param: str | None = None) -> Response:
    """A 4xx that is the client's own doing."""
    reply = bad_request(api, message, param, status=status)
    return Response(reply.body, status, media_type="application/json")


async def http_error(request: Request, error: Exception) -> Response:
    """What the router turned away: unknown paths, wrong methods, missing keys."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = error.detail
    if error.status_code == 404:
        message = f"{request.method} {path} is not served here (management endpoints are closed)"
    elif error.status_code == 405:
        message = f"{path} does not take {request.method}"
    reply = refuse(family_of(path), error.status_code, message)
    reply.headers.update(error.headers or {})
    return reply
