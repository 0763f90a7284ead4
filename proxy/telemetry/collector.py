"""Gauges about pools and queues, made from a snapshot at scrape time: nothing to keep in step on the way."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from proxy.admission.types import Lane
from proxy.telemetry import catalogue
from proxy.telemetry.bounded import BoundedNames
from proxy.telemetry.catalogue import Spec
from proxy.telemetry.snapshot import PoolSnapshot, QueueSnapshot, StateSnapshot

Labels = dict[str, str]
Samples = Iterable[tuple[Labels, float]]

_POOL_FIGURES: tuple[tuple[Spec, Callable[[PoolSnapshot], float | None]], ...] = (
    (catalogue.POOL_TOKENS, lambda pool: pool.pool_tokens),
    (catalogue.POOL_BUDGET, lambda pool: pool.ceiling_tokens),
    (catalogue.HELD, lambda pool: pool.held_tokens),
    (catalogue.HELD_CONTEXTS, lambda pool: pool.held_contexts),
    (catalogue.SERVER_USED, lambda pool: pool.server_used_tokens),
    (catalogue.FOREIGN, lambda pool: pool.foreign_tokens),
    (catalogue.PREFILL_BACKLOG, lambda pool: pool.prefill_backlog_tokens),
    (catalogue.RESIDENT_CONTEXTS, lambda pool: pool.resident_contexts),
    (catalogue.RESIDENT_TOKENS, lambda pool: pool.resident_context_tokens),
    (catalogue.GATE_CLOSED, lambda pool: pool.gate_closed),
    (catalogue.LOAD_AGE, lambda pool: pool.load_age_seconds),
    (catalogue.PREFILL_RATE, lambda pool: pool.prefill_rate_tokens_per_second),
    (catalogue.RUNNING_SLOTS, lambda pool: pool.running_slots),
    (catalogue.BACKEND_UP, lambda pool: pool.up),
    (catalogue.RETRACTIONS, lambda pool: pool.retractions),
)


class StateCollector(Collector):
    """Calls `snapshot` once a scrape. Model names come from clients, so only the first 50 are told apart."""

    def __init__(self, snapshot: Callable[[], StateSnapshot]) -> None:
        self._snapshot = snapshot
        self._models = BoundedNames(50)
        self._queue_keys: dict[tuple[str, str], None] = {}

    def describe(self) -> Iterator[Metric]:
        """Names without asking for a snapshot: the registry calls this while the app is being built."""
        for spec in (*(spec for spec, _ in _POOL_FIGURES), catalogue.COMMITTED, *_OTHER_SPECS):
            yield _family(spec, ())

    def collect(self) -> Iterator[Metric]:
        state = self._snapshot()
        pools = [(_pool_labels(pool), pool) for pool in state.pools]
        for spec, figure in _POOL_FIGURES:
            yield _family(spec, ((labels, v) for labels, pool in pools if (v := figure(pool)) is not None))
        yield _family(
            catalogue.COMMITTED,
            (
                (labels | {"lane": lane.value}, pool.committed_tokens.get(lane, 0))
                for labels, pool in pools
                for lane in Lane
            ),
        )
        yield from self._queues(state.queues)
        yield _family(catalogue.OPEN_REQUESTS, (({}, state.open_requests),))
        yield _family(
            catalogue.TOKENIZER_PROBES,
            (
                ({"backend": backend, "result": result}, probes)
                for backend, results in state.tokenizer_probes.items()
                for result, probes in results.items()
            ),
        )

    def _queues(self, queues: Iterable[QueueSnapshot]) -> Iterator[Metric]:
        # A queue that was seen once stays, at 0: a series that vanishes looks like a gap, not like "empty".
        rows = dict.fromkeys(self._queue_keys, (0, 0, 0.0))
        for queue in queues:
            key = (self._models.bounded(queue.model), queue.lane.value)
            self._queue_keys.setdefault(key)
            requests, tokens, age = rows.get(key, (0, 0, 0.0))
            rows[key] = (requests + queue.requests, tokens + queue.tokens, max(age, queue.head_age_seconds))
        labelled = [({"model": model, "lane": lane}, row) for (model, lane), row in rows.items()]
        yield _family(catalogue.QUEUE_REQUESTS, ((labels, row[0]) for labels, row in labelled))
        yield _family(catalogue.QUEUE_TOKENS, ((labels, row[1]) for labels, row in labelled))
        yield _family(catalogue.QUEUE_HEAD_AGE, ((labels, row[2]) for labels, row in labelled))


_OTHER_SPECS = (
    catalogue.QUEUE_REQUESTS,
    catalogue.QUEUE_TOKENS,
    catalogue.QUEUE_HEAD_AGE,
    catalogue.OPEN_REQUESTS,
    catalogue.TOKENIZER_PROBES,
)


def _pool_labels(pool: PoolSnapshot) -> Labels:
    labels = {"backend": pool.backend}
    return labels if pool.dp_rank is None else labels | {"dp_rank": str(pool.dp_rank)}


def _family(spec: Spec, samples: Samples) -> Metric:
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = kind(spec.name, spec.meaning)
    for labels, value in samples:
        family.add_sample(spec.name, labels, value)
    return family
