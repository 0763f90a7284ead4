"""What a replay runs under: how the engine is watched, and what goes wrong."""

from dataclasses import dataclass

from proxy.admission.types import LoadSample, PoolFacts
from proxy.simulator.jobs import EngineConfig, LoadSnapshot

# SGLang notices late that a client left before its first token: 2.6 to 7 s, measured. A stream shows at once.
UNNOTICED_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Restart:
    """The server dies at `at`, taking all it held with it, and is back after `down_seconds`."""

    at: float
    down_seconds: float
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Conditions:
    """Around the engine: what is polled how often, what it costs, and what goes wrong.

    `blind`: (from, to) without polls. `sliceable`: the ids of long prompts can be had, in
    `ids_token_seconds` a token; a slice costs `slice_token_seconds` for every token of its prefix.
    """

    poll_seconds: float = 0.25
    tick_seconds: float = 0.25
    pool: str = "sim"
    cache_report: bool = True
    shows_ratio: bool = True  # `/metrics` are on there
    blind: tuple[tuple[float, float], ...] = ()
    restarts: tuple[Restart, ...] = ()
    sliceable: bool = True
    ids_token_seconds: float = 4e-6
    slice_token_seconds: float = 7e-7  # the server reads all ids again: 45 ms at 64K
    horizon_seconds: float = 3600.0


def facts_of(config: EngineConfig, *, cache_report: bool = True) -> PoolFacts:
    """What such a server says of itself."""
    return PoolFacts(
        pool_tokens=config.pool_tokens,
        max_request_tokens=config.max_request_tokens,
        context_tokens=config.context_tokens,
        max_running_requests=config.max_running_requests,
        chunk_tokens=config.chunk_tokens,
        conservativeness=config.conservativeness,
        radix_cache=config.radix_cache,
        cache_report=cache_report,
        version="simulator",
    )


def sample_of(load: LoadSnapshot, *, shows_ratio: bool) -> LoadSample:
    """The load as the proxy's poll would report it."""
    return LoadSample(
        at=load.at,
        used_tokens=load.used_tokens,
        running=load.running,
        waiting=load.waiting,
        waiting_uncached_tokens=load.waiting_uncached_tokens,
        prefill_tokens_total=load.prefill_tokens_total,
        prefill_busy_seconds_total=load.prefill_busy_seconds_total,
        new_token_ratio=load.new_token_ratio if shows_ratio else None,
        retractions_total=load.retractions_total,
    )
