"""One real server for the whole session, and a proxy before it for each test that asks for one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.load.proxy import ProxyServer
from tests.load.scenario import Engine
from tests.sglang.server import SGLangServer


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The pace and pool of the shared server."""
    return Engine()


@pytest.fixture(scope="session")
def shared_server(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    log_path = tmp_path_factory.mktemp("sglang") / "sglang.log"
    with SGLangServer(
        pool=engine.pool,
        pace=engine.pace,
        speedup=engine.speedup,
        policy=engine.policy,
        flags=("--enable-response-store",),
        log_path=log_path,
    ) as server:
        yield server


@pytest.fixture
def server(shared_server: SGLangServer) -> SGLangServer:
    """The shared server with an empty prefix cache; started again if a test has left it dead."""
    if not shared_server.is_running():
        shared_server.start()
    shared_server.flush_cache()
    return shared_server


StartProxy = Callable[..., ProxyServer]


@pytest.fixture
def start_proxy(server: SGLangServer, tmp_path: Path) -> Iterator[StartProxy]:
    """Starts proxies before the server: `start_proxy(PROXY_MAX_QUEUE_SECONDS="5")`."""
    with ExitStack() as started:

        def start(**settings: str) -> ProxyServer:
            proxy = ProxyServer(server.base_url, settings, log_path=tmp_path / "proxy.log")
            return started.enter_context(proxy)

        yield start


@pytest.fixture
def proxy(start_proxy: StartProxy) -> ProxyServer:
    """A proxy with its defaults."""
    return start_proxy()
