"""The proxy in this process, on real sockets, before any servers; and what must be zero afterwards."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proxy.app import App
from proxy.backend_spec import BackendSpec
from proxy.serve import Server, make_server
from proxy.settings import Settings
from tests.fakes import FakeServer
from tests.raw_http import CHAT, Reply, ask
from tests.waiting import eventually

#: One place to change what every test's proxy has in common; calibration off, so that bytes stay.
USUAL: dict[str, Any] = {"poll_seconds": 0.05, "connect_seconds": 1.0, "calibrate_streams": 0.0}


@dataclass
class Running:
    """A proxy that runs. `admin_port` is the clients' own where there is no other."""

    app: App
    servers: list[Server]

    @property
    def port(self) -> int:
        return self.servers[0].addresses()[0][1]

    @property
    def admin_port(self) -> int:
        return self.servers[-1].addresses()[0][1]

    def connections(self) -> list[Any]:
        """uvicorn's protocols of the open client connections."""
        return list(self.servers[0].server_state.connections)

    async def ask(
        self,
        body: bytes | dict[str, Any] | None = None,
        path: str = CHAT,
        *,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
    ) -> Reply:
        """One request of a client, on a connection of its own."""
        return await ask(self.port, body, path, method=method, headers=headers)

    async def get(self, path: str, headers: Iterable[tuple[str, str]] = ()) -> Reply:
        return await ask(self.port, None, path, method="GET", headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series, 0 when it does not exist."""
        return self.app.metrics.registry.get_sample_value(f"sglang_proxy_{name}", labels) or 0.0

    def ledger(self) -> dict[str, float]:
        """Everything that is charged, queued or open anywhere; all zero when nothing is under way."""
        controller = self.app.gate.controller
        found: dict[str, float] = {
            "tickets": self.app.gate.open_tickets,
            "jobs": len(controller.jobs),
            "bodies": self.app.room.held_bytes,
        }
        for name, line in controller.lines.items():
            pool = line.pool
            found |= {
                f"{name} queue": len(line),
                f"{name} C": pool.committed_tokens,
                f"{name} U": pool.used_tokens,
                f"{name} W": pool.backlog_tokens,
                f"{name} short W": pool.short_backlog_tokens,
                f"{name} E": pool.engine_tokens,
                f"{name} S": pool.running_slots,
                f"{name} shorts": pool.short_tokens,
            }
        return found

    async def settled(self, seconds: float = 5.0) -> None:
        """Waits until the ledger is exactly zero; fails with what is left of it."""
        try:
            await eventually(lambda: not any(self.ledger().values()), seconds)
        except TimeoutError:
            left = {name: value for name, value in self.ledger().items() if value}
            raise AssertionError(f"after {seconds:g} s there is still {left}") from None


@asynccontextmanager
async def proxy_before(
    *servers: FakeServer | BackendSpec, wait: bool = True, **settings: Any
) -> AsyncIterator[Running]:
    """A proxy whose backends `b0`, `b1`, ... are these servers; by default once all are known."""
    specs = tuple(
        BackendSpec(url=server.url, name=f"b{index}") if isinstance(server, FakeServer) else server
        for index, server in enumerate(servers)
    )
    app = App(Settings(**{"backends": specs, **USUAL, **settings}))
    async with app.running():
        listeners = [make_server(app, "127.0.0.1", 0)]
        if app.admin is not None:
            listeners.append(make_server(app.admin, "127.0.0.1", 0))
        tasks = [asyncio.create_task(listener.serve()) for listener in listeners]
        await eventually(lambda: all(listener.started for listener in listeners))
        running = Running(app, listeners)
        try:
            if wait:
                gate = app.gate
                await eventually(lambda: len(gate.samples) >= len(servers))
            yield running
        finally:
            app.end_viewers()
            for listener, task in zip(listeners, tasks, strict=True):
                await _stop(listener, task)


async def _stop(listener: Server, task: asyncio.Task[None]) -> None:
    """What uvicorn does when it is told to exit, without its pauses of a tenth of a second."""
    state = listener.server_state
    for server in listener.servers:
        server.close()
    for connection in tuple(state.connections):
        connection.shutdown()
    await eventually(lambda: not (state.connections or state.tasks))
    task.cancel()
    await asyncio.wait({task})
