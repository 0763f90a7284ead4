"""The process: listening sockets, signals, and leaving in good order."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from proxy.api.connection import BoundedProtocol
from proxy.app import App
from proxy.settings import Settings

logger = logging.getLogger("proxy")

BACKLOG_CONNECTIONS = 2048
KEEPALIVE_SECONDS = 75  # longer than the idle time of common load balancers in front
SWITCH_SECONDS = 0.001  # the counting thread gives the event loop its turn this often
LEAVE_POLL_SECONDS = 0.05
OWN_DESCRIPTORS = 48  # beside connections: listeners, logs, the event loop, polls, aborts
MOST_DESCRIPTORS = 1_048_576  # what is asked for where the system knows no limit
MAPPED_BYTES = 262_144  # from this size on a block of memory is the system's again once it is free
YOUNG_OBJECTS = 10_000  # between collections; by default 700, which is one for every other request


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: this process drains before it stops listening.

    `named_by`: the variables that say where it listens, for when it cannot.
    """

    def __init__(self, config: uvicorn.Config, named_by: str) -> None:
        super().__init__(config)
        self._named_by = named_by

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        raise AssertionError("signals are handled by serve()")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn could not bind, and has logged the system's reason
            logger.error(
                "cannot listen on %s:%d: choose another %s, or end what listens there",
                self.config.host,
                self.config.port,
                self._named_by,
            )
            raise
        logger.info("listening on %s", ", ".join(f"http://{host}:{port}" for host, port in self.addresses()))

    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, once it has started: a port of 0 has become a real one."""
        return [sock.getsockname()[:2] for server in self.servers for sock in server.sockets]


def give_large_blocks_back() -> bool:
    """Keep bodies out of the heap, in which each would leave a hole.

    False where the C library has no such switch. By itself glibc moves its threshold up to the
    size of the first large block that is freed, and takes a tenth more memory (tests/bench/heap.py).
    """
    threshold = -3  # M_MMAP_THRESHOLD in malloc.h
    try:
        return bool(ctypes.CDLL(None).mallopt(threshold, MAPPED_BYTES))
    except (OSError, AttributeError):
        return False


def make_server(app: Any, host: str, port: int, named_by: str = "PROXY_HOST or PROXY_PORT") -> Server:
    """A server for `app` as `serve` uses it, not started; port 0 picks a free one."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="auto",
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG_CONNECTIONS,
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=1,
        limit_concurrency=most_connections(),
    )
    return Server(config, named_by)


def most_connections() -> int:
    """How many clients may be connected. Each may need a connection to a server as well, and as many
    again may be on their way out: clients must never take what polls and admitted requests need."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(2, (allowed - OWN_DESCRIPTORS) // 3)


def _raise_descriptor_limit() -> None:
    """To what the system allows this process: the usual 1,024 are 325 clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(ValueError, OSError):  # macOS names a limit that it does not take
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(settings: Settings) -> None:
    """`serve` from start to end, on uvloop where that is installed: less CPU for each streamed chunk."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Run the proxy until a signal ends it.

    SIGTERM and the first SIGINT: the queued are refused, new requests get 503, running ones
    finish within PROXY_DRAIN_SECONDS; what is left then is aborted. A second signal leaves at once.
    SIGHUP reads limits, keys and servers again.
    """
    _raise_descriptor_limit()
    give_large_blocks_back()
    app = App(settings)
    sys.setswitchinterval(SWITCH_SECONDS)
    servers = [make_server(app, settings.host, settings.port)]
    if app.admin is not None and settings.admin_address is not None:
        named_by = "PROXY_ADMIN_HOST or PROXY_ADMIN_PORT"
        servers.append(make_server(app.admin, *settings.admin_address, named_by))
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave() -> None:
        if leaving.is_set():
            for server in servers:
                server.should_exit = server.force_exit = True
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    loop.add_signal_handler(signal.SIGHUP, app.reload_soon)
    async with app.running():
        _settle_memory()
        running = [asyncio.create_task(server.serve()) for server in servers]
        waiting = asyncio.create_task(leaving.wait())
        await asyncio.wait([*running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            await _drain(app, servers, settings.drain_seconds)
        waiting.cancel()
        app.end_viewers()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*running)


def _settle_memory() -> None:
    """What is loaded by now stays: later collections need not look through it, which takes milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


async def _drain(app: App, servers: list[Server], seconds: float) -> None:
    app.gate.drain()
    left = app.gate.open_tickets
    logger.info("draining: %d requests are running, up to %.0f s", left, seconds)
    deadline = asyncio.get_running_loop().time() + seconds
    while app.gate.open_tickets and asyncio.get_running_loop().time() < deadline:
        if any(server.force_exit for server in servers):
            return
        await asyncio.sleep(LEAVE_POLL_SECONDS)
    if app.gate.open_tickets:
        logger.warning("%d requests are cut off after %.0f s", app.gate.open_tickets, seconds)
        await app.abort_running()
