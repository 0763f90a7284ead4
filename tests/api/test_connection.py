"""An answer's head leaves with what follows it, or soon alone; never late, never out of order."""

import asyncio

import pytest

from proxy.api.connection import JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


class Wire(asyncio.Transport):
    """Takes notes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


async def joined() -> tuple[Wire, JoinedHead]:
    wire = Wire()
    return wire, JoinedHead(wire, asyncio.get_running_loop())


async def test_head_and_body_leave_in_one_piece() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    transport.write(b"hello")
    transport.write(b" again")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"hello", b" again"]


async def test_a_head_that_nothing_follows_leaves_in_the_next_turn_of_the_loop() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    assert wire.writes == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    transport.write(b"hello")
    assert wire.writes == [HEAD, b"hello"]


async def test_closing_sends_the_head_first() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    transport.close()
    assert (wire.writes, wire.closed) == ([HEAD], True)
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]


async def test_a_head_for_a_connection_that_is_lost_meanwhile_is_dropped() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    wire.closed = True
    await asyncio.sleep(0)
    transport.write(b"hello")
    transport.close()
    assert wire.writes == []


async def test_a_waiting_head_counts_as_not_yet_written() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    assert transport.get_write_buffer_size() == len(HEAD)
    transport.write(b"hello")
    assert transport.get_write_buffer_size() == 0
    assert wire.writes == [HEAD + b"hello"]


@pytest.mark.parametrize("piece", [b"HTTP/1.1 is what this text is about", b"HTTP/1.1 ", b"H", b""])
async def test_a_body_that_looks_like_a_head_arrives_in_its_place(piece: bytes) -> None:
    wire, transport = await joined()
    for data in (HEAD, piece, piece, b"end", piece):
        transport.write(data)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"".join(wire.writes) == HEAD + piece + piece + b"end" + piece


async def test_nothing_is_written_to_a_connection_that_closes_already() -> None:
    wire, transport = await joined()
    transport.write(HEAD)
    wire.close()
    transport.write(b"hello")  # uvloop would raise
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert wire.writes == []
