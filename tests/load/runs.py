"""Plays a scenario against a real server, directly and through the proxy."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.load.client import Bodies, make_bodies, play
from tests.load.decisions import read_decisions
from tests.load.figures import Run
from tests.load.outcome import Outcome
from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.load.sampler import Sampler, retractions
from tests.load.workload import Ask, Client, Workload
from tests.sglang.server import MODEL_NAME, SGLangServer

PROGRESS_SECONDS = 5.0
SETTLE_SECONDS = 5.0
WARM_UP = Workload((Client(0.0, (Ask("warm-up", 2_000, 8, text_seed=0),)),))


def run_direct(server: SGLangServer, workload: Workload, *, title: str = "direct", say: Say = print) -> Run:
    """The load against the engine itself, with a cold prefix cache."""
    return asyncio.run(_run(title, server, server.base_url, workload, dict, say))


def run_proxied(
    server: SGLangServer,
    workload: Workload,
    settings: Mapping[str, str],
    *,
    log_path: Path,
    title: str = "proxied",
    decisions_path: Path | None = None,
    say: Say = print,
) -> Run:
    """The same through a proxy started for it; its ledger is read at the end, and so is its CPU time.

    Where `decisions_path` is given, its decision log is written there, and read.
    """
    if decisions_path is not None:
        settings = {**settings, "PROXY_DECISION_LOG": str(decisions_path)}
    with ProxyServer(server.base_url, settings, log_path=log_path, say=say) as proxy:
        run = asyncio.run(_run(title, server, proxy.base_url, workload, proxy.cpu_seconds_by_name, say))
        run = replace(run, ledger=proxy.settled_ledger(SETTLE_SECONDS))
    return replace(run, decisions=read_decisions(decisions_path)) if decisions_path else run


def run_against(
    server: SGLangServer, base_url: str, workload: Workload, *, title: str, say: Say = print
) -> Run:
    """The load against any address in front of the server; no ledger is read."""
    return asyncio.run(_run(title, server, base_url, workload, dict, say))


async def _run(
    title: str,
    server: SGLangServer,
    base_url: str,
    workload: Workload,
    proxy_cpu: Callable[[], dict[str, float]],
    say: Say,
) -> Run:
    bodies = make_bodies(workload, server.vocabulary, MODEL_NAME)
    warm_up = make_bodies(WARM_UP, server.vocabulary, MODEL_NAME)
    await play(server.base_url, WARM_UP, warm_up, began=time.monotonic())
    server.flush_cache()
    before_retractions = await retractions(server.base_url)
    before_cpu = _cpu(server, proxy_cpu)
    outcomes, sampler = await _play_watched(title, server.base_url, base_url, workload, bodies, say)
    cpu = {name: seconds - before_cpu[name] for name, seconds in _cpu(server, proxy_cpu).items()}
    return Run(
        outcomes=outcomes,
        samples=sampler.samples,
        missed_samples=sampler.missed,
        retractions=await retractions(server.base_url) - before_retractions,
        cpu_seconds=cpu,
    )


def _cpu(server: SGLangServer, proxy_cpu: Callable[[], dict[str, float]]) -> dict[str, float]:
    return {"client": time.process_time(), "engine": server.cpu_seconds(), **proxy_cpu()}


async def _play_watched(
    title: str, engine_url: str, base_url: str, workload: Workload, bodies: Bodies, say: Say
) -> tuple[list[Outcome], Sampler]:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    async with Sampler(engine_url, began=began) as sampler:
        progress = asyncio.create_task(_report(title, outcomes, len(workload.asks), sampler, began, say))
        try:
            await play(base_url, workload, bodies, began=began, outcomes=outcomes)
        finally:
            progress.cancel()
    say(f"  {title}: {len(outcomes)} answers in {time.monotonic() - began:.1f} s")
    return outcomes, sampler


async def _report(
    title: str, outcomes: list[Outcome], wanted: int, sampler: Sampler, began: float, say: Say
) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        engine = "silent"
        if sampler.samples:
            last = sampler.samples[-1]
            engine = f"{last.running} run, {last.waiting} wait, {last.used_tokens:,} tokens used"
        elapsed = time.monotonic() - began
        say(f"  {title}: {elapsed:.0f} s, {len(outcomes)}/{wanted} answers; engine: {engine}")
