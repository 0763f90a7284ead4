"""HTTP/1.1 by hand: what a client library would never send, and every byte of what comes back."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

CHAT = "/v1/chat/completions"


@dataclass
class Reply:
    """One answer. `whole`: it ended as HTTP says it must, and was not cut off."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)  # lower-case names
    body: bytes = b""
    whole: bool = False

    def header(self, name: str) -> str | None:
        """The one value of a header, None when absent. Fails where there are several."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One TCP connection. Reads nothing until asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, receive_buffer_bytes: int | None = None) -> Self:
        """A small receive buffer makes a slow client slow at once."""
        sock = socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=sock, limit=2**20))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, *, to_head: bool = False) -> Reply:
        """The next answer, to its end. `to_head`: it answers HEAD and has no body."""
        reply = await self.head()
        if to_head or reply.status in (204, 304):
            reply.whole = True
            return reply
        try:
            if reply.header("transfer-encoding") == "chunked":
                await self._chunks(reply)
            elif (length := reply.header("content-length")) is not None:
                reply.body = await self.reader.readexactly(int(length))
                reply.whole = True
            else:
                reply.body = await self.reader.read()
        except asyncio.IncompleteReadError as error:
            reply.body += error.partial
        except ConnectionError:
            pass
        return reply

    async def head(self) -> Reply:
        """Status and headers of the next answer; interim ones (1xx) are passed over."""
        while True:
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.rstrip("\r\n").split("\r\n")
            status = int(first.split(" ")[1])
            pairs = (line.partition(":") for line in lines)
            headers = [(name.lower(), value.strip()) for name, _, value in pairs]
            if status >= 200:
                return Reply(status, headers)

    async def _chunks(self, reply: Reply) -> None:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            reply.body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        reply.whole = True

    async def chunk(self) -> bytes:
        """The next chunk of a chunked answer whose head was read; empty at the end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def closed(self, seconds: float = 5.0) -> bool:
        """Whether the peer closes within that time. What it still sends is thrown away."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(65_536):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def leave(self, *, reset: bool = False) -> None:
        """Closes it; with `reset` as a client that crashed."""
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        self.writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


def request(
    body: bytes | dict[str, Any] | None = None,
    path: str = CHAT,
    *,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """The bytes of one request; a dict is sent as JSON."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    lines = [f"{method} {path} HTTP/1.1", "host: proxy.test"]
    if content is not None:
        lines += ["content-type: application/json", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (content or b"")


async def ask(
    port: int,
    body: bytes | dict[str, Any] | None = None,
    path: str = CHAT,
    *,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
) -> Reply:
    """One request on a connection of its own."""
    async with await Connection.open(port) as connection:
        await connection.send(request(body, path, method=method, headers=headers))
        return await connection.reply(to_head=method == "HEAD")


def chat(content: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
