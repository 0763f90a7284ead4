"""A fake server with faults, and an examination of whatever the settings name."""

from collections.abc import AsyncIterator
from io import StringIO

import pytest
import pytest_asyncio

from proxy.doctor.examination import Examination, examine
from proxy.settings import load_settings
from tests.doctor.support import Examine
from tests.fakes import FakeServer


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeServer]:
    server = await FakeServer(info={"schedule_policy": "fcfs", "enable_metrics": True}).start()
    server.info |= {"enable_cache_report": True}
    server.metrics = 'sglang:num_used_tokens{tp_rank="0"} 0.0\n'
    yield server
    await server.stop()


@pytest.fixture
def examined(one_vocabulary: None) -> Examine:
    """Examines the servers at these URLs (or as PROXY_BACKENDS says) under these settings."""

    async def run(
        *urls: str, seconds: float = 10.0, out: StringIO | None = None, **settings: str
    ) -> Examination:
        environ = {f"PROXY_{name.upper()}": value for name, value in settings.items()}
        environ.setdefault("PROXY_BACKENDS", ",".join(urls))
        return await examine(load_settings(environ), seconds=seconds, progress=out or StringIO())

    return run
