"""What else a server says of itself that only `doctor` reads: its switches, and what turns them.

Beside `sglang`, the only module that names SGLang's fields. Names are those of 0.5.23.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Switches, as they are written on SGLang's command line.
METRICS_FLAG = "--enable-metrics"
CACHE_REPORT_FLAG = "--enable-cache-report"
NO_RADIX_CACHE_FLAG = "--disable-radix-cache"
API_KEY_FLAG = "--api-key"
ADMIN_KEY_FLAG = "--admin-api-key"
CONTEXT_FLAG = "--context-length"
MEMORY_FLAG = "--mem-fraction-static"
POLICY_FLAG = "--schedule-policy"
PRIORITY_FLAG = "--enable-priority-scheduling"
QUEUE_FLAG = "--max-queued-requests"
TEMPLATE_FLAG = "--chat-template"

# An id that no request has: aborting it does nothing, and tells whether our key may abort. SGLang
# matches ids by prefix, so it must not be the beginning of one.
NOBODYS_RID = "0" * 64

_OLDEST_TRIED = (0, 5, 17)


@dataclass(frozen=True, slots=True)
class Traits:
    """Switches and pools. None where the server does not say."""

    priority_scheduling: bool = False
    chat_template: str | None = None
    api_key: bool | None = None
    admin_key: bool | None = None
    window_pool_tokens: int | None = None  # of sliding-window layers, beside the full pool
    state_pool: bool = False  # of state-space layers: slots, not tokens
    lora: bool = False
    diffusion: bool = False
    skips_tokenizer: bool = False


def parse_traits(info: Mapping[str, Any]) -> Traits:
    """From the JSON of /server_info; may be empty."""
    template = info.get("chat_template")
    return Traits(
        priority_scheduling=bool(info.get("enable_priority_scheduling")),
        chat_template=template if isinstance(template, str) else None,
        api_key=bool(info["api_key"]) if "api_key" in info else None,
        admin_key=bool(info["admin_api_key"]) if "admin_api_key" in info else None,
        window_pool_tokens=_window_pool(info),
        state_pool=bool(info.get("uses_mamba_radix_cache") or info.get("max_mamba_cache_size")),
        lora=bool(info.get("enable_lora") or info.get("lora_paths")),
        diffusion=bool(info.get("dllm_algorithm")),
        skips_tokenizer=bool(info.get("skip_tokenizer_init")),
    )


def _window_pool(info: Mapping[str, Any]) -> int | None:
    states = info.get("internal_states")
    for state in states if isinstance(states, list) else ():
        usage = state.get("memory_usage") if isinstance(state, dict) else None
        tokens = usage.get("token_capacity_swa") if isinstance(usage, dict) else None
        if isinstance(tokens, int) and not isinstance(tokens, bool):
            return tokens
    return None


def older_than_tried(version: str) -> bool:
    """Is that SGLang older than the oldest the proxy was tried with?"""
    numbers = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            return False
        numbers.append(int(digits))
    return len(numbers) == 3 and tuple(numbers) < _OLDEST_TRIED
