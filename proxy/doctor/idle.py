"""Settings that could never act on these servers, or not as they are meant. Only those the operator set."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from proxy.admission.limits import Limits
from proxy.admission.types import PoolFacts
from proxy.doctor.asking import Answers
from proxy.doctor.capacity import contexts_that_fit, largest_prompt
from proxy.doctor.finding import Finding, warning
from proxy.settings import Settings
from proxy.settings_text import variable


def idle_settings(servers: Sequence[Answers], settings: Settings, limits: Limits) -> list[Finding]:
    """One warning each."""
    found = [server.discovery.info for server in servers if server.discovery is not None]
    ranks = [facts for info in found for facts in info.ranks]
    if not ranks:
        return []
    texts = [
        *_sizes(ranks, settings, limits),
        *_queue(ranks, settings, limits),
        *_caching(ranks, settings),
        *_tiers(servers, settings),
    ]
    return [warning(text) for text in texts]


def _sizes(ranks: Sequence[PoolFacts], settings: Settings, limits: Limits) -> Iterator[str]:
    chosen = settings.model_fields_set
    largest = max(largest_prompt(facts, _unlimited(limits)) for facts in ranks)
    if settings.max_prompt_tokens is not None and settings.max_prompt_tokens >= largest:
        yield (
            f"{variable('max_prompt_tokens')}={settings.max_prompt_tokens} can never act: "
            f"no pool takes more than {largest:,} tokens"
        )
    if settings.short_prefill_tokens >= largest:
        yield (
            f"{variable('short_prefill_tokens')}={settings.short_prefill_tokens}: every prompt is short, "
            f"as none is larger than {largest:,}; no lane, gate or slice can act"
        )
    if settings.max_long_contexts is not None:
        fit = max(contexts_that_fit(f, _unlimited(limits), limits.short_prefill_tokens + 1) for f in ranks)
        if settings.max_long_contexts >= fit:
            yield (
                f"{variable('max_long_contexts')}={settings.max_long_contexts} can never act: "
                f"no more than {fit} of even the smallest longs fit"
            )
    if "output_reserve_cap" in chosen and settings.output_reserve_cap >= largest:
        yield (
            f"{variable('output_reserve_cap')}={settings.output_reserve_cap} can never act: "
            f"it is more than the largest pool holds"
        )


def _unlimited(limits: Limits) -> Limits:
    return replace(limits, max_prompt_tokens=None, max_long_contexts=None)


def _queue(ranks: Sequence[PoolFacts], settings: Settings, limits: Limits) -> Iterator[str]:
    chosen = settings.model_fields_set
    if settings.max_queue_tokens is not None:
        largest = max(largest_prompt(facts, limits) for facts in ranks)
        if settings.max_queue_tokens >= settings.max_queue_requests * largest:
            yield (
                f"{variable('max_queue_tokens')}={settings.max_queue_tokens} can never act: "
                f"{settings.max_queue_requests} requests, the most that may wait, hold less"
            )
    if "max_bypass_seconds" not in chosen:
        return
    bypass = f"{variable('max_bypass_seconds')}={settings.max_bypass_seconds:g}"
    usual, most = settings.max_queue_seconds, settings.max_queue_seconds_limit
    if settings.max_bypass_seconds >= most:
        name = variable("max_queue_seconds_limit")
        yield f"{bypass} can never act: no request waits longer than {name} ({most:g} s)"
    elif settings.max_bypass_seconds >= usual:
        name = variable("max_queue_seconds")
        yield f"{bypass} acts only for requests that ask for a longer wait than {name} ({usual:g} s)"


def _caching(ranks: Sequence[PoolFacts], settings: Settings) -> Iterator[str]:
    if any(facts.radix_cache for facts in ranks):
        return
    names = ("session_hold_seconds", "prefill_slice_seconds", "prefill_slice_max_tokens")
    for name in names:
        if name in settings.model_fields_set and getattr(settings, name):
            yield f"{variable(name)}={getattr(settings, name):g} can never act: no server keeps prefixes"


def _tiers(servers: Sequence[Answers], settings: Settings) -> Iterator[str]:
    tiers = {server.spec.tier for server in servers}
    if settings.long_tier_tokens is not None and "long" not in tiers:
        yield (
            f"{variable('long_tier_tokens')}={settings.long_tier_tokens} can never act: "
            "no server in PROXY_BACKENDS has tier long"
        )
    if settings.long_tier_tokens is None and "long" in tiers:
        yield f"servers of tier long are used like any other: {variable('long_tier_tokens')} is not set"
