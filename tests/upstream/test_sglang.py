"""The parsers of SGLang's answers, on the shapes that real servers send."""

import pytest

from proxy.upstream.sglang import (
    RankLoad,
    parse_get_load,
    parse_loads,
    parse_metrics,
    parse_server_info,
    parse_vocabulary,
    route_of,
)

INFO = {
    "max_total_num_tokens": 186_624,
    "max_req_input_len": 186_618,
    "context_length": 1_048_576,
    "max_running_requests": 64,
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 16_384,
    "page_size": 1,
    "schedule_conservativeness": 1.0,
    "disable_radix_cache": False,
    "enable_cache_report": True,
    "enable_metrics": True,
    "served_model_name": "tiny",
    "dp_size": 1,
    "version": "0.5.23",
    "internal_states": [
        {"effective_max_running_requests_per_dp": 60, "memory_usage": {"token_capacity": 186_624}}
    ],
}


def loads(**changed: object) -> dict[str, object]:
    load = {
        "timestamp": 1_796_123_697.5,
        "dp_rank": 0,
        "num_running_reqs": 2,
        "num_waiting_reqs": 1,
        "num_waiting_uncached_tokens": 137_712,
        "num_used_tokens": 16_384,
        "num_total_tokens": 16_384,
        "max_total_num_tokens": 186_624,
        "token_usage": 0.0878,
        "total_prefill_uncached_tokens": 264_111,
        "total_prefill_busy_us": 1_243_701,
    }
    return {"timestamp": "2026-12-01T11:14:58+00:00", "loads": [{**load, **changed}]}


def test_facts_come_from_server_info() -> None:
    info = parse_server_info(INFO, vocab_tokens=4096)
    (facts,) = info.ranks
    assert (facts.pool_tokens, facts.max_request_tokens, facts.context_tokens) == (
        186_624,
        186_618,
        1_048_576,
    )
    assert (facts.max_running_requests, facts.chunk_tokens, facts.vocab_tokens) == (60, 4096, 4096)
    assert (facts.cache_report, facts.radix_cache, facts.models) == (True, True, ("tiny",))
    assert (info.version, info.metrics_enabled, info.stream_interval_tokens) == ("0.5.23", True, 1)


def test_the_operators_pool_overrides_the_servers() -> None:
    assert parse_server_info(INFO, pool_tokens=1000).ranks[0].pool_tokens == 1000


def test_a_server_that_says_nothing_has_no_pool_and_safe_defaults() -> None:
    (facts,) = parse_server_info({}).ranks
    assert facts.pool_tokens == 0
    assert (facts.chunk_tokens, facts.page_tokens, facts.max_running_requests) == (8192, 1, None)


def test_values_of_wrong_types_are_ignored() -> None:
    broken = {
        "max_total_num_tokens": "many",
        "page_size": None,
        "dp_size": [],
        "internal_states": [7],
        "version": 5,
    }
    (facts,) = parse_server_info(broken, models={"data": ["x", {"id": "m"}]}).ranks
    assert (facts.pool_tokens, facts.page_tokens, facts.models, facts.version) == (0, 1, ("m",), "5")


def test_the_context_comes_from_the_models_where_the_arguments_leave_it_open() -> None:
    models = {"data": [{"id": "tiny", "max_model_len": 32_768}]}
    assert (
        parse_server_info({**INFO, "context_length": None}, models=models).ranks[0].context_tokens == 32_768
    )


def test_without_chunking_a_step_takes_the_prefill_budget() -> None:
    assert parse_server_info({**INFO, "chunked_prefill_size": -1}).ranks[0].chunk_tokens == 16_384


def test_each_dp_rank_has_its_own_pool_and_slots() -> None:
    states = [{"memory_usage": {"token_capacity": 1000}}, {"memory_usage": {"token_capacity": 900}}]
    ranks = parse_server_info({**INFO, "dp_size": 2, "internal_states": states}).ranks
    assert [facts.pool_tokens for facts in ranks] == [1000, 900]
    assert [facts.max_running_requests for facts in ranks] == [32, 32]


def test_the_vocabulary_is_read_from_the_engines_own_complaint() -> None:
    assert parse_vocabulary(b'{"error":{"message":"logit_bias must has keys in [0, 4095], got -1."}}') == 4096
    assert parse_vocabulary(b'{"error":{"message":"something else"}}') is None


def test_loads_are_aged_by_the_servers_own_clock() -> None:
    (load,) = parse_loads(loads())
    assert load == RankLoad(
        rank=0,
        age_seconds=0.5,
        used_tokens=16_384,
        running=2,
        waiting=1,
        pool_tokens=186_624,
        waiting_uncached_tokens=137_712,
        prefill_tokens_total=264_111,
        prefill_busy_seconds_total=1.243701,
    )


def test_the_fuller_of_several_pools_counts() -> None:
    (load,) = parse_loads(loads(token_usage=0.5))
    assert load.used_tokens == 93_312


@pytest.mark.parametrize(
    "document", [{}, {"loads": None}, {"loads": [5]}, {"timestamp": "never", "loads": []}]
)
def test_loads_that_make_no_sense_are_none(document: dict[str, object]) -> None:
    assert parse_loads(document) == []


def test_a_load_without_its_newer_fields_is_still_a_load() -> None:
    (load,) = parse_loads({"timestamp": "bad", "loads": [{"num_used_tokens": 5}]})
    assert (load.used_tokens, load.age_seconds, load.waiting_uncached_tokens) == (5, 0.0, None)


def test_the_older_get_load_counts_waiting_work_in() -> None:
    document = [
        {"dp_rank": 1, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 900, "num_pending_tokens": 300}
    ]
    (load,) = parse_get_load(document)
    assert (load.rank, load.running, load.waiting, load.used_tokens) == (1, 3, 2, 600)
    assert parse_get_load({"detail": "Not Found"}) == []


METRICS = b"""
# HELP sglang:num_used_tokens The number of used tokens.
# TYPE sglang:num_used_tokens gauge
sglang:max_total_num_tokens{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 186624.0
sglang:num_used_tokens{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 4096.0
sglang:num_used_tokens{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="1"} 9999.0
sglang:num_running_reqs{model_name="tiny",pp_rank="0",priority="",tp_rank="0"} 3.0
sglang:num_running_reqs{model_name="tiny",pp_rank="0",priority="5",tp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="tiny",pp_rank="0",tp_rank="0"} 1.0
sglang:new_token_ratio{model_name="tiny",pp_rank="0",tp_rank="0"} 0.7
sglang:num_retracted_requests_total{model_name="tiny",pp_rank="0",tp_rank="0"} 4.0
sglang:mamba_usage{model_name="tiny",pp_rank="0",tp_rank="0"} 0.0
"""


def test_metrics_are_read_once_per_rank_and_not_summed() -> None:
    (load,) = parse_metrics(METRICS)
    assert (load.pool_tokens, load.used_tokens, load.running, load.waiting) == (186_624, 4096, 3, 1)
    assert (load.new_token_ratio, load.retractions_total) == (0.7, 4)


def test_metrics_of_a_hybrid_model_take_the_fullest_pool() -> None:
    (load,) = parse_metrics(METRICS.replace(b'tp_rank="0"} 0.0', b'tp_rank="0"} 0.5'))
    assert load.used_tokens == 93_312


def test_no_retraction_yet_reads_as_zero() -> None:
    (load,) = parse_metrics(b'sglang:num_running_reqs{tp_rank="0"} 0.0\n')
    assert load.retractions_total == 0
    assert parse_metrics(b"python_gc_objects 5\n") == []


def test_routes_are_found_with_and_without_a_query() -> None:
    assert route_of("/v1/messages?beta=true") is route_of("/v1/messages")
    assert route_of("/v1/models") is None
