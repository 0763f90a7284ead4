"""Tenants and conversations: who uses the pool, and who pays for it by waiting."""

from grafana.generator.model import HERE, POOL_NAME, Dashboard, P, Panel, by_pool, per_second

TENANTS = Dashboard(
    uid="sglang-admission-tenants",
    title="SGLang admission: tenants and conversations",
    intro=(
        "The first 50 tenants and models are shown by name, all later ones together as `other`, "
        "so that names sent by clients cannot flood Prometheus."
    ),
    intro_height=2,
    panels=(
        Panel(
            "Tokens by tenant",
            "Prompt and output tokens a second.",
            "One tenant far ahead while others are refused: give it less weight, or a server of its own.",
            ((f"topk(10, {per_second('tenant_tokens_total', 'tenant')})", "{{tenant}}"),),
            stack=True,
        ),
        Panel(
            "Requests by tenant",
            "Answered requests a second.",
            "A sudden step: a client in a retry loop. Its outcomes are on the right.",
            ((f"topk(10, {per_second('tenant_requests_total', 'tenant')})", "{{tenant}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "Refused share by tenant",
            "Share of each tenant's requests that was refused.",
            "One tenant only: it is over its share, or sends prompts that can never fit.",
            (
                (
                    per_second("tenant_requests_total", "tenant", '{instance=~"$instance",outcome="refused"}')
                    + " / "
                    + per_second("tenant_requests_total", "tenant"),
                    "{{tenant}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Clients that left early",
            "Disconnects a second by what the request was doing.",
            "While queued: clients' timeouts are shorter than the promise; lower `PROXY_MAX_QUEUE_SECONDS` "
            "so that they are told at once.",
            ((per_second("disconnects_total", "phase"), "{{phase}}"),),
            unit="reqps",
            stack=True,
        ),
        Panel(
            "Waiting by model",
            "Requests in the queue by model and lane.",
            "One model only: its servers are the bottleneck.",
            ((f"sum by (model, lane) ({P}queue_requests{HERE})", "{{model}} {{lane}}"),),
            stack=True,
        ),
        Panel(
            "Waiting tokens by model",
            "Prompt tokens in the queue.",
            "Compare with the pool: ten pools' worth of tokens cannot be served within a minute.",
            ((f"sum by (model, lane) ({P}queue_tokens{HERE})", "{{model}} {{lane}}"),),
            stack=True,
        ),
        Panel(
            "Held contexts",
            "Contexts of idle conversations kept for their next turn.",
            "Many while others wait: lower `PROXY_SESSION_HOLD_SECONDS`.",
            ((by_pool("held_contexts"), POOL_NAME),),
        ),
        Panel(
            "Held tokens",
            "Tokens of those contexts.",
            "Near half of the pool: holds crowd out new work. As *Held contexts*.",
            ((by_pool("held_tokens"), POOL_NAME),),
        ),
        Panel(
            "Running long contexts",
            "Running requests with a prompt over the short threshold.",
            "One, with many waiting: contexts are too large for this pool.",
            ((by_pool("resident_contexts"), POOL_NAME),),
        ),
        Panel(
            "Tokens of running long contexts",
            "What those contexts hold.",
            "Close to the pool size: there is no room for a second one; route them to a larger server.",
            ((by_pool("resident_context_tokens"), POOL_NAME),),
        ),
    ),
)
