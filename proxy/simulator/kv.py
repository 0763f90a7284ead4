"""The KV pool: which tokens are free, cached, or held by a request."""

from typing import Any

from proxy.simulator.jobs import Job
from proxy.simulator.radix import RadixTree


class KvPool:
    """`available + tokens in the tree + private tokens == capacity`, always."""

    def __init__(self, capacity: int, *, radix_cache: bool) -> None:
        self.capacity = capacity
        self.radix_cache = radix_cache
        self.tree: RadixTree[Any] = RadixTree()
        self.private = 0

    @property
    def available(self) -> int:
        return self.capacity - self.tree.tokens - self.private

    @property
    def evictable(self) -> int:
        return self.tree.evictable

    @property
    def free(self) -> int:
        """What a request could get: the available and the evictable."""
        return self.available + self.evictable

    @property
    def used(self) -> int:
        """As SGLang counts it: cached tokens that nobody locks are not used."""
        return self.capacity - self.free

    def match(self, job: Job) -> int:
        """Points `job` at its longest cached prefix, without locking it; its last token is never cached."""
        if not self.radix_cache:
            return 0
        job.node, job.prefix = self.tree.match(job.text(), job.length - 1)
        return job.prefix

    def touch(self, job: Job) -> None:
        """What is cached of `job` counts as used now."""
        if self.radix_cache:
            self.tree.match(job.text(), job.length)

    def lock(self, job: Job) -> None:
        if job.node is not None:
            self.tree.lock(job.node)

    def unlock(self, job: Job) -> None:
        if job.node is not None:
            self.tree.unlock(job.node)

    def take(self, job: Job, tokens: int) -> None:
        """Give `job` that many tokens, evicting what must go. The caller has checked `free`."""
        self.make_room(tokens)
        self.private += tokens
        job.private += tokens

    def make_room(self, tokens: int) -> None:
        if (missing := tokens - self.available) > 0:
            self.tree.evict(missing)

    def store(self, job: Job, upto: int) -> None:
        """Move what `job` holds into the cache, up to `upto` tokens of its text, and lock that."""
        if not self.radix_cache:
            return
        node, _ = self.tree.insert(job.text(), upto)
        self.tree.lock(node)
        self.unlock(job)
        self._give_back(job)
        job.node, job.prefix = node, upto

    def release(self, job: Job, *, keep: bool) -> None:
        """`job` lets go of everything; with `keep` the cache keeps what it computed."""
        if keep and self.radix_cache:
            self.store(job, job.prefix + job.private)
        self.unlock(job)
        self._give_back(job)
        job.node, job.prefix = None, 0

    def flush(self) -> None:
        """Forget the cache. Nothing may be locked."""
        self.tree = RadixTree()

    def _give_back(self, job: Job) -> None:
        self.private -= job.private
        job.private = 0
