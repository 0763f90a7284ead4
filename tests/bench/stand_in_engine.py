"""What engine.cc is, in Python, for machines without a compiler. It is then part of what is measured.

python -m tests.bench.stand_in_engine PORT [POOL_TOKENS]
"""

import asyncio
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, cast

import httptools
import orjson
import uvloop

MARK_BYTES = 4096
FLAT_OUT_CHUNKS = 16  # between two looks at the network
_WISH = re.compile(rb"\[\[chunks=(\d+) interval_us=(\d+)\]\]")


class State:
    """What all connections share."""

    def __init__(self, pool_tokens: int) -> None:
        self.pool_tokens = pool_tokens
        self.running = 0
        self.used_tokens = 0
        self.prefilled_tokens = 0


class Session(asyncio.Protocol):
    """One connection: requests are answered one after the other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._body: list[bytes] = []
        self._stream: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._target, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._target.partition(b"?")[0].decode()
        if path == "/v1/chat/completions":
            self._chat(b"".join(self._body))
        elif path in ("/ready", "/health", "/abort_request"):
            self._reply(b"")
        else:
            document = self._facts(path)
            self._reply(orjson.dumps(document or {"detail": "Not Found"}), 200 if document else 404)

    def _facts(self, path: str) -> dict[str, Any] | None:
        state, now = self._state, time.time()
        pool = state.pool_tokens
        match path:
            case "/server_info" | "/get_server_info":
                facts = {"max_total_num_tokens": pool, "max_req_input_len": pool - 6, "page_size": 1}
                sizes = {
                    "context_length": 1_048_576,
                    "max_running_requests": 2048,
                    "chunked_prefill_size": 8192,
                }
                return {"served_model_name": "bench", "version": "0.5.23", "dp_size": 1, **facts, **sizes}
            case "/v1/models":
                return {"object": "list", "data": [{"id": "bench", "max_model_len": 1_048_576}]}
            case "/model_info" | "/get_model_info":
                return {"model_path": "bench", "is_generation": True}
            case "/v1/loads":
                used = {"num_used_tokens": state.used_tokens, "max_total_num_tokens": pool}
                counts = {"num_running_reqs": state.running, "num_waiting_reqs": 0}
                work = {
                    "num_waiting_uncached_tokens": 0,
                    "total_prefill_uncached_tokens": state.prefilled_tokens,
                    "total_prefill_busy_us": state.prefilled_tokens,
                }
                load = {"timestamp": now, "dp_rank": 0, **counts, **used, **work}
                stamp = datetime.fromtimestamp(now, UTC).isoformat()
                return {"timestamp": stamp, "version": "0.5.23", "loads": [load]}
        return None

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _reply(self, body: bytes, status: int = 200) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._write(head % (status, len(body)) + body)

    def _chat(self, body: bytes) -> None:
        prompt_tokens = len(body) // 4
        self._state.prefilled_tokens += prompt_tokens
        if b'"stream":true' not in body:
            message = {"role": "assistant", "content": "Hello to you too.", "tool_calls": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "matched_stop": 2}
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 5,
                "total_tokens": prompt_tokens + 5,
            }
            kind = {"id": "chatcmpl-bench", "object": "chat.completion", "model": "bench"}
            self._reply(orjson.dumps({**kind, "choices": [choice], "usage": usage}))
            return
        wish = _WISH.search(body[:MARK_BYTES])
        chunks, interval_us = (int(wish[1]), int(wish[2])) if wish else (8, 0)
        self._stream = asyncio.get_running_loop().create_task(
            self._send_stream(chunks, interval_us / 1e6, prompt_tokens)
        )

    async def _send_stream(self, chunks: int, interval_seconds: float, prompt_tokens: int) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        state = self._state
        state.running += 1
        state.used_tokens += prompt_tokens + chunks
        try:
            loop = asyncio.get_running_loop()
            started = loop.time()
            for number in range(chunks):
                self._event(b'{"content":"@%d@"}' % time.monotonic_ns(), b"null")
                if interval_seconds:
                    await asyncio.sleep(started + (number + 1) * interval_seconds - loop.time())
                elif number % FLAT_OUT_CHUNKS == 0:
                    await asyncio.sleep(0)
                await self._room.wait()
            self._event(b"{}", b'"stop"')
            self._write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        finally:
            state.running -= 1
            state.used_tokens -= prompt_tokens + chunks

    def _event(self, delta: bytes, finish: bytes) -> None:
        event = (
            b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench",'
            b'"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]}\n\n' % (delta, finish)
        )
        self._write(b"%x\r\n%b\r\n" % (len(event), event))


async def serve(port: int, pool_tokens: int) -> None:
    """Until it is killed."""
    state = State(pool_tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Session(state), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 186_624))
