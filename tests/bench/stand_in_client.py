"""What client.cc is, in Python, for machines without a compiler. It is then part of what is measured.

python -m tests.bench.stand_in_client requests|streams PORT name=value ...
"""

import asyncio
import random
import re
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import orjson
import uvloop

PATIENCE_SECONDS = 60.0
WORDS = ("river", "about", "Montag", "seven", "blue", "cannot", "window", "train")
_STAMP = re.compile(rb"@(\d+)@")


@dataclass(slots=True)
class Found:
    """What all connections saw; times in nanoseconds."""

    latencies: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    last_chunk_at: int = 0


class Session(asyncio.Protocol):
    """One connection: asks, waits for the whole answer, and asks again when told to."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._asked_at = self._last_at = 0
        self._text = b""
        self._seen = 0
        self._done: asyncio.Future[int] | None = None

    async def ask(self, request: bytes, asked_at: int) -> int:
        """How many stamps the answer held."""
        self._asked_at, self._last_at, self._seen, self._text = asked_at, 0, 0, b""
        self._done = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(request)
        return await self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        now, found = time.monotonic_ns(), self._found
        self._text += body
        end = 0
        for stamp in _STAMP.finditer(self._text):
            end = stamp.end()
            found.delays.append(now - int(stamp[1]))
            (found.gaps if self._seen else found.firsts).append(now - (self._last_at or self._asked_at))
            self._last_at = found.last_chunk_at = now
            self._seen += 1
        self._text = self._text[end:][-64:]

    def on_message_complete(self) -> None:
        self._found.statuses[str(self._parser.get_status_code())] += 1
        self._found.latencies.append(time.monotonic_ns() - self._asked_at)
        assert self._done is not None
        self._done.set_result(self._seen)


class Load:
    """One run of one kind of load."""

    def __init__(self, kind: str, port: int, options: dict[str, float]) -> None:
        self._streams = kind == "streams"
        self._port = port
        self._connections = int(options.get("connections", 1))
        self._seconds = options.get("seconds", 2.0)
        self._rate = options.get("rate", 0.0)
        self._chunks = int(options.get("chunks", 0))
        size, interval = int(options.get("bytes", 0)), int(options.get("interval_us", 0))
        seed = int(options.get("seed", 0))
        seeds = range(seed, seed + self._connections) if seed else [0]
        self._requests = [self._build(size, interval, each) for each in seeds]
        self._found = Found()

    def _build(self, size_bytes: int, interval_us: int, seed: int) -> bytes:
        text = "Say hello, please, in one short sentence."
        if self._streams:
            text = f"[[chunks={self._chunks} interval_us={interval_us}]] Say something."
        dice = random.Random(seed)
        parts, size = [text], len(text)
        while size < size_bytes:
            parts.append(dice.choice(WORDS))
            size += len(parts[-1]) + 1
        document: dict[str, Any] = {
            "model": "bench",
            "messages": [{"role": "user", "content": " ".join(parts)}],
            "max_tokens": self._chunks if self._streams else 16,
        }
        body = orjson.dumps({**document, "stream": True} if self._streams else document)
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        )
        return (head + b"content-length: %d\r\n\r\n%b") % (self._port, len(body), body)

    async def run(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        found = self._found
        sessions = []
        for _ in range(self._connections):
            _, session = await loop.create_connection(lambda: Session(found), "127.0.0.1", self._port)
            sessions.append(session)
        started = time.monotonic_ns()
        due = deque(range(int(self._rate * self._seconds))) if self._rate and not self._streams else None
        await asyncio.gather(
            *(
                self._use(session, self._requests[number % len(self._requests)], started, due)
                for number, session in enumerate(sessions)
            )
        )
        ended = found.last_chunk_at if self._streams else time.monotonic_ns()
        return {
            "requests": len(found.latencies),
            "errors": found.errors,
            "seconds": (ended - started) / 1e9,
            "statuses": dict(found.statuses),
            "chunks": len(found.delays),
            "latency_us": _quantiles(found.latencies),
            "delay_us": _quantiles(found.delays),
            "gap_us": _quantiles(found.gaps),
            "first_us": _quantiles(found.firsts),
        }

    async def _use(self, session: Session, request: bytes, started: int, due: deque[int] | None) -> None:
        try:
            if self._streams:
                complete = await session.ask(request, time.monotonic_ns()) == self._chunks
                self._found.errors += not complete
            elif due is None:
                while time.monotonic_ns() < started + self._seconds * 1e9:
                    await session.ask(request, time.monotonic_ns())
            else:
                while due:
                    asked_at = started + int(due.popleft() / self._rate * 1e9)
                    await asyncio.sleep((asked_at - time.monotonic_ns()) / 1e9)
                    await session.ask(request, asked_at)
        except (ConnectionError, httptools.HttpParserError):
            self._found.errors += 1


def _quantiles(values: list[int]) -> dict[str, float]:
    values.sort()
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    last = len(values) - 1
    return {
        name: values[min(last, int(share * len(values)))] / 1000 if values else -1.0
        for name, share in shares.items()
    }


async def main(kind: str, port: str, *settings: str) -> None:
    options = {name: float(value) for name, _, value in (setting.partition("=") for setting in settings)}
    found = await asyncio.wait_for(
        Load(kind, int(port), options).run(), options.get("seconds", 60.0) + PATIENCE_SECONDS
    )
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
