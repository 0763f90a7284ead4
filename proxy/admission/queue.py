"""One lane's queue: first come first served within a tenant, least charged tenant first.

Charges are KV token-seconds (committed tokens x residency). A tenant that was idle is lifted to
the least charge among the waiting when it returns, so that idleness is no credit (start-time
fair queueing). With one tenant this is a plain FIFO.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from proxy.admission.job import Job


class Charges:
    """Who has used how much, over all lanes and pools; weights divide what is charged."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def charge(self, tenant: str, token_seconds: float, weight: float) -> None:
        self._used[tenant] = max(0.0, self._used.get(tenant, 0.0) + token_seconds / max(weight, 1e-6))

    def __len__(self) -> int:
        return len(self._used)

    def of(self, tenant: str) -> float:
        return self._used.get(tenant, 0.0)

    def lift(self, tenant: str, at_least: float) -> None:
        if self._used.get(tenant, 0.0) < at_least:
            self._used[tenant] = at_least

    def forget_idle(self, busy: set[str], keep: int) -> None:
        """Bound the table: drop tenants with nothing queued or running, least charged first."""
        if len(self._used) <= keep:
            return
        idle = sorted((t for t in self._used if t not in busy), key=self._used.__getitem__)
        for tenant in idle[: len(self._used) - keep]:
            del self._used[tenant]


class FairQueue:
    """The waiting jobs of one lane of one pool."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self._tenants: dict[str, OrderedDict[str, Job]] = {}
        self.tokens = 0
        self.requests = 0

    def __len__(self) -> int:
        return self.requests

    def __contains__(self, job: Job) -> bool:
        jobs = self._tenants.get(job.request.tenant)
        return jobs is not None and job.rid in jobs

    def push(self, job: Job, *, front: bool = False) -> None:
        tenant = job.request.tenant
        jobs = self._tenants.get(tenant)
        if jobs is None:
            if self._tenants:
                self._charges.lift(tenant, min(self._charges.of(t) for t in self._tenants))
            jobs = self._tenants[tenant] = OrderedDict()
        jobs[job.rid] = job
        if front:  # where it was: first, but for those before it that are back already
            jobs.move_to_end(job.rid, last=False)
            others = islice(jobs.values(), 1, None)
            before = takewhile(lambda other: other.arrived_at < job.arrived_at, others)
            for rid in reversed([other.rid for other in before]):
                jobs.move_to_end(rid, last=False)
        self.tokens += job.request.prompt_tokens
        self.requests += 1

    def remove(self, job: Job) -> None:
        tenant = job.request.tenant
        jobs = self._tenants[tenant]
        del jobs[job.rid]
        if not jobs:
            del self._tenants[tenant]
        self.tokens -= job.request.prompt_tokens
        self.requests -= 1

    def head(self) -> Job | None:
        """The first job of the least charged tenant."""
        if not self._tenants:
            return None
        if len(self._tenants) == 1:
            jobs = next(iter(self._tenants.values()))
        else:
            jobs = self._tenants[min(self._tenants, key=self._rank)]
        return next(iter(jobs.values()))

    def position(self, job: Job) -> int:
        """How many are before it, if charges stayed as they are. Cheap for a tenant's newest."""
        tenant = job.request.tenant
        mine = self._tenants.get(tenant, OrderedDict())
        rank = self._rank(tenant)
        before = sum(len(jobs) for other, jobs in self._tenants.items() if self._rank(other) < rank)
        if job.rid not in mine:
            return before + len(mine)
        if next(reversed(mine)) == job.rid:
            return before + len(mine) - 1
        return before + next(index for index, rid in enumerate(mine) if rid == job.rid)

    @property
    def tenant_count(self) -> int:
        return len(self._tenants)

    def others_wait(self, tenant: str) -> bool:
        """Does anybody but `tenant` wait here?"""
        return len(self._tenants) > (tenant in self._tenants)

    def heads(self) -> list[Job]:
        """The first job of each tenant, least charged first."""
        return [next(iter(self._tenants[t].values())) for t in sorted(self._tenants, key=self._rank)]

    def in_order(self) -> Iterator[Job]:
        """Jobs in the order they would be served if charges stayed as they are."""
        for tenant in sorted(self._tenants, key=self._rank):
            yield from self._tenants[tenant].values()

    def _rank(self, tenant: str) -> tuple[float, str]:
        return self._charges.of(tenant), tenant

    def oldest_arrival(self) -> float | None:
        heads = (next(iter(jobs.values())).arrived_at for jobs in self._tenants.values())
        return min(heads, default=None)
