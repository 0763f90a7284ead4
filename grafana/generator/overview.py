"""Overview: is everybody served as promised, and is there room?"""

from grafana.generator.model import HERE, POOL, POOL_NAME, Dashboard, P, Panel, by_pool, per_second, quantile

REFUSED = f"sum(rate({P}refusals_total{HERE}[$__rate_interval]))"

OVERVIEW = Dashboard(
    uid="sglang-admission-overview",
    title="SGLang admission: overview",
    intro=(
        "**Reads from left to right:** are the servers there, who waits, for how long, and is anybody "
        "refused? "
        "Then the pool: what is committed against the budget, and who uses it. "
        "Something red or odd: *Why is it slow* says where the time goes."
    ),
    intro_height=2,
    panels=(
        Panel(
            "Servers up",
            "Servers that answer and whose pool is known.",
            "A server is down or unreachable: see its own log and `PROXY_BACKENDS`. Traffic goes to the "
            "others.",
            ((f"sum({P}backend_up{POOL})", ""),),
            kind="stat",
            width=4,
            height=4,
            red_below=1,
        ),
        Panel(
            "Waiting requests",
            "Requests in the proxy's queue, all lanes.",
            "Growing for minutes: more is offered than served. Look at the pool below: memory, or prefill?",
            ((f"sum({P}queue_requests{HERE})", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Oldest wait",
            "Age of the oldest waiting request.",
            "Close to the promise: predictions are too hopeful. See *Promise and reality*.",
            ((f"max({P}queue_head_age_seconds{HERE})", ""),),
            kind="stat",
            unit="s",
            width=4,
            height=4,
            red_from=60,
        ),
        Panel(
            "Refusals a minute",
            "Requests answered with a refusal.",
            "See *Refusals by reason* below: each reason has its own cure.",
            ((f"60 * {REFUSED}", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Gates closed",
            "Pools in which a long request has waited so long that others may hardly pass it.",
            "Now and then is by design. For minutes: longs wait for memory. See the pool below.",
            ((f"sum({P}gate_closed{POOL})", ""),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Mode",
            "Proxies by version and mode.",
            "A mode other than `enforce` holds nothing back: set `PROXY_MODE`.",
            ((f"count by (version, mode) ({P}info{HERE})", "{{version}} {{mode}}"),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Pool: committed by lane",
            "Tokens that admitted requests hold or have reserved, stacked by lane; held contexts on top.",
            "At the budget for long: memory is the bottleneck. Shorten contexts, add a server, or lower "
            "`PROXY_OUTPUT_RESERVE_QUANTILE` if outputs are over-reserved.",
            (
                (f"sum by (lane) ({P}committed_tokens{POOL})", "{{lane}}"),
                (f"sum({P}held_tokens{POOL})", "held"),
            ),
            stack=True,
        ),
        Panel(
            "Pool: size, budget, in use",
            "What the server has, what the proxy commits at most, and what the server says is in use.",
            "In use above committed: foreign traffic. Budget sinking below the pool: retractions; "
            "see *Why is it slow*.",
            (
                (by_pool("pool_tokens"), f"pool {POOL_NAME}"),
                (by_pool("pool_budget_tokens"), f"budget {POOL_NAME}"),
                (by_pool("server_used_tokens"), f"in use {POOL_NAME}"),
                (by_pool("foreign_tokens"), f"foreign {POOL_NAME}"),
            ),
        ),
        Panel(
            "Queue by lane",
            "Waiting requests by lane.",
            "Shorts waiting: the express share is full, or a long prefill is under way. Longs waiting: "
            "memory.",
            ((f"sum by (lane) ({P}queue_requests{HERE})", "{{lane}}"),),
            stack=True,
        ),
        Panel(
            "Oldest wait by lane, against the promise",
            "How long the head of each lane has waited, and the longest wait promised.",
            "A lane at the promise: its requests will be refused by `deadline`. Check the prefill rate.",
            (
                (f"max by (lane) ({P}queue_head_age_seconds{HERE})", "{{lane}}"),
                (f"max({P}max_queue_seconds{HERE})", "promise"),
            ),
            unit="s",
        ),
        Panel(
            "Time to first token by lane",
            "Arrival to first token: median and 99th percentile.",
            "Shorts slow while the wait is small: the engine itself is the bottleneck or somebody bypasses "
            "the proxy. Shorts slow with the wait: see the queue.",
            (
                (quantile(0.5, "ttft_seconds", "lane"), "{{lane}} p50"),
                (quantile(0.99, "ttft_seconds", "lane"), "{{lane}} p99"),
            ),
            unit="s",
        ),
        Panel(
            "Wait in the proxy by lane",
            "Arrival to dispatch: median and 99th percentile.",
            "Longs: expected under load, bounded by the promise. Shorts over a second: raise "
            "`PROXY_EXPRESS_SHARE`.",
            (
                (quantile(0.5, "queue_wait_seconds", "lane"), "{{lane}} p50"),
                (quantile(0.99, "queue_wait_seconds", "lane"), "{{lane}} p99"),
            ),
            unit="s",
        ),
        Panel(
            "Refusals by reason",
            "Refused requests a second.",
            "`would_miss_deadline`: capacity. `queue_full`: a flood, or caps too low. `deadline`: "
            "predictions "
            "were wrong. `context_length_exceeded`: clients send what no pool can take. `no_backend`: "
            "servers down.",
            ((per_second("refusals_total", "reason"), "{{reason}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "Requests by outcome",
            "Answered requests a second, by how they ended.",
            "`failed` or `broken`: the servers; see their logs. `disconnected`: clients give up; compare "
            "their "
            "timeouts with the waits. `invalid`: a client is wrong.",
            ((per_second("requests_total", "outcome"), "{{outcome}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "Promise and reality",
            "How far the wait came out from what was predicted: nine of ten requests were within this.",
            "Late for long: refusals come too seldom. The prefill rate is off, or foreign traffic competes.",
            ((quantile(0.9, "wait_prediction_error_seconds", "direction"), "{{direction}} p90"),),
            unit="s",
        ),
        Panel(
            "Tokens a second",
            "Prompt and output tokens of finished requests, by lane.",
            "Falls while requests wait: the servers slowed down, not the traffic.",
            (
                (per_second("prompt_tokens_total", "lane"), "prompt {{lane}}"),
                (per_second("completion_tokens_total", "lane"), "output {{lane}}"),
            ),
        ),
    ),
)
