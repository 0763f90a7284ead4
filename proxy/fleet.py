"""The servers behind the proxy: those in service, and those that leave while the proxy runs."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from proxy.api.gate import Gate
from proxy.backend_spec import BackendSpec
from proxy.upstream.backend import Backend

logger = logging.getLogger("proxy")

LEAVING_POLL_SECONDS = 0.1


class Fleet:
    """All backends by name. One that leaves takes nothing new and is closed when it has nothing left."""

    def __init__(self, gate: Gate, make: Callable[[BackendSpec], Backend]) -> None:
        self._gate = gate
        self._make = make
        self._backends: dict[str, Backend] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._closing: set[str] = set()

    def __len__(self) -> int:
        return len(self._backends)

    def of(self, pool: str) -> Backend:
        """The backend that a pool belongs to."""
        return self._backends[pool.partition("/")[0]]

    def add(self, specs: Iterable[BackendSpec]) -> None:
        """These as well; `start` has them looked for."""
        for spec in specs:
            self._backends[spec.name] = self._make(spec)

    async def start(self) -> None:
        for backend in self._backends.values():
            await backend.start()

    async def close(self) -> None:
        """Ends all requests at the servers, within seconds; nothing more is sent."""
        for task in self._leaving.values():
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving.values())
        await asyncio.gather(*(backend.close() for backend in self._backends.values()))

    # --- while it runs ---------------------------------------------------------------------------

    def check(self, specs: Iterable[BackendSpec]) -> None:
        """Raises ValueError when `change` cannot be made with these."""
        for spec in specs:
            if spec.name in self._closing:
                raise ValueError(f"server {spec.name!r} is being closed at this moment: try again")
            known = self._backends.get(spec.name)
            if known is not None and known.spec != spec:
                raise ValueError(
                    f"server {spec.name!r} is described differently than at its start: give the new "
                    "one another name, so that the old one can end what it has, or restart the proxy"
                )

    async def change(self, specs: Iterable[BackendSpec]) -> list[str]:
        """Add what is new, let go what is missing, keep the rest. Says what was done."""
        wanted = {spec.name: spec for spec in specs}
        done = []
        for name in self._backends.keys() - wanted.keys() - self._leaving.keys():
            self._leaving[name] = asyncio.create_task(self._leave(name), name=f"leaving {name}")
            done.append(f"server {name} leaves when it has ended what it has")
        for name in self._leaving.keys() & wanted.keys():
            await self._stay(name)
            done.append(f"server {name} stays")
        for name in wanted.keys() - self._backends.keys():
            self.add([wanted[name]])
            await self._backends[name].start()
            done.append(f"server {name} is new")
        return sorted(done)

    async def _stay(self, name: str) -> None:
        task = self._leaving.pop(name)
        task.cancel()
        await asyncio.wait({task})
        for pool in self._pools(self._backends[name]):
            self._gate.pool_leaving(pool, stays=True)

    async def _leave(self, name: str) -> None:
        backend = self._backends[name]
        while self._working(backend):
            for pool in self._pools(backend):
                self._gate.pool_leaving(pool)
            await asyncio.sleep(LEAVING_POLL_SECONDS)
        self._closing.add(name)
        await backend.close()
        for pool in self._pools(backend):
            self._gate.pool_gone(pool)
        del self._backends[name], self._leaving[name]
        self._closing.discard(name)
        logger.info("server %s is gone", name)

    def _working(self, backend: Backend) -> bool:
        """Does anything still count on it? True before it was told to leave."""
        lines = self._gate.controller.lines
        mine = [lines[pool].pool for pool in self._pools(backend) if pool in lines]
        return any(not pool.leaving or pool.jobs for pool in mine)

    def _pools(self, backend: Backend) -> set[str]:
        """Its pools, those included that it had before a restart with other ranks."""
        known = self._gate.controller.lines
        return {*backend.pools, *(pool for pool in known if pool.partition("/")[0] == backend.spec.name)}
