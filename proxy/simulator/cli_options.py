"""`sglang-admission-proxy simulator`: its options, and running it."""

import argparse
import asyncio
import socket
import sys

import uvicorn

from proxy.simulator.intake import Lengths
from proxy.simulator.jobs import EngineConfig, Policy
from proxy.simulator.pace import PACES, pace_of
from proxy.simulator.runner import TICK_SECONDS
from proxy.simulator.server import GENERATING, ServerConfig, create_app


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option of the command to `parser`."""
    parser.description = (
        f"A model of SGLang's scheduler behind SGLang's paths: {', '.join(GENERATING)}, what it says of "
        "itself and of its load. The words it answers with mean nothing; when they come is the point."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=30000, help="port to listen on (%(default)s)")
    add_engine_arguments(parser)
    parser.add_argument("--no-cache-report", action="store_true", help="say no cached tokens in usage")
    parser.add_argument("--model", default="simulated", help="model name it answers with (%(default)s)")
    parser.add_argument(
        "--output-median",
        type=int,
        default=150,
        help="median length of outputs that end by themselves (%(default)s)",
    )
    parser.add_argument(
        "--tick-seconds",
        type=float,
        default=TICK_SECONDS,
        help="tokens of a stream are sent at most this often (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of those lengths (%(default)s)")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that describe the simulated server's pool, scheduler and speed."""
    defaults = EngineConfig()
    parser.add_argument(
        "--pool-tokens", type=int, default=defaults.pool_tokens, help="size of the KV pool (%(default)s)"
    )
    parser.add_argument(
        "--context-tokens", type=int, default=defaults.context_tokens, help="context length (%(default)s)"
    )
    parser.add_argument(
        "--pace",
        default="h200-8b",
        help=f"how fast the machine is: {', '.join(PACES)}, or four numbers A,B,C,D for prefill seconds "
        "n*(A + B*(depth + n/2)) and decode seconds C + D*tokens (%(default)s)",
    )
    parser.add_argument("--speedup", type=float, default=1.0, help="divides all times (%(default)s)")
    parser.add_argument(
        "--policy",
        choices=[policy.value for policy in Policy],
        default=Policy.FCFS.value,
        help="order of its queue (%(default)s)",
    )
    parser.add_argument(
        "--chunk-tokens", type=int, default=defaults.chunk_tokens, help="prefill chunk (%(default)s)"
    )
    parser.add_argument(
        "--max-running-requests", type=int, default=defaults.max_running_requests, help="(%(default)s)"
    )
    parser.add_argument(
        "--max-queued-requests", type=int, default=None, help="503 when more would wait (no limit)"
    )
    parser.add_argument("--no-radix-cache", action="store_true", help="keep no prefixes")


def engine_of(args: argparse.Namespace) -> EngineConfig:
    """The server that the options of `add_engine_arguments` describe. Raises ValueError."""
    for name in ("pool_tokens", "context_tokens", "chunk_tokens", "max_running_requests"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least 1")
    return EngineConfig(
        pool_tokens=args.pool_tokens,
        context_tokens=args.context_tokens,
        chunk_tokens=args.chunk_tokens,
        max_running_requests=args.max_running_requests,
        max_queued_requests=args.max_queued_requests,
        policy=Policy(args.policy),
        radix_cache=not args.no_radix_cache,
        pace=pace_of(args.pace, speedup=args.speedup),
    )


def config_of(args: argparse.Namespace) -> ServerConfig:
    """The configuration that parsed options describe. Raises ValueError."""
    return ServerConfig(
        engine_of(args),
        model=args.model,
        cache_report=not args.no_cache_report,
        lengths=Lengths(args.seed, args.output_median),
        tick_seconds=args.tick_seconds,
    )


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted. Returns the exit status."""
    try:
        config = config_of(args)
    except ValueError as error:
        raise SystemExit(f"simulator: {error}") from None
    asyncio.run(serve(config, args.host, args.port))
    return 0


async def serve(config: ServerConfig, host: str, port: int) -> None:
    """The server itself, idle connections closed after 5 s as SGLang does."""
    options = uvicorn.Config(
        create_app(config), host=host, port=port, log_level="warning", timeout_keep_alive=5
    )
    await _Server(options, f"a simulated SGLang, {config.engine.pool_tokens:,} KV tokens").serve()


class _Server(uvicorn.Server):
    """Says where it listens, or why it cannot."""

    def __init__(self, config: uvicorn.Config, what: str) -> None:
        super().__init__(config)
        self._what = what

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        address = f"{self.config.host}:{self.config.port}"
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn has told the system's reason
            raise SystemExit(f"simulator: cannot listen on {address}: choose another --port") from None
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        sys.stdout.write(f"{self._what}: http://{host}:{port}\n")
        sys.stdout.flush()
