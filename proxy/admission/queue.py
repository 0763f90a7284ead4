"""One lane's queue: first come first served within a tenant, least charged tenant first.

Charges are KV token-seconds (committed tokens x residency). A tenant that was idle is lifted to
the least charge among the waiting when it returns, so that idleness is no credit (start-time
fair queueing). With one tenant this is a plain FIFO.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from proxy.admission.job import Job

SIZES_SLACK = 16  # of those that do not wait any more, before they are swept out


class Charges:
    """Who has used how much, over all lanes and pools; weights divide what is charged."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self.version = 0  # changes with any charge

    def charge(self, tenant: str, token_seconds: float, weight: float) -> None:
        self.version += 1
        self._used[tenant] = max(0.0, self._used.get(tenant, 0.0) + token_seconds / max(weight, 1e-6))

    def __len__(self) -> int:
        return len(self._used)

    def of(self, tenant: str) -> float:
        return self._used.get(tenant, 0.0)

    def lift(self, tenant: str, at_least: float) -> None:
        if self._used.get(tenant, 0.0) < at_least:
            self.version += 1
            self._used[tenant] = at_least

    def forget_idle(self, busy: set[str], keep: int) -> None:
        """Bound the table: drop tenants with nothing queued or running, least charged first."""
        if len(self._used) <= keep:
            return
        idle = sorted((t for t in self._used if t not in busy), key=self._used.__getitem__)
        for tenant in idle[: len(self._used) - keep]:
            del self._used[tenant]
        self.version += 1


class FairQueue:
    """The waiting jobs of one lane of one pool."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self._tenants: dict[str, OrderedDict[str, Job]] = {}
        self._sizes: list[tuple[int, str, str]] = []  # of who waits, and of some who do not any more
        self._ranked: list[str] = []  # tenants, least charged first,
        self._ranked_at = -1  # by the charges of that version
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
            self._ranked_at = -1
        jobs[job.rid] = job
        if front:  # where it was: first, but for those before it that are back already
            jobs.move_to_end(job.rid, last=False)
            others = islice(jobs.values(), 1, None)
            before = takewhile(lambda other: other.arrived_at < job.arrived_at, others)
            for rid in reversed([other.rid for other in before]):
                jobs.move_to_end(rid, last=False)
        self.tokens += job.request.prompt_tokens
        self.requests += 1
        heapq.heappush(self._sizes, (_private_tokens(job), job.rid, tenant))

    def remove(self, job: Job) -> None:
        tenant = job.request.tenant
        jobs = self._tenants[tenant]
        del jobs[job.rid]
        if not jobs:
            del self._tenants[tenant]
            self._ranked_at = -1
        self.tokens -= job.request.prompt_tokens
        self.requests -= 1
        if len(self._sizes) > 2 * self.requests + SIZES_SLACK:
            jobs_of = self._tenants.items()
            self._sizes = [(_private_tokens(j), j.rid, name) for name, jobs in jobs_of for j in jobs.values()]
            heapq.heapify(self._sizes)

    def head(self) -> Job | None:
        """The first job of the least charged tenant."""
        return next(iter(self._tenants[self._in_turn()[0]].values())) if self._tenants else None

    def position(self, job: Job) -> int:
        """How many are before it, if charges stayed as they are. Cheap for a tenant's newest."""
        tenant = job.request.tenant
        mine = self._tenants.get(tenant)
        before = 0
        if mine is None:
            rank = self._rank(tenant)
            for other in self._in_turn():
                if self._rank(other) > rank:
                    break
                before += len(self._tenants[other])
            return before
        for other in self._in_turn():
            if other == tenant:
                break
            before += len(self._tenants[other])
        if job.rid not in mine:
            return before + len(mine)
        if next(reversed(mine)) == job.rid:
            return before + len(mine) - 1
        return before + next(index for index, rid in enumerate(mine) if rid == job.rid)

    @property
    def least_tokens(self) -> int:
        """Nobody here brings less than this, whatever there is of its prompt."""
        sizes = self._sizes
        while sizes and sizes[0][1] not in self._tenants.get(sizes[0][2], ()):
            heapq.heappop(sizes)
        return sizes[0][0] if sizes else 0

    @property
    def tenant_count(self) -> int:
        return len(self._tenants)

    def others_wait(self, tenant: str) -> bool:
        """Does anybody but `tenant` wait here?"""
        return len(self._tenants) > (tenant in self._tenants)

    def heads(self) -> Iterator[Job]:
        """The first job of each tenant, least charged first."""
        for tenant in self._in_turn():
            yield next(iter(self._tenants[tenant].values()))

    def in_order(self) -> Iterator[Job]:
        """Jobs in the order they would be served if charges stayed as they are."""
        for tenant in self._in_turn():
            yield from self._tenants[tenant].values()

    def _in_turn(self) -> list[str]:
        if self._ranked_at != self._charges.version:
            self._ranked = sorted(self._tenants, key=self._rank)
            self._ranked_at = self._charges.version
        return self._ranked

    def _rank(self, tenant: str) -> tuple[float, str]:
        return self._charges.of(tenant), tenant


def _private_tokens(job: Job) -> int:
    """What of its prompt nobody else can have."""
    segments = job.request.segments
    return job.prompt_tokens - sum(segment.tokens for segment in segments) if segments else job.prompt_tokens
