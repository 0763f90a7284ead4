"""The ways in which a server fails one request: each an answer of the fake server."""

import asyncio
import json

from tests.fakes import Answer, Received, Wire, chat_body, chat_event, chat_stream, error_event

_OK = "HTTP/1.1 200 OK\r\ncontent-type: "
_STREAM = "text/event-stream"
_TOKENS = 6
FAULT_HEADER = "x-fault"


def whole_answer(request: Received) -> bytes:
    """Every byte of a good answer, as it goes over the wire."""
    if not request.json().get("stream"):
        body = json.dumps(chat_body(_TOKENS)).encode()
        return f"{_OK}application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in chat_stream(_TOKENS))
    return f"{_OK}{_STREAM}\r\ntransfer-encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


async def healthy(request: Received, wire: Wire) -> None:
    """No fault."""
    await wire.raw(whole_answer(request))


def cut_after(length: int, *, reset: bool) -> Answer:
    """A good answer of which so many bytes come (counted from its end where negative)."""

    async def answer(request: Received, wire: Wire) -> None:
        await wire.raw(whole_answer(request)[:length])
        await asyncio.sleep(0.01)  # else the kernel throws them away with the connection
        wire.reset() if reset else wire.hang_up()

    return answer


async def half_a_chunk(_: Received, wire: Wire) -> None:
    await wire.begin()
    await wire.chunk(chat_event(" w"))
    await wire.raw(b"ff\r\n" + chat_event(" half")[:20])
    await asyncio.sleep(0.01)
    wire.hang_up()


def saying(data: bytes) -> Answer:
    """These bytes whatever was asked, and the connection is closed."""

    async def answer(_: Received, wire: Wire) -> None:
        await wire.raw(data)
        await asyncio.sleep(0.01)
        wire.hang_up()

    return answer


def refusing(status: int) -> Answer:
    """An error of the server's own."""
    return lambda _, wire: wire.json({"object": "error", "message": "went wrong", "code": status}, status)


async def error_on_200(_: Received, wire: Wire) -> None:
    await wire.begin()
    await wire.chunk(error_event("out of memory", 500))
    await wire.chunk(b"data: [DONE]\n\n")
    await wire.end()


async def error_in_mid_stream(_: Received, wire: Wire) -> None:
    await wire.begin()
    for chunk in (chat_event(" w"), chat_event(" w"), error_event("out of memory", 500), b"data: [DONE]\n\n"):
        await wire.chunk(chunk)
    await wire.end()


async def drip(request: Received, wire: Wire) -> None:
    """A good answer, a few bytes at a time."""
    data = whole_answer(request)
    for start in range(0, len(data), 40):
        await wire.raw(data[start : start + 40])
        await asyncio.sleep(0.002)


async def silence_in_mid_stream(request: Received, wire: Wire) -> None:
    await wire.raw(whole_answer(request)[:-60])
    await asyncio.Event().wait()


async def silence(_: Received, __: Wire) -> None:
    """Takes the request and says nothing."""
    await asyncio.Event().wait()


async def as_named(request: Received, wire: Wire) -> None:
    """The fault that the request itself asks for; none where it names none."""
    await FAULTS.get(request.headers.get(FAULT_HEADER, ""), healthy)(request, wire)


_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"

#: By name; what they may do to their clients is the same for all: `Client.has_an_answer`.
FAULTS: dict[str, Answer] = {
    **{f"reset after {k} bytes": cut_after(k, reset=True) for k in (0, 1, 12, 60, 150, 400, -30, -1)},
    **{f"closed after {k} bytes": cut_after(k, reset=False) for k in (0, 12, 90, 400, -1)},
    "half a chunk": half_a_chunk,
    "garbage": saying(b"\x00\xff garbage \r\n\r\n" * 50),
    "another protocol": saying(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "garbage in the body": saying(_EVENTS + b"transfer-encoding: chunked\r\n\r\n4\r\ndata\r\nzz\r\n\xff\xff"),
    "events that are none": saying(_EVENTS + b"connection: close\r\n\r\n" + b"\xff\x00nonsense\n\n" * 30),
    "a length too large": saying(_JSON + b"content-length: 999\r\n\r\n{}"),
    "a length too small": saying(_JSON + b'content-length: 2\r\n\r\n{}{"more": "than announced"}'),
    "two lengths": saying(_JSON + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "a head without end": saying(b"HTTP/1.1 200 OK\r\n" + b"x-filler: " + b"a" * 100_000),
    **{f"status {status}": refusing(status) for status in (400, 404, 500, 502, 504)},
    "an error on 200": error_on_200,
    "an error in mid-stream": error_in_mid_stream,
    "a slow drip": drip,
    "silence in mid-stream": silence_in_mid_stream,
    "silence": silence,
}
