"""Settings that would suit these servers better than those in force, each with its reason."""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from proxy.admission.limits import Limits
from proxy.doctor.asking import Answers
from proxy.doctor.capacity import largest_prompt
from proxy.doctor.finding import Advice
from proxy.doctor.servers import DISAGGREGATED
from proxy.settings import Settings
from proxy.settings_text import variable
from proxy.upstream.discovery import Discovery
from proxy.upstream.sglang import METRICS_PATH

SHORT_ANSWER_TOKENS = 1024  # what a short needs beside its prompt
LARGEST_SHORT_SHARE = 4  # of the pool: a short is at most one part in so many
LARGEST_EXPRESS_SHARE = 0.25
METRICS_POLL_SECONDS = 1.0
MOST_POLLS_PER_SECOND = 400  # by one event loop, beside its work


def advice(servers: Sequence[Answers], settings: Settings, limits: Limits) -> list[Advice]:
    """Of all servers that answered, for the settings that all of them share."""
    found = [server.discovery for server in servers if server.discovery is not None]
    if not found:
        return []
    short_tokens = _short_tokens(found)
    return [
        *_shorts(found, settings, short_tokens),
        *_express(found, settings, short_tokens),
        *_queue_seconds(servers, settings, limits),
        *_polling(servers, found, settings),
        *_mode(found, settings),
        *_tokenizer(servers, found, settings),
    ]


def _smallest_pool(found: Sequence[Discovery]) -> int:
    return min(facts.pool_tokens for discovery in found for facts in discovery.info.ranks)


def _short_tokens(found: Sequence[Discovery]) -> int:
    chunk = min(facts.chunk_tokens for discovery in found for facts in discovery.info.ranks)
    return max(1, min(chunk, _smallest_pool(found) // LARGEST_SHORT_SHARE))


def _shorts(found: Sequence[Discovery], settings: Settings, tokens: int) -> Iterator[Advice]:
    if tokens == settings.short_prefill_tokens:
        return
    chunks = {facts.chunk_tokens for discovery in found for facts in discovery.info.ranks}
    if tokens in chunks:
        reason = f"one prefill chunk there is {tokens:,} tokens: what fits one blocks nobody for long"
    else:
        now = settings.short_prefill_tokens
        reason = f"a quarter of the pool: a short of {now:,} tokens would fill most of it"
    yield Advice(variable("short_prefill_tokens"), str(tokens), reason)


def _express(found: Sequence[Discovery], settings: Settings, short_tokens: int) -> Iterator[Advice]:
    pool_tokens = _smallest_pool(found)
    need = short_tokens + SHORT_ANSWER_TOKENS
    share = min(LARGEST_EXPRESS_SHARE, ceil(100 * need / pool_tokens) / 100)
    if share > settings.express_share:
        kept = int(settings.express_share * pool_tokens)
        reason = (
            f"{settings.express_share:g} of {pool_tokens:,} tokens is {kept:,}: less than one short of "
            f"{short_tokens:,} and its answer"
        )
        yield Advice(variable("express_share"), f"{share:g}", reason)


def _queue_seconds(servers: Sequence[Answers], settings: Settings, limits: Limits) -> Iterator[Advice]:
    slowest = 0.0
    reason = ""
    for server in servers:
        if server.discovery is None or server.prefill_rate is None:
            continue
        tokens = max(largest_prompt(facts, limits) for facts in server.discovery.info.ranks)
        seconds = tokens / server.prefill_rate
        if seconds > slowest:
            slowest = seconds
            reason = (
                f"the largest prompt ({tokens:,}) is prefilled in {seconds:.0f} s at "
                f"{server.prefill_rate:,.0f} tokens/s, the mean so far; behind another it waits longer"
            )
    wanted = ceil((settings.max_bypass_seconds + 2 * slowest) / 10) * 10
    if slowest and settings.max_queue_seconds < wanted <= settings.max_queue_seconds_limit:
        yield Advice(variable("max_queue_seconds"), str(wanted), reason)


def _polling(servers: Sequence[Answers], found: Sequence[Discovery], settings: Settings) -> Iterator[Advice]:
    sources = {discovery.loads.path for discovery in found if discovery.loads is not None}
    if METRICS_PATH in sources and settings.poll_seconds < METRICS_POLL_SECONDS:
        reason = "reading /metrics costs the server tens of milliseconds, and it is renewed rarely"
        yield Advice(variable("poll_seconds"), f"{METRICS_POLL_SECONDS:g}", reason)
    elif len(servers) / settings.poll_seconds > MOST_POLLS_PER_SECOND:
        seconds = ceil(20 * len(servers) / MOST_POLLS_PER_SECOND) / 20
        reason = f"{len(servers)} servers are {len(servers) / settings.poll_seconds:.0f} polls a second"
        yield Advice(variable("poll_seconds"), f"{seconds:g}", reason)


def _mode(found: Sequence[Discovery], settings: Settings) -> Iterator[Advice]:
    pairs = any(discovery.info.disaggregation_mode in DISAGGREGATED for discovery in found)
    if pairs and settings.mode == "enforce":
        reason = "prefill and decode have pools of their own there, which are not modelled"
        yield Advice(variable("mode"), "shadow", reason)


def _tokenizer(
    servers: Sequence[Answers], found: Sequence[Discovery], settings: Settings
) -> Iterator[Advice]:
    paths = {discovery.info.tokenizer_path for discovery in found}
    path = paths.pop() if len(paths) == 1 else None
    if settings.tokenizer_path is None and path and (Path(path) / "tokenizer.json").is_file():
        reason = "the server's own tokenizer directory is on this machine: counts are exact with it"
        yield Advice(variable("tokenizer_path"), path, reason)
    templates = {server.traits.chat_template for server in servers if server.discovery is not None}
    template = templates.pop() if len(templates) == 1 else None
    if settings.tokenizer_path is not None and settings.chat_template is None and template:
        reason = "the server renders chats with that, not with the directory's own"
        yield Advice(variable("chat_template"), template, reason)
