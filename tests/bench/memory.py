"""What the proxy needs at rest and for each request in its queue, and how long it takes to start."""

import contextlib
import json
import random
import socket
import time
from pathlib import Path

from tests.bench.meters import resident_bytes
from tests.bench.tools import Tools, engine_server
from tests.load.process import http_status
from tests.load.proxy import ProxyServer

POOL_TOKENS = 120_000  # room for one request of 64K tokens, not for two
PROMPT_WORDS = 62_000  # about 64K tokens
WORDS = (
    "the",
    "river",
    "about",
    "seven",
    "blue",
    "cannot",
    "window",
    "train",
    "of",
    "measure",
    "early",
    "and",
)
SETTLED, QUEUED = 8, 40
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.005
WAIT_LONG = {
    "PROXY_MAX_QUEUE_SECONDS": "600",
    "PROXY_MAX_QUEUE_TOKENS": "100000000",
    "PROXY_MAX_QUEUE_REQUESTS": "10000",
}


def start_seconds(engine_url: str, log_path: Path) -> float:
    """From the start of the process until /ready, with a backend that is up."""
    proxy = ProxyServer(engine_url, log_path=log_path, say=lambda _: None)
    begun = time.monotonic()
    try:
        proxy.start(wait=False)
        while http_status(f"{proxy.base_url}/ready") != 200:
            if time.monotonic() - begun > PATIENCE_SECONDS:
                raise RuntimeError("the proxy did not get ready")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - begun
    finally:
        proxy.stop()


def waiting_memory(tools: Tools, folder: Path) -> dict[str, float]:
    """Megabytes at rest, and kilobytes for each queued request of 64K tokens beyond its body."""
    log_path = folder / "engine.log"
    engine = engine_server(tools.engine, log_path, pool_tokens=POOL_TOKENS, say=lambda _: None)
    proxy = ProxyServer(engine.base_url, WAIT_LONG, log_path=folder / "proxy.log", say=lambda _: None)
    with engine, proxy, contextlib.ExitStack() as clients:
        idle = resident_bytes(proxy.pid)
        clients.enter_context(_client(proxy.port, 0, stream=True))
        _until(proxy, "committed_tokens", 1)
        for number in range(SETTLED):
            clients.enter_context(_client(proxy.port, number + 1))
        _until(proxy, "queue_requests", SETTLED)
        before = resident_bytes(proxy.pid)
        for number in range(QUEUED):
            clients.enter_context(_client(proxy.port, SETTLED + number + 1))
        _until(proxy, "queue_requests", SETTLED + QUEUED)
        each = (resident_bytes(proxy.pid) - before) / QUEUED - len(_body(SETTLED, stream=False))
    return {"idle_memory": idle / 1e6, "queued_memory": each / 1e3}


def _client(port: int, number: int, *, stream: bool = False) -> socket.socket:
    """A client that has asked and waits."""
    body = _body(number, stream=stream)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client


def _body(number: int, *, stream: bool) -> bytes:
    """A prompt whose long text is known already: what counting remembers of texts is no part of a request."""
    first = f"[[chunks=100000 interval_us=1000000]] Number {number:04d}."
    contents = (first, " ".join(random.Random(1).choices(WORDS, k=PROMPT_WORDS)))
    messages = [{"role": "user", "content": content} for content in contents]
    document = {"model": "bench", "messages": messages, "max_tokens": 16}
    return json.dumps({**document, **({"stream": True} if stream else {})}, separators=(",", ":")).encode()


def _until(proxy: ProxyServer, name: str, least: float) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while proxy.ledger()[name] < least:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} is {proxy.ledger()[name]}, not {least}")
        time.sleep(0.05)
