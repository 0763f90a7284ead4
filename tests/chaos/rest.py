"""What must be true again when a fault is over."""

from tests.chaos.crowd import crowd, statuses
from tests.proxies import Running
from tests.waiting import eventually


async def check_at_rest(proxy: Running, *, seconds: float = 15.0) -> None:
    """No client is connected, the ledger is exactly zero, and the next clients are served."""
    await eventually(lambda: not proxy.connections())
    await proxy.settled(seconds)
    assert set(statuses(await crowd(proxy, 5))) == {200}
    await eventually(lambda: not proxy.connections())
    await proxy.settled()
