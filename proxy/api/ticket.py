"""One request's claim on a place: decided once or, after back-pressure, again, and closed exactly once."""

import asyncio

from proxy.admission.types import Dispatch, Refuse, Request
from proxy.api.slices import SlicedPrefill
from proxy.upstream.call import Observed

Decision = Dispatch | Refuse


class Ticket:
    """One request's claim on a place. `decision` is None while it waits."""

    __slots__ = (
        "_waiter",
        "arrived_at",
        "closed",
        "decision",
        "dispatched_at",
        "first_token_at",
        "observed",
        "predicted_wait_seconds",
        "request",
        "sliced",
    )

    def __init__(self, request: Request, arrived_at: float, sliced: SlicedPrefill | None) -> None:
        self.request = request
        self.sliced = sliced
        self.arrived_at = arrived_at
        self.decision: Decision | None = None
        self.dispatched_at: float | None = None
        self.first_token_at: float | None = None
        self.predicted_wait_seconds: float | None = None
        self.observed = Observed()
        self.closed = False
        self._waiter: asyncio.Future[Decision] | None = None

    async def decided(self) -> Decision:
        """Wait for the decision. Cancelling the wait leaves the claim in place: close it."""
        if self.decision is not None:
            return self.decision
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def decide(self, decision: Decision) -> None:
        self.decision = decision
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(decision)
