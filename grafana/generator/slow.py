"""Why is it slow: one request's way, station by station."""

from grafana.generator.model import POOL, POOL_NAME, Dashboard, P, Panel, by_pool, mean, per_second, quantile

SLOW = Dashboard(
    uid="sglang-admission-slow",
    title="SGLang admission: why is it slow?",
    intro=(
        "**Follow the request.** 1. *Wait or engine?* If the wait explains the time to first token, stay "
        "here; "
        "if not, the engine queues or is slow: panels 3, 4 and 7. 2. *Which resource?* Prefill (3, 4), "
        "memory "
        "(5, 6) or slots. 3. *Who passes whom?* (8, 9, 10) 4. *Are the numbers right?* (7, 11, 12, 13, 15)"
    ),
    panels=(
        Panel(
            "1 Wait or engine?",
            "Median wait in the proxy beside the median time to first token, by lane. The gap is the engine.",
            "Gap large for shorts: a prefill blocks the engine (3) or foreign traffic competes (7).",
            (
                (quantile(0.5, "queue_wait_seconds", "lane"), "wait {{lane}}"),
                (quantile(0.5, "ttft_seconds", "lane"), "first token {{lane}}"),
            ),
            unit="s",
        ),
        Panel(
            "2 Seconds of prefill ahead",
            "Backlog over rate: what a prompt sent now finds before it.",
            "Above the promise: longs are refused; that is right. More capacity or shorter prompts.",
            (
                (
                    f"{P}prefill_backlog_tokens{POOL} / ({P}prefill_rate_tokens_per_second{POOL} > 0)",
                    POOL_NAME,
                ),
            ),
            unit="s",
        ),
        Panel(
            "3 Prefill backlog",
            "Uncached prompt tokens sent to the engine and not yet read.",
            "A tooth a long prompt is normal. Never back to zero: prefill is the bottleneck.",
            ((by_pool("prefill_backlog_tokens"), POOL_NAME),),
        ),
        Panel(
            "4 Prefill rate",
            "Prompt tokens a second the engine reads, as learnt from its counters or from first tokens.",
            "Falls at the same traffic: deeper contexts, or a slower or shared GPU. Check clocks and "
            "neighbours.",
            ((by_pool("prefill_rate_tokens_per_second"), POOL_NAME),),
        ),
        Panel(
            "5 Long contexts resident",
            "Running requests with a prompt over the short threshold, and the tokens they hold.",
            "Many with slow decoding: set `PROXY_MAX_LONG_CONTEXTS`.",
            (
                (by_pool("resident_contexts"), f"contexts {POOL_NAME}"),
                (f"{P}resident_context_tokens{POOL} / 1000", f"thousand tokens {POOL_NAME}"),
            ),
        ),
        Panel(
            "6 Running slots",
            "Slots taken by what the proxy sent.",
            "At the server's `max_running_requests`: slots, not tokens, are the bottleneck. Raise it there.",
            ((by_pool("running_slots"), POOL_NAME),),
        ),
        Panel(
            "7 Foreign traffic",
            "Tokens in use that no request of ours explains, as a share of the pool.",
            "Over 5 %: a client bypasses the proxy, or counting is off (11). Find it in SGLang's own log.",
            ((f"{P}foreign_tokens{POOL} / ({P}pool_tokens{POOL} > 0)", POOL_NAME),),
            unit="percentunit",
            red_from=0.05,
        ),
        Panel(
            "8 Gate",
            "1 while a blocked long request lets nobody pass who could delay it.",
            "Closed for minutes: its memory does not come free. See who holds it: `/admission/status`.",
            ((by_pool("gate_closed"), POOL_NAME),),
        ),
        Panel(
            "9 Backfills by rule",
            "Requests a second that passed a blocked long one, by the rule that let them.",
            "None while longs are blocked and tokens are free: raise `PROXY_BYPASS_BUDGET` or "
            "`PROXY_EXPRESS_SHARE`.",
            ((per_second("backfills_total", "rule"), "{{rule}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "10 Prefill slices",
            "Slices of long prefills sent, and those whose predecessor was gone from the cache.",
            "Misses: the cache is evicted between slices, or the server runs without a radix cache.",
            (
                (per_second("prefill_slices_total"), "sent"),
                (per_second("prefill_slice_misses_total"), "missed"),
            ),
            unit="ops",
        ),
        Panel(
            "11 Counting: actual over counted",
            "Mean ratio of the server's prompt tokens to the proxy's count, with the middle 80 %.",
            "Away from 1: the estimate suits other text, or the tokenizer is wrong. `doctor` checks it.",
            (
                (mean("token_count_ratio"), "mean"),
                (quantile(0.1, "token_count_ratio"), "p10"),
                (quantile(0.9, "token_count_ratio"), "p90"),
            ),
        ),
        Panel(
            "12 Output reservation",
            "Mean tokens reserved too many (over) or too few (under).",
            "Over by thousands: memory lies idle; lower `PROXY_OUTPUT_RESERVE_QUANTILE`. Under often: "
            "raise it.",
            ((mean("reserved_minus_actual_tokens", "direction"), "{{direction}}"),),
        ),
        Panel(
            "13 Age of the load report",
            "How old the newest figure from the server is.",
            "Seconds: the server's HTTP loop is busy tokenizing, or it is gone. Admission goes on by the "
            "ledger.",
            ((by_pool("load_age_seconds"), POOL_NAME),),
            unit="s",
            red_from=10,
        ),
        Panel(
            "14 Retractions",
            "Running requests that the engine threw out of its pool, a second.",
            "Any: streams pause for tens of seconds. Raise `PROXY_POOL_HEADROOM`; look for foreign "
            "traffic (7).",
            ((per_second("retractions_total", "backend", POOL), "{{backend}}"),),
            red_from=0.001,
        ),
        Panel(
            "15 Tokenizer check",
            "Probes of the tokenizer directory against the server's own count, by result.",
            "Any different, or none equal: another model's directory or chat template. `/admission/status` "
            "names the probes. Empty where `PROXY_TOKENIZER_PATH` is not set.",
            ((by_pool("tokenizer_probes"), "{{backend}} {{result}}"),),
        ),
    ),
)
