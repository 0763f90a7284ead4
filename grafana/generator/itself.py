"""Proxy itself: does it have the CPU, memory and sockets it needs?"""

from grafana.generator.model import HERE, Dashboard, P, Panel, per_second, quantile

# process_* metrics are shared by everything Prometheus scrapes: keep to instances that are a proxy.
OURS = f"and on (instance) {P}info{HERE}"

ITSELF = Dashboard(
    uid="sglang-admission-itself",
    title="SGLang admission: proxy itself",
    intro="The proxy is one process with one event loop. If the loop is late, every stream stutters.",
    intro_height=2,
    panels=(
        Panel(
            "Event loop lag",
            "How late the loop woke up: median and 99th percentile.",
            "p99 over 50 ms: the process lacks CPU, or a huge body was parsed. See CPU.",
            (
                (quantile(0.5, "event_loop_lag_seconds"), "p50"),
                (quantile(0.99, "event_loop_lag_seconds"), "p99"),
            ),
            unit="s",
            red_from=0.05,
        ),
        Panel(
            "CPU",
            "Cores used by the process.",
            "Near 1: the loop is full. Run another proxy in front of other servers.",
            ((f"rate(process_cpu_seconds_total{HERE}[$__rate_interval]) {OURS}", "{{instance}}"),),
            red_from=0.9,
        ),
        Panel(
            "Memory",
            "Resident memory of the process.",
            "Grows with waiting requests, since their bodies are kept: lower `PROXY_MAX_QUEUE_REQUESTS` or "
            "`PROXY_MAX_BODY_BYTES`. Grows at rest: a leak; report it.",
            ((f"process_resident_memory_bytes{HERE} {OURS}", "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "Open file descriptors",
            "Sockets and files, and the limit.",
            "Near the limit: raise `LimitNOFILE` (systemd) or `ulimit -n`; each open request takes two.",
            (
                (f"process_open_fds{HERE} {OURS}", "open {{instance}}"),
                (f"process_max_fds{HERE} {OURS}", "limit {{instance}}"),
            ),
        ),
        Panel(
            "Open requests",
            "Requests between first byte in and last byte out.",
            "Far above waiting plus running: clients read slowly, or hold connections.",
            ((f"sum by (instance) ({P}open_requests{HERE})", "{{instance}}"),),
        ),
        Panel(
            "Requests a second by lane",
            "All answers; `none` was turned away before it was sized.",
            "`none` rising: malformed or unauthorised requests; see the log.",
            ((per_second("requests_total", "lane"), "{{lane}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "Aborts sent",
            "Aborts a second, for clients that left and deadlines that passed.",
            "Rising without disconnects: deadlines pass after dispatch; see the promise.",
            ((per_second("aborts_total"), "aborts"),),
            unit="ops",
        ),
        Panel(
            "Decision log lines lost",
            "Lines a second that could not be written to `PROXY_DECISION_LOG`.",
            "The disk is full or too slow. Requests are not affected.",
            ((per_second("decision_log_dropped_lines_total"), "lost"),),
            unit="ops",
            red_from=0.001,
        ),
        Panel(
            "Settings read again",
            "Reloads a second, by what came of them.",
            "`refused`: a file is wrong, and the old settings go on counting. The log says what is wrong.",
            ((per_second("reloads_total", "outcome"), "{{outcome}}"),),
            unit="ops",
        ),
        Panel(
            "Up since",
            "Seconds since the process started.",
            "Falls back to zero: it was restarted. Look for the reason in the supervisor's log.",
            ((f"time() - process_start_time_seconds{HERE} {OURS}", "{{instance}}"),),
            unit="s",
        ),
        Panel(
            "Settings seen here",
            "The promised wait of each proxy.",
            "Different values behind one load balancer: make them equal.",
            ((f"{P}max_queue_seconds{HERE}", "{{instance}}"),),
            unit="s",
        ),
    ),
)
