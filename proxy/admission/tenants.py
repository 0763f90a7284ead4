"""What each tenant has in use: requests and tokens at once, and tokens of this minute.

The limits come with the request (`Request.limits`), so that the operator's file decides and the
core only counts. A minute's tokens are a bucket that fills evenly: a prompt and its output
reserve are taken when it comes, what was not used is given back. A request larger than a whole
minute's passes once the bucket is full, and leaves it in debt: it is a rate, not a size.
"""

from dataclasses import dataclass

from proxy.admission.types import Request, TenantLimit

SECONDS = 60.0  # of tokens_per_minute


@dataclass(slots=True)
class _Usage:
    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Objection:
    """The limit a request would break.

    `retry_seconds` None: nobody knows; `hopeless`: it alone is more than the limit.
    """

    limit: TenantLimit
    retry_seconds: float | None = None
    hopeless: bool = False


class Tenants:
    """Counts for all tenants with a request open, over all pools."""

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}
        self._minutes: dict[str, tuple[float, float]] = {}  # tokens left, and when that was so

    def __len__(self) -> int:
        return len(self._usage)

    def usage(self, tenant: str) -> tuple[int, int]:
        """Requests open and tokens claimed by them."""
        usage = self._usage.get(tenant)
        return (usage.requests, usage.tokens) if usage else (0, 0)

    def objection(
        self, request: Request, need_tokens: int, metered_tokens: int, now: float
    ) -> Objection | None:
        """Which of its tenant's limits `request` would break now; None when it may come in.

        `need_tokens` is what it would hold in a pool, `metered_tokens` what it may take altogether.
        """
        limits = request.limits
        requests, tokens = self.usage(request.tenant)
        most = limits.concurrent_requests
        if most is not None and requests >= most:
            return Objection(TenantLimit("concurrent_requests", most, requests))
        most = limits.resident_tokens
        if most is not None and tokens + need_tokens > most:
            limit = TenantLimit("resident_tokens", most, tokens)
            return Objection(limit, hopeless=need_tokens > most)
        most = limits.tokens_per_minute
        if most is not None:
            left = self._left(request.tenant, most, now)
            missing = min(metered_tokens, most) - left
            if missing > 0:
                limit = TenantLimit("tokens_per_minute", most, round(most - left))
                return Objection(limit, retry_seconds=missing * SECONDS / most)
        return None

    def take(self, request: Request, need_tokens: int, metered_tokens: int, now: float) -> None:
        """`request` has come in."""
        usage = self._usage.setdefault(request.tenant, _Usage())
        usage.requests += 1
        usage.tokens += need_tokens
        most = request.limits.tokens_per_minute
        if most is not None:
            self._minutes[request.tenant] = (self._left(request.tenant, most, now) - metered_tokens, now)

    def give_back(self, request: Request, need_tokens: int, unused_tokens: int) -> None:
        """It has left; `unused_tokens` of those metered were not used (negative: it used more)."""
        usage = self._usage[request.tenant]
        usage.requests -= 1
        usage.tokens -= need_tokens
        if not usage.requests:
            del self._usage[request.tenant]
        if request.limits.tokens_per_minute is not None:
            left, at = self._minutes[request.tenant]
            self._minutes[request.tenant] = (left + unused_tokens, at)

    def _left(self, tenant: str, most: int, now: float) -> float:
        left, at = self._minutes.get(tenant, (float(most), now))
        return min(most, left + (now - at) * most / SECONDS)
