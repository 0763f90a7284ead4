"""What tests of a backend share: a listener that takes notes, and calls."""

import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.admission.types import LoadSample, PoolFacts
from proxy.upstream import Backend, Call, Exchange, UpstreamBroken

CHAT = "/v1/chat/completions"
Connect = Callable[..., Awaitable[Backend]]


@dataclass
class Heard:
    """A listener that writes down what it hears."""

    up: list[tuple[str, PoolFacts]] = field(default_factory=list)
    down: list[tuple[str, str]] = field(default_factory=list)
    loads: list[tuple[str, LoadSample]] = field(default_factory=list)

    def pool_up(self, pool: str, facts: PoolFacts) -> None:
        self.up.append((pool, facts))

    def pool_down(self, pool: str, reason: str) -> None:
        self.down.append((pool, reason))

    def load(self, pool: str, sample: LoadSample) -> None:
        self.loads.append((pool, sample))

    @property
    def last(self) -> LoadSample:
        return self.loads[-1][1]


def call(path: str = CHAT, document: dict[str, Any] | None = None, **settings: Any) -> Call:
    """A call with a fresh rid; `stream` goes into the body as well."""
    body = (
        {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} if document is None else document
    )
    if settings.get("stream"):
        body = {**body, "stream": True}
    known: dict[str, Any] = {
        "method": "POST",
        "path": path,
        "pool": "b",
        "rid": uuid.uuid4().hex,
        "headers": [(b"content-type", b"application/json")],
        "body": json.dumps(body).encode(),
    }
    return Call(**{**known, **settings})


async def read_until_broken(exchange: Exchange) -> tuple[bytes, UpstreamBroken]:
    """What came of it before it broke, and how it did."""
    got = b""
    try:
        async for chunk in exchange:
            got += chunk
    except UpstreamBroken as error:
        return got, error
    raise AssertionError("it did not break")


async def read_all(exchange: Exchange) -> bytes:
    """Every byte, and then the end of the exchange."""
    async with exchange:
        return b"".join([chunk async for chunk in exchange])
