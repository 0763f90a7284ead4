"""What one server's answers mean: what is wrong there, what is missing, and the flag that turns it on."""

from collections.abc import Iterator

from proxy.doctor.asking import Answers
from proxy.doctor.finding import Finding, note, trouble, warning
from proxy.settings import Settings
from proxy.upstream.sglang import (
    GET_LOAD_PATH,
    LOADS_PATH,
    METRICS_PATH,
    TOKENIZE_PATH,
    ServerInfo,
)
from proxy.upstream.traits import (
    ADMIN_KEY_FLAG,
    API_KEY_FLAG,
    CACHE_REPORT_FLAG,
    METRICS_FLAG,
    NO_RADIX_CACHE_FLAG,
    PRIORITY_FLAG,
    QUEUE_FLAG,
    older_than_tried,
)

DISAGGREGATED = ("prefill", "decode")
_WORKS = 200
_REFUSED = (401, 403)
_ESTIMATE_OFF = 0.25  # mean error of uncalibrated counts worth a word


def findings(answers: Answers, settings: Settings) -> list[Finding]:
    """Of one server, the serious ones first."""
    found = list(_reaching(answers, settings))
    if answers.discovery is not None:
        info = answers.discovery.info
        found += _keys(answers, settings)
        found += _pool(answers, info)
        found += _load(answers, info)
        found += _switches(answers, info)
        found += _kind(answers, info, settings)
        found += _counting(answers, info, settings)
    order = {"trouble": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _reaching(answers: Answers, settings: Settings) -> Iterator[Finding]:
    if answers.unreachable:
        yield trouble(f"cannot be reached: {answers.unreachable}", "is it running, and is the address right?")
    elif answers.key_refused:
        given = "the key we show" if answers.spec.api_key else "a request without a key"
        yield trouble(f"refuses {given} (401)", f"PROXY_BACKEND_API_KEY: what its {API_KEY_FLAG} says")
    elif answers.refusal:
        yield trouble(f"cannot take work: {answers.refusal}")


def _keys(answers: Answers, settings: Settings) -> Iterator[Finding]:
    if answers.abort_status in _REFUSED:
        shown = "the key we show" if answers.spec.admin_key or answers.spec.api_key else "us without a key"
        yield trouble(
            f"does not let {shown} abort requests (401): what clients leave behind runs to its end",
            f"PROXY_BACKEND_ADMIN_KEY: what its {ADMIN_KEY_FLAG} says",
        )
    elif answers.abort_status != _WORKS:
        yield warning(f"aborting a request does not work ({answers.abort_status})")
    if answers.spec.api_key and answers.traits.api_key is False:
        yield note("asks for no key, though we show one", f"start it with {API_KEY_FLAG}")


def _pool(answers: Answers, info: ServerInfo) -> Iterator[Finding]:
    ours, theirs = answers.spec.pool_tokens, answers.reported_pool_tokens
    if ours and theirs and ours > theirs:
        yield trouble(
            f"its pool is {theirs:,} tokens, and we are told {ours:,}: it will queue and retract",
            "unset PROXY_POOL_TOKENS (or pool_tokens), or lower it",
        )
    elif ours and theirs and ours < theirs:
        yield note(f"of its {theirs:,} tokens the proxy uses {ours:,}, as PROXY_POOL_TOKENS says")
    facts = info.ranks[0]
    if facts.context_tokens and facts.context_tokens < facts.pool_tokens // 2:
        fits = facts.pool_tokens // facts.context_tokens
        yield note(f"{fits} prompts of its whole context fit its pool: no prompt can fill it alone")


def _load(answers: Answers, info: ServerInfo) -> Iterator[Finding]:
    source = answers.discovery.loads.path if answers.discovery and answers.discovery.loads else ""
    if not source:
        yield warning(
            "tells its load nowhere: the ledger is all there is, traffic around the proxy is not seen",
            f"{METRICS_FLAG}, or a newer SGLang",
        )
    elif source == GET_LOAD_PATH:
        yield note("an older SGLang: its load does not show a prefill under way", "0.5.23 has more")
    elif source == METRICS_PATH:
        yield warning(f"tells its load only in /metrics, up to 30 s late (no {LOADS_PATH.partition('?')[0]})")
    if not info.metrics_enabled:
        yield warning("retractions and the engine's own reserve ratio are not seen", METRICS_FLAG)
    retractions = sum(rank.retractions_total or 0 for rank in answers.metrics)
    if retractions:
        yield note(
            f"has retracted running requests {retractions:,} times since it started",
            "if that number grows with the proxy in front, raise PROXY_POOL_HEADROOM",
        )


def _switches(answers: Answers, info: ServerInfo) -> Iterator[Finding]:
    facts = info.ranks[0]
    if not facts.radix_cache:
        yield warning(
            "keeps no prefixes: conversations are prefilled anew for every turn, and nothing is sliced",
            f"start it without {NO_RADIX_CACHE_FLAG}",
        )
    elif not facts.cache_report:
        yield warning("does not say how much of a prompt was cached", CACHE_REPORT_FLAG)
    if answers.traits.priority_scheduling:
        yield note(
            "orders by priority: not needed, clients' priorities are not passed on", f"drop {PRIORITY_FLAG}"
        )
    if info.max_queued_requests is not None:
        yield note(
            f"turns away when {info.max_queued_requests} wait: the proxy takes that as back-pressure",
            f"drop {QUEUE_FLAG}",
        )
    if facts.vocab_tokens is None and info.is_generation:
        yield warning(
            "its vocabulary's size is not known: prompts of ids beyond it are not refused, and one of them "
            "ends the server's process",
        )
    if older_than_tried(info.version):
        yield warning(f"SGLang {info.version} is older than any the proxy was tried with", "0.5.17 or newer")


def _kind(answers: Answers, info: ServerInfo, settings: Settings) -> Iterator[Finding]:
    traits = answers.traits
    if info.disaggregation_mode in DISAGGREGATED:
        remedy = "" if settings.mode == "shadow" else "PROXY_MODE=shadow: decide and record, hold nobody"
        yield warning(
            f"is the {info.disaggregation_mode} half of a disaggregated pair: its two pools are not modelled",
            remedy,
        )
    if traits.window_pool_tokens is not None:
        yield warning(
            f"has a pool of {traits.window_pool_tokens:,} tokens for sliding-window layers as well: "
            "it may fill first, and is watched, not planned for",
            METRICS_FLAG if not info.metrics_enabled else "",
        )
    if traits.state_pool:
        yield warning(
            "keeps state slots (Mamba) as well: they may run out first, and are watched, not planned for",
            METRICS_FLAG if not info.metrics_enabled else "",
        )
    if traits.diffusion:
        yield note("a diffusion model: its prompts are not sliced")
    if not info.is_generation:
        yield note("serves embeddings: nothing is generated, and prompts are not sliced")
    if traits.lora:
        yield note("serves LoRA adapters: what they take of the pool is seen as foreign traffic")


def _counting(answers: Answers, info: ServerInfo, settings: Settings) -> Iterator[Finding]:
    check = answers.check
    if check is None:
        status = answers.statuses.get(TOKENIZE_PATH)
        if status is not None:
            yield warning(f"how it counts tokens could not be checked: /v1/tokenize {status}")
        return
    if check.wrong:
        yield trouble(f"counting: {check.verdict}", "PROXY_TOKENIZER_PATH, PROXY_CHAT_TEMPLATE")
    elif settings.tokenizer_path is not None and not any(probe.exact for probe in check.probes):
        yield trouble(f"counting: {check.verdict}", "PROXY_TOKENIZER_PATH: another directory")
    elif not any(probe.server is not None for probe in check.probes):
        yield warning(f"counting: {check.verdict}")
    elif settings.tokenizer_path is None and check.error_share > _ESTIMATE_OFF:
        yield note(
            f"until answers have been seen, counts are {check.error_share:.0%} off on average",
            "PROXY_TOKENIZER_PATH: the model's tokenizer directory, for exact ones",
        )
