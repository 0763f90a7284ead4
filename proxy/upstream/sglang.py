"""Every wire fact of SGLang the proxy relies on: paths, fields, quirks, and pure parsers of its answers.

Checked against 0.5.23 (and 0.5.17 where noted). Nothing here does I/O, and no other module but `traits`
(what only `doctor` reads) names an SGLang path or field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import orjson

from proxy.admission.types import PoolFacts

# --- paths --------------------------------------------------------------------------------------

READY_PATH = "/ready"  # a flag, milliseconds; /health generates a token and takes a second
SERVER_INFO_PATHS = ("/server_info", "/get_server_info")  # the second before 0.5.x renamed it
MODEL_INFO_PATHS = ("/model_info", "/get_model_info")
MODELS_PATH = "/v1/models"
LOADS_PATH = "/v1/loads?include=core"  # unknown sections answer 500, so ask for the oldest one only
GET_LOAD_PATH = "/get_load"  # 0.5.17; gone in 0.5.23
METRICS_PATH = "/metrics"
ABORT_PATH = "/abort_request"
GENERATE_PATH = "/generate"
RESPONSES_PATH = "/v1/responses"
TOKENIZE_PATH = "/v1/tokenize"

# The server closes a connection that was idle for 5 s: never reuse one that is nearly as old.
KEEPALIVE_SECONDS = 3.0

# Read once at discovery: the engine's check of `logit_bias` runs before scheduling and names
# the vocabulary's size, which no endpoint reports.
VOCABULARY_PROBE = b'{"input_ids":[0],"sampling_params":{"max_new_tokens":0,"logit_bias":{"-1":0}}}'
_VOCABULARY_ERROR = re.compile(rb"keys in \[0, (\d+)\]")


# --- inference routes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """How one inference path takes our request id and how its stream looks.

    `rid_field` None: the id cannot be set in the body, so abort means closing the connection.
    `first_mark`: bytes of the first event that means a token (None: the first event does).
    `lead_events`, `end_events`: events of a stream that carry no token, before and after those that do.
    """

    rid_field: str | None
    rid_prefix: str = ""
    ids_field: str | None = None  # takes the prompt's ids beside its text, and then tokenizes nothing
    usage_option: bool = False  # knows `stream_options.include_usage`
    priority_null: bytes = b"null"  # what a client's own priority is replaced with
    first_mark: bytes | None = None
    end_mark: bytes = b"data: [DONE]\n\n"
    lead_events: int = 0
    end_events: int = 1
    usage_at_start: bool = False  # the prompt's tokens come with the first event, not the last
    greets: bool = False  # its first events come before the engine has seen the request


ROUTES: Mapping[str, Route] = {
    "/v1/chat/completions": Route(
        "rid", ids_field="input_ids", usage_option=True, lead_events=1, end_events=2
    ),
    "/v1/completions": Route("rid", usage_option=True),
    "/generate": Route("rid"),
    "/v1/embeddings": Route("rid"),
    "/v1/score": Route(None),
    "/v1/rerank": Route(None),
    "/v1/classify": Route("rid"),
    RESPONSES_PATH: Route(
        "request_id",
        rid_prefix="resp_",
        priority_null=b"0",
        first_mark=b".delta",
        greets=True,
        end_mark=b"",  # its last event is as large as the whole answer: wait for the end of the body
        lead_events=4,
        end_events=4,
    ),
    "/v1/messages": Route(
        None,
        first_mark=b"content_block_delta",
        end_mark=b'"message_stop"}\n\n',
        lead_events=2,
        end_events=3,
        usage_at_start=True,
    ),
}


def route_of(path: str) -> Route | None:
    """The inference route of a request target (query allowed), None for anything else."""
    return ROUTES.get(path.partition("?")[0])


# --- body fields that steer the engine ----------------------------------------------------------


class Steer(Enum):
    """What happens to a field of the client's body that steers the engine."""

    REPLACE = "replace"  # the proxy sets it itself, last, so that ours counts
    NULL = "null"  # overridden with the field's neutral value
    REFUSE = "refuse"  # 400: it cannot be honoured here, and dropping it would change the answer


STEERING: Mapping[str, Steer] = {
    "rid": Steer.REPLACE,
    "request_id": Steer.REPLACE,
    "priority": Steer.NULL,
    "routed_dp_rank": Steer.NULL,
    "data_parallel_rank": Steer.NULL,
    "disagg_prefill_dp_rank": Steer.NULL,
    "bootstrap_host": Steer.NULL,
    "bootstrap_port": Steer.NULL,
    "bootstrap_room": Steer.NULL,
    "bootstrap_pair_key": Steer.NULL,
    "decode_tp_size": Steer.NULL,
    "http_worker_ipc": Steer.NULL,
    "routing_key": Steer.NULL,
    "conversation_id": Steer.NULL,
    "session_id": Steer.NULL,  # a server with session caches pins the prompt under it, in nobody's ledger
    "kv_hints": Steer.NULL,  # moves and keeps cached prefixes
    "lora_id": Steer.NULL,  # `lora_path` is the client's name for an adapter
    "mm_hashes": Steer.NULL,  # the keys of pictures in the caches: another's picture under one's own
    "mm_content_hashes": Steer.NULL,
    "need_wait_for_mm_inputs": Steer.NULL,
    "num_items_assigned": Steer.NULL,
    "encoder_urls": Steer.NULL,  # the server would connect there
    "external_trace_header": Steer.NULL,  # the header `traceparent` is the one way
    "received_time": Steer.NULL,
    "session_params": Steer.REFUSE,  # the history is at the server: the body alone counts wrong
    "custom_logit_processor": Steer.REFUSE,  # runs the client's code inside the engine
    "return_hidden_states": Steer.REFUSE,
    "input_embeds": Steer.REFUSE,  # no tokens to count
    "positional_embed_overrides": Steer.REFUSE,  # other contents under the same ids
    "multi_item_delimiter_indices": Steer.REFUSE,  # the server's own notes about a prompt:
    "token_indices_to_pool": Steer.REFUSE,  # wrong ones reach into the scheduler
    "background": Steer.REFUSE,  # the HTTP answer ends while the work goes on
}

# Older versions know only the second; where both are known the first wins.
DP_RANK_FIELDS = ("routed_dp_rank", "data_parallel_rank")
PRIORITY_FIELD = "priority"
USAGE_FIELD = "stream_options"
USAGE_VALUE = b'{"include_usage":true}'

# Taken only by servers started with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1, ignored by others.
RID_HEADER = b"x-override-rid"


# /v1/messages names its errors instead of numbering them.
_STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}


def error_status(error: Mapping[str, Any]) -> int:
    """The HTTP status that an error object inside a 200 answer stands for; 500 if it does not say."""
    for key in ("code", "status_code"):
        code = error.get(key)
        if isinstance(code, int) and 400 <= code <= 599:
            return code
    return _STATUS_OF_TYPE.get(str(error.get("type", "")), 500)


# --- what a server says of itself ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server as discovered: the facts of each DP rank, and what decides how it is talked to."""

    ranks: tuple[PoolFacts, ...]
    version: str = ""
    models: tuple[str, ...] = ()
    tokenizer_path: str | None = None
    schedule_policy: str | None = None
    disaggregation_mode: str | None = None
    max_queued_requests: int | None = None
    is_generation: bool = True
    metrics_enabled: bool = False
    usage_by_default: bool = False  # streams end with a usage chunk without being asked
    stream_interval_tokens: int = 1  # tokens per streamed event


def parse_server_info(
    info: Mapping[str, Any],
    *,
    models: Mapping[str, Any] | None = None,
    model_info: Mapping[str, Any] | None = None,
    pool_tokens: int | None = None,
    vocab_tokens: int | None = None,
) -> ServerInfo:
    """From the JSON of /server_info, /v1/models and /model_info; any may be empty.

    `pool_tokens` is the operator's override, or what another endpoint reported. A rank whose
    pool stays unknown has `pool_tokens` 0.
    """
    cards = [card for card in _list(models or {}, "data") if isinstance(card, dict) and "id" in card]
    names = tuple(str(card["id"]) for card in cards) or _names(info.get("served_model_name"))
    context = _int(info, "context_length") or next((_int(card, "max_model_len") for card in cards), None)
    ranks = max(_int(info, "dp_size") or 1, 1)
    states = [state for state in _list(info, "internal_states") if isinstance(state, dict)]
    chunk = _int(info, "chunked_prefill_size") or 0
    max_running = _int(info, "max_running_requests")

    def facts(rank: int) -> PoolFacts:
        state: Mapping[str, Any] = states[rank] if rank < len(states) else {}
        capacity = _int(_dict(state, "memory_usage"), "token_capacity") if ranks > 1 else None
        return PoolFacts(
            pool_tokens=pool_tokens or capacity or _int(info, "max_total_num_tokens") or 0,
            max_request_tokens=_int(info, "max_req_input_len"),
            context_tokens=context,
            max_running_requests=_int(state, "effective_max_running_requests_per_dp")
            or (max_running // ranks if max_running else None),
            # -1: chunking is off, and the prefill budget is what one step can take
            chunk_tokens=chunk if chunk > 0 else _int(info, "max_prefill_tokens") or 8192,
            page_tokens=_int(info, "page_size") or 1,
            conservativeness=_float(info, "schedule_conservativeness") or 1.0,
            radix_cache=not info.get("disable_radix_cache", False),
            cache_report=bool(info.get("enable_cache_report", False)),
            models=names,
            vocab_tokens=vocab_tokens,
            version=str(info.get("version") or ""),
        )

    return ServerInfo(
        ranks=tuple(facts(rank) for rank in range(ranks)),
        version=str(info.get("version") or ""),
        models=names,
        tokenizer_path=_text(info, "tokenizer_path"),
        schedule_policy=_text(info, "schedule_policy"),
        disaggregation_mode=_text(info, "disaggregation_mode"),
        max_queued_requests=_int(info, "max_queued_requests"),
        is_generation=bool((model_info or {}).get("is_generation", not info.get("is_embedding", False))),
        metrics_enabled=bool(info.get("enable_metrics", False)),
        usage_by_default=bool(info.get("stream_response_default_include_usage", False)),
        stream_interval_tokens=max(_int(info, "stream_interval") or 1, 1),
    )


def parse_vocabulary(answer: bytes) -> int | None:
    """The vocabulary's size from the answer to VOCABULARY_PROBE, None when it does not say."""
    match = _VOCABULARY_ERROR.search(answer)
    return int(match[1]) + 1 if match else None


# --- load ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One rank's load as the server published it `age_seconds` before it answered."""

    rank: int
    age_seconds: float
    used_tokens: int
    running: int
    waiting: int
    pool_tokens: int | None = None
    waiting_uncached_tokens: int | None = None
    prefill_tokens_total: int | None = None
    prefill_busy_seconds_total: float | None = None
    new_token_ratio: float | None = None
    retractions_total: int | None = None


def parse_loads(document: Mapping[str, Any]) -> list[RankLoad]:
    """From /v1/loads. Ages compare the server's two clocks, so that skew to ours does not matter."""
    answered_at = _epoch(document.get("timestamp"))
    return [_rank_load(load, answered_at) for load in _list(document, "loads") if isinstance(load, dict)]


def _rank_load(load: Mapping[str, Any], answered_at: float | None) -> RankLoad:
    taken_at = _float(load, "timestamp")
    pool = _int(load, "max_total_num_tokens")
    # token_usage is the worst of the full, sliding-window and state pools of a hybrid model
    by_usage = round((_float(load, "token_usage") or 0.0) * pool) if pool else 0
    exact = _int(load, "num_used_tokens") or 0
    busy_us = _int(load, "total_prefill_busy_us")
    return RankLoad(
        rank=_int(load, "dp_rank") or 0,
        age_seconds=max(answered_at - taken_at, 0.0) if answered_at and taken_at else 0.0,
        # the share is rounded to four digits: it counts only where it says clearly more
        used_tokens=by_usage if pool and by_usage > exact + pool * 0.001 else exact,
        running=_int(load, "num_running_reqs") or 0,
        waiting=_int(load, "num_waiting_reqs") or 0,
        pool_tokens=pool,
        waiting_uncached_tokens=_int(load, "num_waiting_uncached_tokens"),
        prefill_tokens_total=_int(load, "total_prefill_uncached_tokens"),
        prefill_busy_seconds_total=None if busy_us is None else busy_us / 1e6,
    )


def parse_get_load(document: Any) -> list[RankLoad]:
    """From /get_load (before 0.5.23): `num_reqs` and `num_tokens` include what waits."""
    ranks = [load for load in document if isinstance(load, dict)] if isinstance(document, list) else []
    return [
        RankLoad(
            rank=_int(load, "dp_rank") or 0,
            age_seconds=0.0,
            used_tokens=max((_int(load, "num_tokens") or 0) - (_int(load, "num_pending_tokens") or 0), 0),
            running=max((_int(load, "num_reqs") or 0) - (_int(load, "num_waiting_reqs") or 0), 0),
            waiting=_int(load, "num_waiting_reqs") or 0,
        )
        for load in ranks
    ]


_METRIC = re.compile(
    rb"^sglang:(max_total_num_tokens|num_used_tokens|num_running_reqs|num_queue_reqs|new_token_ratio"
    rb"|num_retracted_requests_total|token_usage|swa_token_usage|mamba_usage)(?:\{([^}\n]*)\})? (\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


def parse_metrics(text: bytes) -> list[RankLoad]:
    """From /metrics: gauges of each DP rank, the first tensor and pipeline rank standing for all."""
    ranks: dict[int, dict[str, float]] = {}
    for name, labels, value in _METRIC.findall(text):
        found = dict(_LABEL.findall(labels))
        # with priority scheduling there is one series for each priority beside the total: don't sum
        if (
            found.get(b"priority")
            or found.get(b"tp_rank", b"0") != b"0"
            or found.get(b"pp_rank", b"0") != b"0"
        ):
            continue
        gauges = ranks.setdefault(int(found.get(b"dp_rank") or 0), {})
        gauges[name.decode()] = float(value)
    return [_metrics_load(rank, gauges) for rank, gauges in sorted(ranks.items())]


def _metrics_load(rank: int, gauges: Mapping[str, float]) -> RankLoad:
    pool = gauges.get("max_total_num_tokens", 0.0)
    worst = max(gauges.get(name, 0.0) for name in ("token_usage", "swa_token_usage", "mamba_usage"))
    used = gauges.get("num_used_tokens", 0.0)
    return RankLoad(
        rank=rank,
        age_seconds=0.0,
        used_tokens=round(worst * pool if worst * pool > used + pool * 0.01 else used),
        running=round(gauges.get("num_running_reqs", 0.0)),
        waiting=round(gauges.get("num_queue_reqs", 0.0)),
        pool_tokens=round(pool) or None,
        new_token_ratio=gauges.get("new_token_ratio"),
        retractions_total=round(gauges.get("num_retracted_requests_total", 0.0)),  # absent until the first
    )


# --- reading JSON that may be anything ----------------------------------------------------------


def load_json(content: bytes) -> Any:
    """The document, or None where it is not JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _int(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _float(fields: Mapping[str, Any], key: str) -> float | None:
    value = fields.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    return value if isinstance(value, list) else []


def _dict(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def _names(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else ()


def _epoch(value: object) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except ValueError:
        return None
