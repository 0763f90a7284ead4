import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.admission.types import Lane, Reason
from proxy.telemetry.catalogue import CATALOGUE
from proxy.telemetry.metrics import NO_LANE, Metrics, Outcome, Phase
from proxy.telemetry.snapshot import PoolSnapshot, QueueSnapshot, StateSnapshot

# The contract: dashboards and alerts of operators rely on these names and labels.
CONTRACT = {
    "pool_tokens": {"backend"},
    "committed_tokens": {"backend", "lane"},
    "held_tokens": {"backend"},
    "held_contexts": {"backend"},
    "server_used_tokens": {"backend"},
    "foreign_tokens": {"backend"},
    "prefill_backlog_tokens": {"backend"},
    "resident_contexts": {"backend"},
    "resident_context_tokens": {"backend"},
    "queue_requests": {"model", "lane"},
    "queue_tokens": {"model", "lane"},
    "queue_head_age_seconds": {"model", "lane"},
    "gate_closed": {"backend"},
    "load_age_seconds": {"backend"},
    "prefill_rate_tokens_per_second": {"backend"},
    "running_slots": {"backend"},
    "backend_up": {"backend"},
    "requests_total": {"lane", "outcome"},
    "refusals_total": {"reason"},
    "backfills_total": {"rule"},
    "prefill_slices_total": set(),
    "prefill_slice_misses_total": set(),
    "disconnects_total": {"phase"},
    "aborts_total": set(),
    "retractions_total": {"backend"},
    "prompt_tokens_total": {"lane"},
    "completion_tokens_total": {"lane"},
    "queue_wait_seconds": {"lane"},
    "ttft_seconds": {"lane"},
    "wait_prediction_error_seconds": {"direction"},
    "token_count_ratio": set(),
    "reserved_minus_actual_tokens": {"direction"},
}

POOL = PoolSnapshot(
    backend="a",
    up=True,
    pool_tokens=1000,
    ceiling_tokens=970,
    committed_tokens={Lane.SHORT: 10, Lane.LONG: 20},
    held_tokens=5,
    held_contexts=1,
    server_used_tokens=40,
    foreign_tokens=7,
    prefill_backlog_tokens=8,
    resident_contexts=2,
    resident_context_tokens=9,
    gate_closed=True,
    load_age_seconds=0.25,
    prefill_rate_tokens_per_second=6850.0,
    running_slots=3,
    retractions=4,
)
QUEUE = QueueSnapshot(model="m", lane=Lane.LONG, requests=2, tokens=128_000, head_age_seconds=3.5)
PROBES = {"a": {"equal": 6, "different": 0, "estimated": 4, "unanswered": 0}}
STATE = StateSnapshot(pools=(POOL,), queues=(QUEUE,), open_requests=6, tokenizer_probes=PROBES)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: STATE)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get(("sglang_proxy_" + name, frozenset(labels.items())))


def touch_everything(metrics: Metrics) -> None:
    metrics.request_done(
        Lane.SHORT,
        Outcome.COMPLETED,
        wait_seconds=1,
        ttft_seconds=2,
        prompt_tokens=3,
        completion_tokens=4,
        tenant="t",
    )
    metrics.backfill("express")


def test_catalogue_keeps_the_names_and_labels_of_the_contract() -> None:
    ours = {spec.name.removeprefix("sglang_proxy_"): set(spec.labels) for spec in CATALOGUE}
    assert {name: ours.get(name) for name in CONTRACT} == CONTRACT


def test_everything_in_the_catalogue_is_exported_under_its_name_kind_and_labels(metrics: Metrics) -> None:
    touch_everything(metrics)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    for spec in CATALOGUE:
        family = families[spec.name.removesuffix("_total")]
        assert family.type == spec.kind
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == set(spec.labels), spec.name


def test_nothing_is_exported_beyond_the_catalogue(metrics: Metrics) -> None:
    touch_everything(metrics)
    known = {spec.name for spec in CATALOGUE}
    for name, _ in samples(metrics):
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert name in known or base in known or name.startswith("process_"), name


def test_pool_figures_come_from_the_snapshot_at_scrape_time() -> None:
    states = iter((StateSnapshot(), STATE))
    metrics = Metrics(lambda: next(states))
    assert value(metrics, "pool_tokens", backend="a") is None
    assert value(metrics, "pool_tokens", backend="a") == 1000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pool_budget_tokens", 970),
        ("held_tokens", 5),
        ("server_used_tokens", 40),
        ("foreign_tokens", 7),
        ("prefill_backlog_tokens", 8),
        ("gate_closed", 1),
        ("load_age_seconds", 0.25),
        ("prefill_rate_tokens_per_second", 6850),
        ("backend_up", 1),
        ("retractions_total", 4),
    ],
)
def test_a_pool_figure_is_shown(metrics: Metrics, name: str, expected: float) -> None:
    assert value(metrics, name, backend="a") == expected


def test_committed_tokens_show_every_lane(metrics: Metrics) -> None:
    shown = [
        value(metrics, "committed_tokens", backend="a", lane=lane) for lane in ("short", "long", "giant")
    ]
    assert shown == [10, 20, 0]


def test_dp_rank_is_a_label_only_where_there_are_several_ranks() -> None:
    pools = (
        PoolSnapshot(backend="a", pool_tokens=1),
        PoolSnapshot(backend="b", dp_rank=0, pool_tokens=2),
        PoolSnapshot(backend="b", dp_rank=1, pool_tokens=3),
    )
    metrics = Metrics(lambda: StateSnapshot(pools=pools))
    assert value(metrics, "pool_tokens", backend="a") == 1
    assert value(metrics, "pool_tokens", backend="b", dp_rank="1") == 3


def test_what_is_unknown_is_left_out_rather_than_zero() -> None:
    metrics = Metrics(lambda: StateSnapshot(pools=(PoolSnapshot(backend="a"),)))
    assert value(metrics, "load_age_seconds", backend="a") is None
    assert value(metrics, "server_used_tokens", backend="a") is None
    assert value(metrics, "backend_up", backend="a") == 0


def test_a_queue_that_emptied_reads_zero() -> None:
    states = iter((STATE, StateSnapshot()))
    metrics = Metrics(lambda: next(states))
    assert value(metrics, "queue_head_age_seconds", model="m", lane="long") == 3.5
    assert value(metrics, "queue_head_age_seconds", model="m", lane="long") == 0


def test_a_finished_request_counts_once_in_each_figure(metrics: Metrics) -> None:
    touch_everything(metrics)
    assert value(metrics, "requests_total", lane="short", outcome="completed") == 1
    assert value(metrics, "queue_wait_seconds_sum", lane="short") == 1
    assert value(metrics, "ttft_seconds_sum", lane="short") == 2
    assert value(metrics, "prompt_tokens_total", lane="short") == 3
    assert value(metrics, "completion_tokens_total", lane="short") == 4
    assert value(metrics, "tenant_tokens_total", tenant="t") == 7


def test_a_request_without_a_lane_or_times_touches_no_histogram(metrics: Metrics) -> None:
    metrics.request_done(None, Outcome.INVALID)
    metrics.request_done(Lane.LONG, Outcome.REFUSED)
    assert value(metrics, "requests_total", lane=NO_LANE, outcome="invalid") == 1
    assert value(metrics, "queue_wait_seconds_count", lane="long") == 0


def test_single_events_are_counted(metrics: Metrics) -> None:
    metrics.refused(Reason.QUEUE_FULL)
    metrics.disconnect(Phase.PREFILLING)
    metrics.abort()
    metrics.prefill_slice()
    metrics.prefill_slice_missed()
    metrics.decision_lines_dropped(3)
    assert value(metrics, "refusals_total", reason="queue_full") == 1
    assert value(metrics, "disconnects_total", phase="prefilling") == 1
    assert value(metrics, "aborts_total") == 1
    assert value(metrics, "prefill_slices_total") == 1
    assert value(metrics, "prefill_slice_misses_total") == 1
    assert value(metrics, "decision_log_dropped_lines_total") == 3


def test_errors_are_absolute_with_their_direction(metrics: Metrics) -> None:
    metrics.wait_prediction_error(-2)
    metrics.wait_prediction_error(3)
    metrics.reserved_minus_actual(100)
    metrics.reserved_minus_actual(-40)
    assert value(metrics, "wait_prediction_error_seconds_sum", direction="early") == 2
    assert value(metrics, "wait_prediction_error_seconds_sum", direction="late") == 3
    assert value(metrics, "reserved_minus_actual_tokens_sum", direction="over") == 100
    assert value(metrics, "reserved_minus_actual_tokens_sum", direction="under") == 40


def test_series_exist_at_zero_before_the_first_event(metrics: Metrics) -> None:
    assert value(metrics, "refusals_total", reason="deadline") == 0
    assert value(metrics, "requests_total", lane="giant", outcome="broken") == 0


def test_mode_version_and_promise_are_shown() -> None:
    metrics = Metrics(lambda: STATE, mode="shadow", max_queue_seconds=42)
    assert value(metrics, "max_queue_seconds") == 42
    assert any(
        name == "sglang_proxy_info" and ("mode", "shadow") in labels for name, labels in samples(metrics)
    )


def queues_of_many_models() -> Iterator[QueueSnapshot]:
    for number in range(1000):
        yield QueueSnapshot(model=f"model-{number}", lane=Lane.SHORT, requests=1, tokens=10)


def test_a_thousand_tenants_and_models_stay_a_bounded_number_of_series() -> None:
    state = StateSnapshot(
        pools=tuple(PoolSnapshot(backend=f"b{n}") for n in range(20)), queues=tuple(queues_of_many_models())
    )
    metrics = Metrics(lambda: state)
    for number in range(1000):
        metrics.request_done(Lane.SHORT, Outcome.COMPLETED, tenant=f"tenant-{number}", prompt_tokens=1)
    began = time.perf_counter()
    shown = samples(metrics)
    assert time.perf_counter() - began < 1.0
    assert len(shown) < 2000
    assert value(metrics, "queue_requests", model="other", lane="short") == 950
    assert value(metrics, "tenant_tokens_total", tenant="other") == 950


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "\ud800", "é", "x" * 1000])
def test_hostile_names_do_not_break_the_exposition(name: str) -> None:
    queue = QueueSnapshot(model=name, lane=Lane.SHORT, requests=1, tokens=1)
    metrics = Metrics(lambda: StateSnapshot(queues=(queue,)))
    metrics.request_done(Lane.SHORT, Outcome.COMPLETED, tenant=name)
    assert samples(metrics)


def test_a_finished_request_is_cheap_to_record(metrics: Metrics) -> None:
    began = time.perf_counter()
    for _ in range(2000):
        metrics.request_done(
            Lane.SHORT, Outcome.COMPLETED, wait_seconds=0.1, ttft_seconds=0.2, prompt_tokens=300
        )
    assert (time.perf_counter() - began) / 2000 < 100e-6
