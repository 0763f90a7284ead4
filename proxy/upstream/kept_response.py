"""Responses that a server keeps under their ids: how one of them stands, and its cancellation."""

from enum import StrEnum
from typing import NamedTuple

import httpx

from proxy.upstream.call import Usage
from proxy.upstream.link import Link
from proxy.upstream.sglang import RESPONSES_PATH, load_json
from proxy.upstream.sse import usage_of

ASK_SECONDS = 10.0
_SAYS_NOTHING = (401, 403, 408, 429)  # 4xx that are not about the response


class Standing(StrEnum):
    """How a response stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # the server has no such response: it was started again, or keeps none
    UNTOLD = "untold"  # it did not say
    UNREACHABLE = "unreachable"  # nobody listens there


_STANDINGS = {
    "queued": Standing.RUNNING,
    "in_progress": Standing.RUNNING,
    "completed": Standing.COMPLETED,
    "incomplete": Standing.COMPLETED,
    "failed": Standing.FAILED,
    "cancelled": Standing.CANCELLED,
}


class Look(NamedTuple):
    """What a server says of a response. `usage`: once it has ended."""

    standing: Standing
    usage: Usage | None = None


def read_look(status: int, body: bytes) -> Look:
    """From an answer about a response, to whoever asked."""
    if 400 <= status < 500 and status not in _SAYS_NOTHING:
        return Look(Standing.UNKNOWN)
    document = load_json(body) if status == 200 else None
    if not isinstance(document, dict):
        return Look(Standing.UNTOLD)
    usage = document.get("usage")
    return Look(
        _STANDINGS.get(str(document.get("status")), Standing.UNTOLD),
        usage_of(usage) if isinstance(usage, dict) else None,
    )


async def look(link: Link, name: str) -> Look:
    """Asks the server. Never raises but cancellation."""
    return await _ask(link, "GET", f"{RESPONSES_PATH}/{name}")


async def cancel(link: Link, name: str) -> Look:
    """Has the server end it. Never raises but cancellation."""
    return await _ask(link, "POST", f"{RESPONSES_PATH}/{name}/cancel")


async def _ask(link: Link, method: str, path: str) -> Look:
    try:
        answer = await (
            link.get(path, seconds=ASK_SECONDS)
            if method == "GET"
            else link.post(path, b"", seconds=ASK_SECONDS)
        )
    except httpx.ConnectError:
        return Look(Standing.UNREACHABLE)
    except (httpx.RequestError, TimeoutError):
        return Look(Standing.UNTOLD)
    return read_look(answer.status_code, answer.content)
