"""A short mixed load from clients that can hang up: what the live page has to show."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.backend_spec import BackendSpec
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.pace import Pace
from proxy.simulator.server import ServerConfig
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection, request
from tests.simulator.serving import serving

COMPLETIONS = "/v1/completions"
# 40,000 prefilled tokens a second and 50 decode steps: contexts stay long enough to be looked at
ENGINE = EngineConfig(pool_tokens=186_624, pace=Pace(2.5e-5, 0.0, 2e-2, 0.0))
IDS = 30_000  # prompts are drawn from so many ids


@dataclass
class Client:
    """One streaming request. `done` ends with its answer, or when it hangs up."""

    connection: Connection
    done: asyncio.Task[object]

    async def hang_up(self) -> None:
        if not self.connection.writer.is_closing():
            self.connection.leave(reset=True)
        await asyncio.gather(self.done, return_exceptions=True)  # its answer is cut off anywhere


@dataclass
class Load:
    """Clients of one proxy."""

    port: int
    clients: list[Client] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)  # one for each prompt

    async def ask(
        self, tokens: int, output_tokens: int, *, session: str = "", patience_seconds: float = 300.0
    ) -> Client:
        """A prompt that shares nothing with any other, and an answer of exactly that length."""
        rng = random.Random(next(self.numbers))
        body = {
            "model": "simulated",
            "prompt": rng.choices(range(1, IDS), k=tokens),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        headers = [("x-request-timeout-ms", str(round(patience_seconds * 1000)))]
        if session:
            headers.append(("x-session-id", session))
        connection = await Connection.open(self.port)
        await connection.send(request(body, COMPLETIONS, headers=headers))
        client = Client(connection, asyncio.create_task(connection.reply()))
        self.clients.append(client)
        return client

    async def ask_shorts_for(self, seconds: float, *, every_seconds: float = 0.25) -> None:
        """Shorts of mixed sizes, one after the other."""
        rng = random.Random(1)
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await self.ask(rng.randint(200, 4000), rng.randint(40, 160))
            await asyncio.sleep(every_seconds)

    async def leave(self) -> None:
        await asyncio.gather(*(client.hang_up() for client in self.clients))


@asynccontextmanager
async def proxy_under_load(
    pools: int = 1, engine: EngineConfig = ENGINE, **settings: Any
) -> AsyncIterator[tuple[Running, Load]]:
    """A proxy before that many simulated servers, and its clients, who all hang up in the end."""
    async with serving(ServerConfig(engine)) as first, serving(ServerConfig(engine)) as second:
        specs = [BackendSpec(url=url, name=f"gpu-{at}") for at, url in enumerate((first, second)[:pools])]
        async with proxy_before(*specs, **settings) as proxy:
            load = Load(proxy.port)
            try:
                yield proxy, load
            finally:
                await load.leave()
                await proxy.settled()
