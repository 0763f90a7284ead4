"""What the simulated server says of itself and of its load."""

import time
from datetime import UTC, datetime
from typing import Any

from proxy.simulator.jobs import EngineConfig, LoadSnapshot

VERSION = "0.5.23+simulator"


def server_info(config: EngineConfig, model: str, *, cache_report: bool) -> dict[str, Any]:
    """The fields of `/server_info` that somebody reads."""
    return {
        "model_path": model,
        "tokenizer_path": model,
        "served_model_name": model,
        "context_length": config.context_tokens,
        "max_total_num_tokens": config.pool_tokens,
        "max_total_tokens": config.pool_tokens,
        "max_req_input_len": config.max_request_tokens,
        "max_running_requests": config.max_running_requests,
        "max_queued_requests": config.max_queued_requests,
        "chunked_prefill_size": config.chunk_tokens,
        "max_prefill_tokens": config.max_prefill_tokens,
        "page_size": 1,
        "schedule_policy": config.policy.value,
        "schedule_conservativeness": config.conservativeness,
        "disable_radix_cache": not config.radix_cache,
        "enable_cache_report": cache_report,
        "enable_metrics": True,
        "enable_priority_scheduling": False,
        "stream_interval": 1,
        "stream_response_default_include_usage": False,
        "is_embedding": False,
        "disaggregation_mode": "null",
        "dp_size": 1,
        "tp_size": 1,
        "internal_states": [{"effective_max_running_requests_per_dp": config.max_running_requests}],
        "version": VERSION,
    }


def model_info(model: str) -> dict[str, Any]:
    """`/get_model_info`."""
    return {
        "model_path": model,
        "served_model_name": model,
        "tokenizer_path": model,
        "is_generation": True,
        "weight_version": "default",
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "simulated",
        "architectures": ["SimulatedForCausalLM"],
    }


def model_card(config: EngineConfig, model: str) -> dict[str, Any]:
    """One entry of `/v1/models`: `max_model_len` is the context, not the pool."""
    return {
        "id": model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": model,
        "parent": None,
        "max_model_len": config.context_tokens,
    }


def loads(config: EngineConfig, load: LoadSnapshot, age_seconds: float, *, core: bool) -> dict[str, Any]:
    """`/v1/loads`. `core`: without the sections that only `include=all` shows."""
    now = time.time()
    entry: dict[str, Any] = {
        "timestamp": now - age_seconds,
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_uncached_tokens,
        "num_used_tokens": load.used_tokens,
        "num_total_tokens": load.total_tokens,
        "num_active_tokens": load.total_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": config.pool_tokens,
        "max_running_requests": config.max_running_requests,
        "token_usage": round(load.used_tokens / config.pool_tokens, 4),
        "gen_throughput": round(load.decode_tokens_per_second, 2),
        "cache_hit_rate": round(load.cache_hit_rate, 4),
        "utilization": 0.0,
        "total_prefill_uncached_tokens": load.prefill_tokens_total,
        "total_prefill_busy_us": round(load.prefill_busy_seconds_total * 1e6),
    }
    if not core:
        entry["memory"] = {"token_capacity": config.pool_tokens}
        entry["queues"] = {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0}
    stamp = datetime.fromtimestamp(now, UTC).isoformat()
    return {"timestamp": stamp, "version": VERSION, "num_accelerators": 1, "loads": [entry]}


def metrics(config: EngineConfig, load: LoadSnapshot, model: str) -> str:
    """`/metrics`: the gauges that say what `/v1/loads` does not."""
    label = f'{{engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"}}'
    gauges = {
        "max_total_num_tokens": config.pool_tokens,
        "page_size": 1,
        "context_len": config.context_tokens,
        "num_running_reqs": load.running,
        "num_queue_reqs": load.waiting,
        "num_used_tokens": load.used_tokens,
        "kv_available_tokens": load.available_tokens,
        "kv_evictable_tokens": load.evictable_tokens,
        "token_usage": load.used_tokens / config.pool_tokens,
        "new_token_ratio": load.new_token_ratio,
        "gen_throughput": load.decode_tokens_per_second,
        "cache_hit_rate": load.cache_hit_rate,
    }
    lines = []
    for name, value in gauges.items():
        lines += [f"# TYPE sglang:{name} gauge", f"sglang:{name}{label} {float(value)}"]
    lines.append("# TYPE sglang:num_retracted_requests_total counter")
    lines.append(f"sglang:num_retracted_requests_total{label} {float(load.retractions_total)}")
    return "\n".join(lines) + "\n"
