"""A backend's answer on its way to the client."""

from proxy.api import answers
from proxy.api.headers import Headers, with_ours
from proxy.api.outgoing import Outgoing
from proxy.api.record import Record
from proxy.telemetry.metrics import Outcome
from proxy.upstream.errors import UpstreamBroken
from proxy.upstream.exchange import Exchange
from proxy.upstream.sse import error_message

LARGEST_ERROR_BYTES = 65_536


async def forward(exchange: Exchange, out: Outgoing, record: Record, ours: Headers) -> None:
    """Head and bytes as they come. `ours` are added to the head."""
    if out.committed and not _is_stream(exchange):
        await _as_event(exchange, out, record)
        return
    await out.begin(exchange.status, with_ours(exchange.headers, ours))
    chunk = b""
    try:
        async for chunk in exchange:
            await out.chunk(chunk)
    except UpstreamBroken as error:
        record.outcome, record.reason = Outcome.BROKEN, error.reason
        if exchange.takes_events or out.committed:
            message = "The backend failed while it was answering."
            await out.end(answers.stream_error(out.api, message, after=chunk))
        return
    await out.end()
    record.outcome = Outcome.COMPLETED if exchange.status < 400 else Outcome.INVALID
    if exchange.observed.error is not None:
        record.outcome, record.reason = Outcome.BROKEN, exchange.observed.error


async def early_error(error: tuple[int, str, str], out: Outgoing, record: Record) -> None:
    """A stream whose first event said that it failed: the status it should have had."""
    status, message, _ = error
    record.outcome = Outcome.INVALID if status < 500 else Outcome.FAILED
    await out.whole(answers.upstream_error(out.api, status, message))


def _is_stream(exchange: Exchange) -> bool:
    """Can its bytes follow the head of an event stream?"""
    kind = exchange.header(b"content-type") or b""
    encoded = exchange.header(b"content-encoding") is not None
    return exchange.status == 200 and kind.startswith(b"text/event-stream") and not encoded


async def _as_event(exchange: Exchange, out: Outgoing, record: Record) -> None:
    """No stream although one was asked for: an error, or what nobody can make sense of."""
    body = b""
    try:
        async for chunk in exchange:
            body += chunk[: LARGEST_ERROR_BYTES - len(body)]
    except UpstreamBroken as error:
        record.reason = error.reason
    failed = exchange.status >= 400
    status = exchange.status if failed else 502
    record.outcome = Outcome.INVALID if status < 500 else Outcome.FAILED
    message = error_message(body) if failed else "The backend answered with something other than a stream."
    await out.whole(answers.upstream_error(out.api, status, message or f"The backend answered {status}."))
