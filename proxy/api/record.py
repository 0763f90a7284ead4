"""What became of one request: gathered on its way, written once at its end.

One log line, the request's metrics, and its span where it is traced.
"""

import logging

from proxy.admission.types import Lane
from proxy.api.keys import Tenant
from proxy.api.ticket import Ticket
from proxy.telemetry.logs import request_line
from proxy.telemetry.metrics import Metrics, Outcome
from proxy.telemetry.tracing import Facts, Span
from proxy.tokens.sized import Sized
from proxy.tokens.sizer import Sizer

logger = logging.getLogger("proxy.request")


class Record:
    """One request. None and empty: it never got that far."""

    __slots__ = (
        "arrived_at",
        "lane",
        "outcome",
        "pool",
        "reason",
        "request_id",
        "sized",
        "span",
        "status",
        "tenant",
        "ticket",
    )

    def __init__(self, request_id: str, arrived_at: float, span: Span) -> None:
        self.request_id = request_id
        self.arrived_at = arrived_at
        self.span = span
        self.tenant: Tenant | None = None
        self.sized: Sized | None = None
        self.ticket: Ticket | None = None
        self.lane: Lane | None = None
        self.pool: str | None = None  # where it is, or was last
        self.outcome = Outcome.INVALID
        self.status = 0
        self.reason: str | None = None

    @property
    def _prefilled(self) -> bool:
        """A first token was seen, or the server has told afterwards how many there were."""
        ticket = self.ticket
        return ticket is not None and (ticket.first_token_at is not None or ticket.observed.usage is not None)

    def write(self, metrics: Metrics, sizer: Sizer) -> None:
        """Log it, count it, and let the counter learn from what the server counted."""
        sized, ticket = self.sized, self.ticket
        tenant = self.tenant.name if self.tenant is not None else ""
        wait = ttft = None
        prompt, produced = (sized.prompt_tokens if sized else 0), 0
        if ticket is not None:
            usage = ticket.observed.usage
            produced = ticket.observed.produced_tokens
            if usage is not None:
                prompt = usage.prompt_tokens
                assert sized is not None
                metrics.token_ratio(usage.prompt_tokens / max(1, sized.prompt_tokens))
                sizer.observe(sized, usage.prompt_tokens)
            if ticket.dispatched_at is not None:
                wait = ticket.dispatched_at - ticket.arrived_at
            if ticket.first_token_at is not None:
                ttft = ticket.first_token_at - self.arrived_at
        metrics.request_done(
            self.lane,
            self.outcome,
            wait_seconds=wait,
            ttft_seconds=ttft,
            prompt_tokens=prompt if self._prefilled else 0,
            completion_tokens=produced,
            tenant=tenant or None,
        )
        request_line(
            logger,
            request_id=self.request_id,
            outcome=self.outcome.value,
            status=self.status,
            tenant=tenant,
            model=sized.shape.model if sized else "",
            lane=self.lane,
            prompt_tokens=prompt or None,
            completion_tokens=produced or None,
            wait_seconds=wait,
            ttft_seconds=ttft,
            backend=self.pool,
            reason=self.reason,
            trace_id=self.span.trace_id,
        )
        if self.span.recording:
            self.span.end(self._facts(tenant, prompt, produced, wait))

    def _facts(self, tenant: str, prompt: int, produced: int, wait: float | None) -> Facts:
        ticket, sized = self.ticket, self.sized
        return Facts(
            outcome=self.outcome.value,
            failed=self.outcome in (Outcome.FAILED, Outcome.BROKEN),
            status=self.status,
            tenant=tenant,
            model=sized.shape.model if sized else "",
            prompt_tokens=prompt,
            completion_tokens=produced,
            slices=ticket.sliced.sent if ticket is not None and ticket.sliced is not None else 0,
            lane=None if self.lane is None else self.lane.value,
            reason=self.reason,
            backend=self.pool,
            queue_wait_seconds=wait,
            dispatched_at=ticket.dispatched_at if ticket is not None else None,
            first_token_at=ticket.first_token_at if ticket is not None else None,
        )
