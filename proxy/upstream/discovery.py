"""Asking a server what it is: its pools and limits, and where its load can be read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from proxy.backend_spec import BackendSpec
from proxy.upstream.errors import UpstreamUnreachable
from proxy.upstream.link import Link, reason_of
from proxy.upstream.sglang import (
    GENERATE_PATH,
    GET_LOAD_PATH,
    LOADS_PATH,
    METRICS_PATH,
    MODEL_INFO_PATHS,
    MODELS_PATH,
    READY_PATH,
    SERVER_INFO_PATHS,
    VOCABULARY_PROBE,
    RankLoad,
    ServerInfo,
    load_json,
    parse_get_load,
    parse_loads,
    parse_metrics,
    parse_server_info,
    parse_vocabulary,
)

# /server_info asks the scheduler, which answers between two batches: seconds while it prefills.
ASK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LoadSource:
    """One place to read load from, and how."""

    path: str
    parse: Callable[[bytes], list[RankLoad]]


# Best first: the first is a snapshot in shared memory, milliseconds even when the engine is busy.
LOAD_SOURCES = (
    LoadSource(LOADS_PATH, lambda content: parse_loads(_object(content))),
    LoadSource(GET_LOAD_PATH, lambda content: parse_get_load(load_json(content))),
    LoadSource(METRICS_PATH, parse_metrics),
)


@dataclass(frozen=True, slots=True)
class Discovery:
    """A server that can take work. `loads` None: it reports no load, the ledger is all there is."""

    info: ServerInfo
    loads: LoadSource | None


async def discover(link: Link, spec: BackendSpec) -> Discovery:
    """Raises UpstreamUnreachable with the reason why it cannot take work (yet)."""
    try:
        await _check_ready(link)
        info = await _first_object(link, SERVER_INFO_PATHS)
        model_info = await _first_object(link, MODEL_INFO_PATHS)
        models = await _first_object(link, (MODELS_PATH,))
        loads, ranks = await _load_source(link)
        vocabulary = await _vocabulary(link) if model_info.get("is_generation", True) else None
    except httpx.TransportError as error:
        raise UpstreamUnreachable(reason_of(error), sent=False) from error
    except TimeoutError as error:
        raise UpstreamUnreachable("no answer to the first questions", sent=False) from error
    found = parse_server_info(
        info, models=models, model_info=model_info, pool_tokens=spec.pool_tokens, vocab_tokens=vocabulary
    )
    found = _with_pools_from_load(found, ranks)
    if any(facts.pool_tokens < 1 for facts in found.ranks):
        if not info and not model_info:
            raise UpstreamUnreachable("does not answer as SGLang does: is the address right?", sent=False)
        raise UpstreamUnreachable("does not say how large its pool is: set PROXY_POOL_TOKENS", sent=False)
    return Discovery(found, loads)


async def _check_ready(link: Link) -> None:
    response = await link.get(READY_PATH, seconds=ASK_SECONDS)
    if response.status_code == 503:
        raise UpstreamUnreachable("not ready yet", sent=False)
    if response.status_code == 404:  # before /ready existed
        response = await link.get(MODELS_PATH, seconds=ASK_SECONDS)
    if response.status_code in (401, 403):
        raise UpstreamUnreachable("refuses our API key", sent=False)
    if response.status_code >= 500:
        raise UpstreamUnreachable(f"not ready: status {response.status_code}", sent=False)


async def _first_object(link: Link, paths: tuple[str, ...]) -> Mapping[str, Any]:
    """The first of these paths that answers with a JSON object, {} when none does."""
    for path in paths:
        response = await link.get(path, seconds=ASK_SECONDS)
        if response.status_code in (401, 403):
            raise UpstreamUnreachable("refuses our API key", sent=False)
        if response.status_code == 200 and (document := _object(response.content)):
            return document
    return {}


async def _load_source(link: Link) -> tuple[LoadSource | None, list[RankLoad]]:
    for source in LOAD_SOURCES:
        response = await link.get(source.path, seconds=ASK_SECONDS)
        if response.status_code == 200 and (ranks := source.parse(response.content)):
            return source, ranks
    return None, []


async def _vocabulary(link: Link) -> int | None:
    try:
        response = await link.post(GENERATE_PATH, VOCABULARY_PROBE, seconds=ASK_SECONDS)
    except TimeoutError:
        return None
    return parse_vocabulary(response.content) if response.status_code == 400 else None


def _with_pools_from_load(info: ServerInfo, loads: list[RankLoad]) -> ServerInfo:
    pools = {load.rank: load.pool_tokens for load in loads}
    return replace(
        info,
        ranks=tuple(
            facts if facts.pool_tokens else replace(facts, pool_tokens=pools.get(rank) or 0)
            for rank, facts in enumerate(info.ranks)
        ),
    )


def _object(content: bytes) -> Mapping[str, Any]:
    document = load_json(content)
    return document if isinstance(document, dict) else {}
