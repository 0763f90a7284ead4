"""A simulated server, or another app, on a real socket of this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from proxy.simulator.jobs import EngineConfig
from proxy.simulator.pace import Pace
from proxy.simulator.server import ServerConfig, create_app

# 100,000 prefilled tokens and 1,000 decode steps a second
FAST = EngineConfig(pool_tokens=20_000, context_tokens=40_000, pace=Pace(1e-5, 0.0, 1e-3, 0.0))


@asynccontextmanager
async def serving_app(app: Starlette) -> AsyncIterator[str]:
    """Its base URL, while the block runs."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def serving(config: ServerConfig) -> AbstractAsyncContextManager[str]:
    """The simulated server of that configuration."""
    return serving_app(create_app(config))
