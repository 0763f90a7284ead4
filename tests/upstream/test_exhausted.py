"""No descriptor is free: the server is not to blame."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy import serve
from proxy.upstream.client import make_client
from tests.fakes import FakeServer


@contextmanager
def no_descriptor_free() -> Iterator[None]:
    """This process can open nothing more inside."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_connecting_waits_until_a_descriptor_is_free(fake: FakeServer) -> None:
    client = make_client(connect_seconds=5.0)
    with no_descriptor_free():
        asked = asyncio.create_task(client.get(fake.url + "/ready"))
        await asyncio.sleep(0.12)
        assert not asked.done()
    assert (await asked).status_code == 200
    await client.aclose()


@pytest.mark.parametrize(
    ("descriptors", "clients"), [(1024, 325), (60, 4), (10, 2), (resource.RLIM_INFINITY, 349_509)]
)
def test_a_third_of_the_descriptors_is_for_clients(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, clients: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert serve.most_connections() == clients
