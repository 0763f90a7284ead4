"""A stand-in for SGLang on a real socket: says what the real one says, byte for byte where it matters.

It speaks just enough HTTP/1.1 to be cruel: any chunking, resets, half chunks, idle connections
closed under the client.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from tests.waiting import eventually

POOL = 186_624


@dataclass
class Received:
    """One request as it arrived. `connection` numbers the TCP connections."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    at: float

    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def rid(self) -> str:
        document = self.json()
        return str(document.get("rid") or document.get("request_id") or "")


class Wire:
    """The answering side of one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.closing = False

    async def json(self, document: object, status: int = 200) -> None:
        await self.whole(json.dumps(document, separators=(",", ":")).encode(), status)

    async def whole(
        self, body: bytes, status: int = 200, kind: str = "application/json", extra: str = ""
    ) -> None:
        fields = f"server: fake\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}"
        head = f"HTTP/1.1 {status} X\r\n{fields}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def begin(
        self, status: int = 200, kind: str = "text/event-stream; charset=utf-8", extra: str = ""
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{extra}transfer-encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def reset(self) -> None:
        """As a killed process: RST instead of FIN."""
        self.closing = True
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Closes the connection in order."""
        self.closing = True
        self.writer.close()


Answer = Callable[[Received, Wire], Awaitable[None]]


def event(document: object, name: str = "") -> bytes:
    """One SSE event."""
    line = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
    return f"event: {name}\n".encode() + line if name else line


DONE = b"data: [DONE]\n\n"


def chat_event(text: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    content = {"content": text} if text is not None else {}
    choice = {"index": 0, "delta": {"reasoning_content": None, **delta, **content}, "logprobs": None}
    return event(
        {
            "id": "a" * 32,
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "tiny",
            "choices": [{**choice, "finish_reason": finish, "matched_stop": None}],
        }
    )


def usage_event(prompt: int = 17, completion: int = 8) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    details = {"prompt_tokens_details": {"cached_tokens": 5}, "reasoning_tokens": 0}
    document = {
        "id": "a" * 32,
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [],
    }
    return event({**document, "usage": {**usage, **details}})


def chat_stream(tokens: int = 8, usage: bool = False, finish: str = "length") -> list[bytes]:
    events = [chat_event("", role="assistant"), *(chat_event(f" w{i}") for i in range(tokens))]
    return [*events, chat_event(finish=finish), *([usage_event(completion=tokens)] if usage else []), DONE]


def chat_body(tokens: int = 8, finish: str = "length") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": " w" * tokens}, "finish_reason": finish}
    usage = {"prompt_tokens": 17, "total_tokens": 17 + tokens, "completion_tokens": tokens}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage, "metadata": {}}


def error_event(message: str, code: int) -> bytes:
    error = {
        "object": "error",
        "message": message,
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": code,
    }
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


@dataclass
class FakeServer:
    """Set the fields, `answer` and `missing` as a test needs them."""

    pool_tokens: int = POOL
    dp_size: int = 1
    ready: bool = True
    key: str | None = None
    admin_key: str | None = None
    missing: set[str] = field(default_factory=set)
    info: dict[str, Any] = field(default_factory=dict)
    used: int = 0
    running: int = 0
    waiting: int = 0
    uncached: int = 0
    prefilled: int = 1000
    age_seconds: float = 0.0
    clock_skew_seconds: float = 0.0
    metrics: str = ""
    freeze: asyncio.Event | None = None  # while set, nothing is answered until it fires
    answer: Answer | None = None
    requests: list[Received] = field(default_factory=list)
    aborted: dict[str, asyncio.Event] = field(default_factory=dict)
    port: int = 0
    connections: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """As kill -9: no more connections, the open ones reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self.open):
            Wire(writer).reset()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def posts(self) -> list[Received]:
        """Inference requests, without the vocabulary probe and aborts."""
        return [
            request
            for request in self.requests
            if request.method == "POST"
            and request.target != "/abort_request"
            and b"logit_bias" not in request.body
        ]

    def aborts(self) -> list[str]:
        return [str(request.json()["rid"]) for request in self.requests if request.target == "/abort_request"]

    def abort_event(self, rid: str) -> asyncio.Event:
        return self.aborted.setdefault(rid, asyncio.Event())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.open.add(writer)
        self.connections += 1
        number = self.connections
        try:
            wire = Wire(writer)
            while not wire.closing and (request := await _read_request(reader, number)):
                self.requests.append(request)
                if self.freeze is not None:
                    await self.freeze.wait()
                await _unless_gone(reader, self._respond(request, wire))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _respond(self, request: Received, wire: Wire) -> None:
        path = request.target.partition("?")[0]
        wanted = self.admin_key if path == "/abort_request" and self.admin_key else self.key
        if wanted and request.headers.get("authorization") != f"Bearer {wanted}" and path != "/metrics":
            await wire.json({"error": "Unauthorized"}, 401)
        elif path in self.missing:
            await wire.json({"detail": "Not Found"}, 404)
        elif path == "/abort_request":
            self.abort_event(str(request.json()["rid"])).set()
            await wire.whole(b"")
        elif b"logit_bias" in request.body:
            await wire.json({"error": {"message": "logit_bias must has keys in [0, 4095], got -1."}}, 400)
        elif request.method == "GET":
            await self._read_only(path, wire)
        elif self.answer is not None:
            await self.answer(request, wire)
        else:
            await wire.json(chat_body())

    async def _read_only(self, path: str, wire: Wire) -> None:
        match path:
            case "/ready":
                await wire.whole(b"", 200 if self.ready else 503)
            case "/server_info" | "/get_server_info":
                await wire.json(self._info())
            case "/model_info" | "/get_model_info":
                await wire.json({"is_generation": True, "model_path": "m"})
            case "/v1/models":
                await wire.json({"object": "list", "data": [{"id": "tiny", "max_model_len": 1_048_576}]})
            case "/v1/loads":
                await wire.json(self._loads())
            case "/get_load":
                await wire.json([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 900}])
            case "/metrics":
                await wire.whole(self.metrics.encode(), kind="text/plain")
            case _:
                await wire.json({"detail": "Not Found"}, 404)

    def _info(self) -> dict[str, Any]:
        known = {
            "max_total_num_tokens": self.pool_tokens,
            "max_req_input_len": self.pool_tokens - 6,
            "context_length": 1_048_576,
            "chunked_prefill_size": 8192,
            "max_prefill_tokens": 16_384,
            "max_running_requests": 64,
            "dp_size": self.dp_size,
            "page_size": 1,
            "served_model_name": "tiny",
            "version": "0.5.23",
        }
        return {**known, **self.info}

    def _loads(self) -> dict[str, Any]:
        now = time.time() + self.clock_skew_seconds
        load = {
            "timestamp": now - self.age_seconds,
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.waiting,
            "num_waiting_uncached_tokens": self.uncached,
            "num_used_tokens": self.used,
            "max_total_num_tokens": self.pool_tokens,
            "token_usage": round(self.used / self.pool_tokens, 4),
            "total_prefill_uncached_tokens": self.prefilled,
            "total_prefill_busy_us": 5000,
        }
        loads = [{**load, "dp_rank": rank} for rank in range(self.dp_size)]
        return {
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
            "version": "0.5.23",
            "loads": loads,
        }


@contextlib.asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    """A server that runs; afterwards no task and no connection may be left."""
    server = await FakeServer().start()
    yield server
    await eventually(lambda: not server.open)
    await server.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"left behind: {others}"


async def short_stream(_: Received, wire: Wire) -> None:
    """Answers any request with a stream of two tokens."""
    await wire.begin()
    for chunk in chat_stream(2):
        await wire.chunk(chunk)
    await wire.end()


async def _unless_gone(reader: asyncio.StreamReader, work: Coroutine[None, None, None]) -> None:
    """Does the work, unless the client hangs up meanwhile."""
    task = asyncio.create_task(work)
    try:
        while not task.done() and not reader.at_eof():
            await asyncio.wait({task}, timeout=0.01)
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.split("\r\n")
    method, target, _ = line.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (item.partition(":") for item in rest if item)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target, headers, body, connection, time.monotonic())
