"""`make demo`: the 186,624-token story, at the same time directly and through the proxy.

Two simulated servers of the story's machine get the same seeded traffic; in front of one stands the proxy.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from proxy.simulator.children import StartFailed, free_port, running
from proxy.simulator.load import Load, Target
from proxy.simulator.mixes import STORY_POOL_TOKENS, story
from proxy.simulator.pace import PACES
from proxy.simulator.report import Side, picture, table
from proxy.simulator.screen import Screen, View, view_of
from proxy.simulator.workload import Workload

FRAME_SECONDS = 0.5
# A chunk every 50 ms a stream: the servers, the proxy and all clients share two CPU cores here.
TICK_SECONDS = 0.05
SHORT = "short"


@dataclass(slots=True)
class _Half:
    """One side: a load, and the engine behind it."""

    name: str
    load: Load
    engine_url: str
    pool_share: float = 0.0
    engine_waiting: int = 0
    ended_at: float = 0.0  # of the load, finished or not


@dataclass(slots=True)
class _Servers:
    direct_url: str
    engine_url: str
    proxy_url: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option of the command to `parser`."""
    machine = "rtx6000-tp2"
    parser.add_argument("--pace", choices=list(PACES), default=machine, help="the machine (%(default)s)")
    parser.add_argument(
        "--speedup", type=float, default=4.0, help="how many times faster than the machine (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="of short chats (%(default)s)")
    parser.add_argument("--rate", type=float, default=8.0, help="short chats a second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (%(default)s)")


def main(args: argparse.Namespace) -> int:
    """Runs it all; returns the exit status. Ctrl-C ends it early with what was measured."""
    try:
        return asyncio.run(_demo(args))
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1


async def _demo(args: argparse.Namespace) -> int:
    workload = story(seed=args.seed, rate=args.rate, seconds=args.seconds)
    print(_headline(args, workload))
    async with _servers(args) as servers:
        halves = [
            _Half("direct", Load(workload, Target(servers.direct_url)), servers.direct_url),
            _Half("proxied", Load(workload, Target(servers.proxy_url)), servers.engine_url),
        ]
        interrupted = await _drive(halves, workload)
    direct, proxied = (Side(half.name, half.load.run.cut_at(half.ended_at)) for half in halves)
    print("\nInterrupted. So far, the waiting counted as if served now:\n" if interrupted else "\n")
    print(table(direct, proxied))
    path = args.out / "demo.png"
    title = f"One pool of {STORY_POOL_TOKENS:,} tokens: short chats among 64K contexts and one 180K"
    if picture(direct, proxied, path, title=title):
        print(f"\nPicture: {path}")
    else:
        print("\nNo picture: matplotlib is not installed (pip install 'sglang-admission-proxy[demo]').")
    return 130 if interrupted else 0


def _headline(args: argparse.Namespace, workload: Workload) -> str:
    return (
        f"A simulated SGLang with a pool of {STORY_POOL_TOKENS:,} KV tokens ({args.pace}, "
        f"{args.speedup:g}x its speed).\n"
        f"{workload.requests} requests: {args.rate:g} short chats a second for {args.seconds:g} s, six "
        "clients with two 64K prompts each, one 180K prompt.\n"
        "The same traffic at the same time: directly, and through the proxy.\n"
    )


@contextlib.asynccontextmanager
async def _servers(args: argparse.Namespace) -> AsyncIterator[_Servers]:
    """Both engines and the proxy, up."""
    ports = [free_port() for _ in range(3)]
    direct, engine, proxy = (f"http://127.0.0.1:{port}" for port in ports)
    simulator = ["-m", "proxy.simulator", "--pace", args.pace, "--speedup", str(args.speedup)]
    simulator += ["--pool-tokens", str(STORY_POOL_TOKENS), "--tick-seconds", str(TICK_SECONDS), "--port"]
    environment = {
        "PROXY_BACKENDS": engine,
        "PROXY_PORT": str(ports[2]),
        "PROXY_MAX_QUEUE_SECONDS": "600",
        "PROXY_LOG_LEVEL": "warning",
    }
    async with (
        running("the direct engine", [*simulator, str(ports[0])], f"{direct}/ready"),
        running("the proxied engine", [*simulator, str(ports[1])], f"{engine}/ready"),
        running("the proxy", ["-m", "proxy", "serve"], f"{proxy}/ready", environment),
    ):
        yield _Servers(direct, engine, proxy)


async def _drive(halves: list[_Half], workload: Workload) -> bool:
    """Both loads at once, shown meanwhile; True when Ctrl-C ended them."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted.set)
    stop = asyncio.create_task(interrupted.wait())
    show = asyncio.create_task(_show(halves, workload))
    tasks: list[asyncio.Task[Any]] = [stop, show, asyncio.create_task(_all(halves))]
    try:
        first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for half in halves:
            half.ended_at = half.load.now
        await asyncio.wait(tasks)
    for task in first:
        task.result()
    return interrupted.is_set()


async def _all(halves: list[_Half]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for half in halves:
            tasks.create_task(half.load.drive())


async def _show(halves: list[_Half], workload: Workload) -> None:
    screen = Screen(sys.stdout)
    async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
        while True:
            for half in halves:
                await _look(http, half)
            screen.show(halves[0].load.now, [_view(half, workload) for half in halves])
            await asyncio.sleep(FRAME_SECONDS)


async def _look(http: httpx.AsyncClient, half: _Half) -> None:
    with contextlib.suppress(httpx.HTTPError):
        answer = await http.get(f"{half.engine_url}/v1/loads?include=core")
        load = answer.json()["loads"][0]
        half.pool_share = load["token_usage"]
        half.engine_waiting = load["num_waiting_reqs"]


def _view(half: _Half, workload: Workload) -> View:
    return view_of(
        half.name,
        half.load.run,
        half.load.now,
        short=SHORT,
        total=workload.requests,
        pool_share=half.pool_share,
        engine_waiting=half.engine_waiting,
    )
