"""Properties of reading an answer: any framing, cut anywhere, gives the same body or an honest error."""

import asyncio
import contextlib
from itertools import pairwise
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.upstream.connection import Connection
from proxy.upstream.request_bytes import content_of, head_of

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REQUEST = httpx.Request("GET", "http://server/")

bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
extensions = st.sampled_from([b"", b";a", b";a=b", b';a="b c"'])
trailers = st.sampled_from([b"", b"x-a: b\r\n", b"x-a: b\r\nx-c: d\r\n"])


class Wire(asyncio.Transport):
    """Takes what is written, and remembers being closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def answered(pieces: list[bytes]) -> tuple[bytes, bool]:
    """The body that these pieces make, and whether the connection may be used again.

    The server hangs up behind them. Raises httpx.TransportError.
    """
    freed: list[Connection] = []
    wire = Wire()
    loop = asyncio.get_running_loop()
    connection = Connection(loop, freed=freed.append, lost=lambda _: None)
    connection.connection_made(wire)
    asking = asyncio.create_task(connection.ask(REQUEST, head_of(REQUEST), await content_of(REQUEST)))
    await asyncio.sleep(0)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    response = await asking
    return b"".join([part async for part in cast("httpx.AsyncByteStream", response.stream)]), bool(freed)


def cut(data: bytes, places: list[float]) -> list[bytes]:
    """`data` in pieces; each place is a share of its length."""
    marks = sorted({0, len(data), *(int(place * len(data)) for place in places)})
    return [data[start:end] for start, end in pairwise(marks)]


places = st.lists(st.floats(0, 1), max_size=30)


@given(bodies, st.data(), trailers, places, st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_chunking_cut_anywhere_gives_the_body(
    parts: list[bytes], data: st.DataObject, trailer: bytes, places: list[float], upper: bool
) -> None:
    wire = HEAD
    for part in parts:
        size = (b"%X" if upper else b"%x") % len(part)
        wire += size + data.draw(extensions) + b"\r\n" + part + b"\r\n"
    wire += b"0" + data.draw(extensions) + b"\r\n" + trailer + b"\r\n"
    assert asyncio.run(answered(cut(wire, places))) == (b"".join(parts), True)


@given(bodies, places)
@settings(max_examples=150, deadline=None)
def test_an_announced_length_cut_anywhere_gives_the_body(parts: list[bytes], places: list[float]) -> None:
    body = b"".join(parts)
    wire = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    assert asyncio.run(answered(cut(wire, places))) == (body, True)


@given(bodies.filter(bool), st.floats(0, 1, exclude_max=True))
@settings(max_examples=150, deadline=None)
def test_an_answer_that_ends_too_soon_never_looks_whole(parts: list[bytes], share: float) -> None:
    wire = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(answered([wire[: int(share * len(wire))]]))


@given(bodies, st.integers(0, 10_000), st.binary(min_size=1, max_size=3), places)
@settings(max_examples=300, deadline=None)
def test_damage_gives_an_answer_or_a_protocol_error_and_nothing_else(
    parts: list[bytes], position: int, damage: bytes, places: list[float]
) -> None:
    wire = bytearray(HEAD + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n")
    start = position % len(wire)
    wire[start : start + len(damage)] = damage
    with contextlib.suppress(httpx.RemoteProtocolError):
        asyncio.run(answered(cut(bytes(wire), places)))
