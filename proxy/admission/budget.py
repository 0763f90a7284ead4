"""How much of a pool may be committed, and how the engine corrects that.

B falls when the engine shows that it was too large, and rises again slowly: an engine that retracts
stops a running stream for tens of seconds, while a budget a little too small costs a few tokens.
"""

from proxy.admission.limits import Limits
from proxy.admission.types import PoolFacts

BUDGET_FLOOR = 0.5  # however often the engine retracts, half of the budget stays usable
BUDGET_CUT = 0.9
BUDGET_RISE = 1.01
BUDGET_RISE_SECONDS = 60.0


class Budget:
    """The sizes of one pool, by what the server says of it and the operator's limits."""

    def __init__(self, facts: PoolFacts, limits: Limits) -> None:
        self.facts = facts
        self.limits = limits
        self.version = 0  # changes whenever a size or a ledger does: what was derived from it is stale
        self.budget_tokens = 0  # B
        self.express_tokens = 0  # X
        self.max_prompt_tokens = 0  # the longest prompt it can ever take (inclusive)
        self._budget_factor = 1.0
        self._budget_changed_at = 0.0

    def _size(self) -> None:
        """Facts, limits or the share of the budget have changed: so do the sizes that follow from them."""
        facts, limits = self.facts, self.limits
        self.budget_tokens = int(facts.pool_tokens * (1 - limits.pool_headroom) * self._budget_factor)
        self.express_tokens = int(facts.pool_tokens * limits.express_share)
        self.max_prompt_tokens = facts.max_request_tokens or facts.pool_tokens - 6
        if facts.context_tokens is not None:
            self.max_prompt_tokens = min(self.max_prompt_tokens, facts.context_tokens - 1)
        self.version += 1

    def cut_budget(self, now: float) -> None:
        """The engine had to retract, or finds no room for what it was sent: there is less than we thought."""
        self._budget_factor = max(BUDGET_FLOOR, self._budget_factor * BUDGET_CUT)
        self._budget_changed_at = now
        self._size()

    def raise_budget(self, now: float) -> None:
        """A quiet minute: a little of the budget comes back."""
        if self._budget_factor < 1.0 and now - self._budget_changed_at >= BUDGET_RISE_SECONDS:
            self._budget_factor = min(1.0, self._budget_factor * BUDGET_RISE)
            self._budget_changed_at = now
            self._size()
