"""Every metric of the proxy: name, labels, meaning, and what to do about it. Names are spelt only here."""

from dataclasses import dataclass
from typing import Literal

PREFIX = "sglang_proxy_"

# From a cached short prefill to the longest wait a request may ask for.
SECONDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
RATIOS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.001, 1.01, 1.02, 1.05, 1.1, 1.25, 2.0)
TOKENS = (16.0, 64.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0, 32_768.0, 131_072.0)


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric family. `name` is complete, counters with their `_total`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    bad: str
    buckets: tuple[float, ...] = ()


def _gauge(name: str, labels: tuple[str, ...], meaning: str, bad: str) -> Spec:
    return Spec(PREFIX + name, "gauge", labels, meaning, bad)


def _counter(name: str, labels: tuple[str, ...], meaning: str, bad: str) -> Spec:
    return Spec(PREFIX + name + "_total", "counter", labels, meaning, bad)


def _histogram(
    name: str, labels: tuple[str, ...], buckets: tuple[float, ...], meaning: str, bad: str
) -> Spec:
    return Spec(PREFIX + name, "histogram", labels, meaning, bad, buckets)


# Pool figures carry `dp_rank` as well where a backend has several ranks.
_POOL = ("backend",)
_LANE = ("lane",)

# --- pools, read at scrape time ---
POOL_TOKENS = _gauge(
    "pool_tokens", _POOL, "Size of the KV pool (K).", "0 or changed: the server restarted with other flags."
)
POOL_BUDGET = _gauge(
    "pool_budget_tokens",
    _POOL,
    "Most tokens the proxy commits now (B): the pool without headroom, lowered after retractions.",
    "Well below the pool for long: the server retracts or queues; raise PROXY_POOL_HEADROOM.",
)
COMMITTED = _gauge(
    "committed_tokens",
    (*_POOL, "lane"),
    "Tokens reserved and used by admitted requests (C), draining ones included, holds not.",
    "At the ceiling for long: the pool is the bottleneck; add servers or shorten contexts.",
)
HELD = _gauge(
    "held_tokens",
    _POOL,
    "Contexts kept for the next turn of idle conversations.",
    "High while others wait: lower PROXY_SESSION_HOLD_SECONDS.",
)
HELD_CONTEXTS = _gauge("held_contexts", _POOL, "How many contexts are held.", "As held_tokens.")
SERVER_USED = _gauge(
    "server_used_tokens",
    _POOL,
    "Tokens in use as the server reports them.",
    "Above the committed tokens: somebody else sends to this server (foreign_tokens).",
)
FOREIGN = _gauge(
    "foreign_tokens",
    _POOL,
    "Tokens in use that no request of ours explains.",
    "Over 5 % of the pool: a client bypasses the proxy, or the counts are off (token_count_ratio).",
)
PREFILL_BACKLOG = _gauge(
    "prefill_backlog_tokens",
    _POOL,
    "Uncached prompt tokens sent and not yet prefilled (W).",
    "Grows for long: prompts come faster than they can be read; see prefill_rate.",
)
RESIDENT_CONTEXTS = _gauge(
    "resident_contexts",
    _POOL,
    "Running requests with a prompt over the short threshold.",
    "High with slow decoding: set PROXY_MAX_LONG_CONTEXTS.",
)
RESIDENT_TOKENS = _gauge(
    "resident_context_tokens", _POOL, "Prompt tokens of those requests.", "As resident_contexts."
)
GATE_CLOSED = _gauge(
    "gate_closed",
    _POOL,
    "1 while nobody may pass a blocked long request unless it ends before that one can start.",
    "Often 1: longs wait for memory; shorts pay. See queue_head_age_seconds and the pool.",
)
LOAD_AGE = _gauge(
    "load_age_seconds",
    _POOL,
    "Age of the newest load report.",
    "Over a few seconds: the server's HTTP loop is frozen or gone. Admission goes on by the ledger.",
)
PREFILL_RATE = _gauge(
    "prefill_rate_tokens_per_second",
    _POOL,
    "Prompt tokens the server prefills in a second (R), as learnt.",
    "Falls at the same traffic: deeper contexts, or a slower or shared GPU.",
)
RUNNING_SLOTS = _gauge(
    "running_slots",
    _POOL,
    "Running slots taken by what we sent (S).",
    "At the server's max_running_requests: slots, not tokens, are the bottleneck.",
)
BACKEND_UP = _gauge(
    "backend_up",
    _POOL,
    "1 while the server answers and its pool is known.",
    "0: the server is down or unreachable.",
)
RETRACTIONS = _counter(
    "retractions",
    _POOL,
    "Running requests the server threw out of its pool and will compute again.",
    "Any: the pool was overcommitted. Raise PROXY_POOL_HEADROOM; look for foreign traffic.",
)

# --- queue and clients, read at scrape time ---
QUEUE_REQUESTS = _gauge(
    "queue_requests",
    ("model", "lane"),
    "Requests waiting in the proxy.",
    "Grows for long: more is offered than served.",
)
QUEUE_TOKENS = _gauge(
    "queue_tokens", ("model", "lane"), "Prompt tokens of the waiting requests.", "As queue_requests."
)
QUEUE_HEAD_AGE = _gauge(
    "queue_head_age_seconds",
    ("model", "lane"),
    "How long the oldest waiting request has waited.",
    "Near the promise: predictions are too hopeful; see wait_prediction_error_seconds.",
)
OPEN_REQUESTS = _gauge(
    "open_requests",
    (),
    "Requests between their first byte in and their last byte out.",
    "Far above queue plus running: clients read their answers slowly.",
)
QUEUE_PROMISE = _gauge(
    "max_queue_seconds",
    (),
    "The wait that is promised: PROXY_MAX_QUEUE_SECONDS.",
    "It is a setting; alerts compare with it.",
)
INFO = _gauge(
    "info",
    ("version", "mode"),
    "Always 1; the labels say version and mode.",
    "mode other than enforce: nothing is held back.",
)

# --- requests ---
REQUESTS = _counter(
    "requests",
    ("lane", "outcome"),
    "Requests answered, by how they ended.",
    "Many failed or broken: see backend_up and the log.",
)
REFUSALS = _counter(
    "refusals",
    ("reason",),
    "Requests refused, by reason.",
    "would_miss_deadline: add capacity, or lengthen the promise. queue_full: look for a flood.",
)
BACKFILLS = _counter(
    "backfills",
    ("rule",),
    "Requests that passed a blocked long one, by the rule that let them.",
    "None while longs wait and tokens are free: the budget or the express share is too small.",
)
SLICES = _counter(
    "prefill_slices",
    (),
    "Slices of long prefills sent.",
    "None under mixed load: no exact ids, or slicing is off.",
)
SLICE_MISSES = _counter(
    "prefill_slice_misses",
    (),
    "Slices whose predecessor was no longer cached.",
    "More than a few: the cache is evicted between slices; slicing switches itself off.",
)
DISCONNECTS = _counter(
    "disconnects",
    ("phase",),
    "Clients that left early, by what their request was doing.",
    "Many while queued: clients' timeouts are shorter than the promise.",
)
ABORTS = _counter("aborts", (), "Aborts sent to servers.", "Rises with disconnects; without them: deadlines.")
PROMPT_TOKENS = _counter("prompt_tokens", _LANE, "Prompt tokens of finished requests.", "It is the traffic.")
COMPLETION_TOKENS = _counter(
    "completion_tokens", _LANE, "Output tokens of finished requests.", "It is the traffic."
)
TENANT_REQUESTS = _counter(
    "tenant_requests",
    ("tenant", "outcome"),
    "Requests by tenant; the first 50 tenants by name, the others together.",
    "One tenant's refusals only: it is over its share.",
)
TENANT_TOKENS = _counter(
    "tenant_tokens",
    ("tenant",),
    "Prompt and output tokens by tenant.",
    "One tenant far ahead: check its share of the waits.",
)
QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    _LANE,
    SECONDS,
    "Arrival to dispatch or first slice.",
    "Short lane over a second: too small an express share, or slots are full.",
)
TTFT = _histogram(
    "ttft_seconds",
    _LANE,
    SECONDS,
    "Arrival to the first token.",
    "Far above the wait: the engine itself queues; see foreign_tokens.",
)
WAIT_ERROR = _histogram(
    "wait_prediction_error_seconds",
    ("direction",),
    SECONDS,
    "Predicted against actual wait: how much earlier or later it came.",
    "Late by more than the promise allows: refusals come too seldom; prefill_rate may be stale.",
)
COUNT_RATIO = _histogram(
    "token_count_ratio",
    (),
    RATIOS,
    "Actual prompt tokens, as the server counts them, over the proxy's count.",
    "Away from 1: wrong tokenizer or template; set PROXY_TOKENIZER_PATH.",
)
RESERVE_ERROR = _histogram(
    "reserved_minus_actual_tokens",
    ("direction",),
    TOKENS,
    "Output reservation against actual output: how much over or under.",
    "Much over: lower PROXY_OUTPUT_RESERVE_QUANTILE; much under: raise it.",
)
TOKENIZER_PROBES = _gauge(
    "tokenizer_probes",
    ("backend", "result"),
    "Probes of the last check of PROXY_TOKENIZER_PATH against the server, by result: equal, different, "
    "estimated or unanswered.",
    "Any different, or none equal: another model's directory or chat template; /admission/status names it.",
)

# --- the proxy itself ---
LOOP_LAG = _histogram(
    "event_loop_lag_seconds",
    (),
    LAG_SECONDS,
    "How late the event loop woke up.",
    "Over 50 ms: the proxy lacks CPU; streams stutter.",
)
RELOADS = _counter(
    "reloads",
    ("outcome",),
    "Times the settings were read again: changed, unchanged, or refused.",
    "refused: a file is wrong and the old settings count; the log says why.",
)
DECISION_DROPS = _counter(
    "decision_log_dropped_lines",
    (),
    "Lines of the decision log that could not be written.",
    "Any: the disk is full or too slow.",
)

CATALOGUE: tuple[Spec, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Spec))
