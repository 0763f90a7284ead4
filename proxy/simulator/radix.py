"""The prefix cache: a radix tree of prompts, its unlocked leaves evicted least recently used first.

Modelled on SGLang 0.5.23 (`mem_cache/radix_cache.py`): a node is a stretch of tokens; it splits where
prompts part; a running request locks the path from its node to the root; what no request locks counts
as free, since it is evicted whole leaves at a time when space is needed.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from proxy.simulator.prompt import Prompt

P = TypeVar("P", bound=Prompt)


class Node(Generic[P]):
    """A stretch [start, stop) of a prompt, shared by all that pass through it."""

    __slots__ = ("children", "locks", "parent", "prompt", "start", "stop", "used")

    def __init__(self, parent: Node[P] | None, prompt: P | None, start: int, stop: int, used: int) -> None:
        self.parent = parent
        self.prompt = prompt
        self.start = start
        self.stop = stop
        self.used = used
        self.locks = 0
        self.children: dict[Hashable, Node[P]] = {}

    @property
    def tokens(self) -> int:
        return self.stop - self.start


class RadixTree(Generic[P]):
    """Which prefixes are cached. `tokens` are all cached ones; `evictable` those that nobody locks."""

    def __init__(self) -> None:
        self.root: Node[P] = Node(None, None, 0, 0, 0)
        self.tokens = 0
        self.evictable = 0
        self._uses = count(1)
        self._order = count()
        self._leaves: list[tuple[int, int, Node[P]]] = []  # a heap; entries may be out of date

    def match(self, prompt: P, limit: int) -> tuple[Node[P], int]:
        """The deepest cached node on `prompt`'s way, and how many of its first `limit` tokens are cached.

        What it passes counts as used now.
        """
        node, at, now = self.root, 0, next(self._uses)
        while at < limit and (child := node.children.get(prompt.unit(at))) is not None:
            assert child.prompt is not None
            stop = min(child.stop, limit)
            agreed = prompt.agreement(child.prompt, at, stop)
            child.used = now
            if agreed < child.stop:
                return self._split(child, agreed), agreed
            node, at = child, agreed
        return node, at

    def insert(self, prompt: P, upto: int) -> tuple[Node[P], int]:
        """Cache the first `upto` tokens of `prompt`; returns their node and how many were new."""
        node, matched = self.match(prompt, upto)
        new = upto - matched
        if new == 0:
            return node, 0
        leaf = Node(node, prompt, matched, upto, next(self._uses))
        node.children[prompt.unit(matched)] = leaf
        self.tokens += new
        self.evictable += new
        self._offer(leaf)
        return leaf, new

    def lock(self, node: Node[P]) -> None:
        """Keep everything from `node` up to the root."""
        step: Node[P] | None = node
        while step is not None and step is not self.root:
            if step.locks == 0:
                self.evictable -= step.tokens
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node[P]) -> None:
        """Undo one `lock`."""
        step: Node[P] | None = node
        while step is not None and step is not self.root:
            step.locks -= 1
            if step.locks == 0:
                self.evictable += step.tokens
                self._offer(step)
            step = step.parent

    def evict(self, tokens: int) -> int:
        """Drop least recently used leaves until at least `tokens` are gone, or none is left to drop."""
        gone = 0
        while gone < tokens and self._leaves:
            used, _, leaf = heappop(self._leaves)
            if leaf.parent is None or leaf.locks or leaf.children:
                continue  # gone, locked again or grown since
            if used != leaf.used:
                self._offer(leaf)
                continue
            gone += leaf.tokens
            self._drop(leaf)
        return gone

    def _drop(self, leaf: Node[P]) -> None:
        parent = leaf.parent
        assert parent is not None
        assert leaf.prompt is not None
        del parent.children[leaf.prompt.unit(leaf.start)]
        leaf.parent = None
        self.tokens -= leaf.tokens
        self.evictable -= leaf.tokens
        self._offer(parent)

    def _offer(self, node: Node[P]) -> None:
        if node is not self.root and not node.locks and not node.children:
            heappush(self._leaves, (node.used, next(self._order), node))

    def _split(self, node: Node[P], at: int) -> Node[P]:
        """Cut `node` at position `at`; returns the new upper part; holders stay with the lower."""
        parent, prompt = node.parent, node.prompt
        assert parent is not None
        assert prompt is not None
        upper = Node(parent, prompt, node.start, at, node.used)
        upper.locks = node.locks
        upper.children[prompt.unit(at)] = node
        parent.children[prompt.unit(node.start)] = upper
        node.parent, node.start = upper, at
        return upper
