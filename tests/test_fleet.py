"""Servers that leave: nothing of them stays behind, whatever they were before."""

import asyncio
from dataclasses import replace
from typing import cast

from proxy.api.gate import Gate
from proxy.backend_spec import BackendSpec
from proxy.fleet import Fleet
from proxy.upstream.backend import Backend
from tests.api.gates import FACTS, Setup, request
from tests.waiting import eventually


class Restarting:
    """A server with two DP ranks, and later with one."""

    def __init__(self, spec: BackendSpec, gate: Gate) -> None:
        self.spec = spec
        self.pools: tuple[str, ...] = ("two/0", "two/1")
        self._gate = gate

    async def start(self) -> None:
        for pool in self.pools:
            self._gate.pool_up(pool, replace(FACTS, models=("its own",)))

    def restart(self) -> None:
        for pool in self.pools:
            self._gate.pool_down(pool, "restarted with other ranks")
        self.pools = ("two",)
        self._gate.pool_up("two", replace(FACTS, models=("its own",)))

    async def close(self) -> None:
        await asyncio.sleep(0)


async def test_a_server_that_leaves_takes_the_pools_with_it_that_it_had_before() -> None:
    world = Setup()
    made: list[Restarting] = []

    def make(spec: BackendSpec) -> Backend:
        made.append(Restarting(spec, world.gate))
        return cast("Backend", made[-1])

    fleet = Fleet(world.gate, make)
    await fleet.change([BackendSpec("http://two", "two")])
    ticket = world.gate.submit(request("runs", model="its own"))
    assert ticket.decision is not None
    made[0].restart()
    await fleet.change([])
    await asyncio.sleep(0.15)
    assert set(world.controller.lines) == {"b", "two/0", "two/1", "two"}  # as long as it runs there
    world.gate.finish(ticket, completed=False)
    await eventually(lambda: len(fleet) == 0)
    assert set(world.controller.lines) == {"b"}
    world.gate.close()
