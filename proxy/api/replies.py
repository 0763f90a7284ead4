"""Responses for what does not stream: JSON that people read, and errors in the API's own shape."""

from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from proxy.api.answers import Answer, bad_request
from proxy.api.paths import family_of


class JsonReply(Response):
    """Indented JSON: `curl` is this API's first client."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)


def response_of(reply: Answer) -> Response:
    """`reply` as Starlette sends it."""
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, media_type="application/json")


async def http_error(request: Request, error: Exception) -> Response:
    """What the router turned away: unknown paths, wrong methods, missing keys."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # not `request.url`: that parses the client's Host header
    message = error.detail
    if error.status_code == 404:
        message = f"{request.method} {path} is not served here (management endpoints are closed)"
    elif error.status_code == 405:
        message = f"{path} does not take {request.method}"
    reply = response_of(bad_request(family_of(path), message, status=error.status_code))
    reply.headers.update(error.headers or {})
    return reply
