"""Who pays for a shared prefix, and what is held of it between the turns of a conversation.

SGLang keeps one copy of a prefix that several requests use, once the first of them has
computed it. So a segment is charged once per *payer*: a request that starts before the segment
is ready computes its own copy and pays; one that starts after rides along for free. When the
last payer ends, a rider takes the charge over: never twice, never zero while anyone uses it.
A hold keeps a segment for a conversation's next turn; with no user beside it, its tokens are
*held*, which is counted apart from what is charged.
"""

from dataclasses import dataclass

from proxy.admission.types import Segment


@dataclass(slots=True)
class _Node:
    tokens: int
    payers: int = 0
    riders: int = 0
    holds: int = 0
    ready: bool = False

    @property
    def charged_tokens(self) -> int:
        return self.tokens * max(self.payers, 1 if self.riders else 0)

    @property
    def held_tokens(self) -> int:
        return self.tokens if self.holds and not self.payers and not self.riders else 0

    @property
    def unused(self) -> bool:
        return self.payers == 0 and self.riders == 0 and self.holds == 0


def within(segments: tuple[Segment, ...], tokens: int) -> tuple[Segment, ...]:
    """The leading segments that together have at most `tokens`: those of an over-counted prompt may not."""
    total = 0
    for index, segment in enumerate(segments):
        total += segment.tokens
        if total > tokens:
            return segments[:index]
    return segments


class PrefixLedger:
    """Reference-counted segments of one pool. `charged_tokens` is what they cost together."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self.charged_tokens = 0
        self.held_tokens = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def has(self, segment: Segment) -> bool:
        """Is it kept resident by somebody or a hold?"""
        node = self._nodes.get(segment.key)
        return node is not None and node.ready

    def ready(self, segments: tuple[Segment, ...]) -> tuple[int, int]:
        """How many leading segments are kept resident by others or a hold, and their tokens."""
        count = total = 0
        for segment in segments:
            node = self._nodes.get(segment.key)
            if node is None or not node.ready:
                break
            count += 1
            total += segment.tokens
        return count, total

    def acquire(self, segments: tuple[Segment, ...]) -> tuple[bool, ...]:
        """Take part in each segment; says for each whether this request pays for it."""
        paying: list[bool] = []
        riding = True
        for segment in segments:
            node = self._nodes.get(segment.key)
            if node is None:
                node = self._nodes[segment.key] = _Node(segment.tokens)
            riding = riding and node.ready
            before = self._take_out(node)
            if riding:
                node.riders += 1
            else:
                node.payers += 1
            self._put_back(node, before)
            paying.append(not riding)
        return tuple(paying)

    def take_over(self, segments: tuple[Segment, ...], paying: tuple[bool, ...]) -> tuple[bool, ...]:
        """What a hold has left to this holder alone it pays for from now on, as the charge says anyway."""
        now_paying = list(paying)
        for index, segment in enumerate(segments):
            node = self._nodes[segment.key]
            if not now_paying[index] and not node.payers:
                node.payers, node.riders = 1, node.riders - 1
                now_paying[index] = True
        return tuple(now_paying)

    def mark_ready(self, segments: tuple[Segment, ...], paying: tuple[bool, ...] = ()) -> tuple[bool, ...]:
        """A holder's prefill is done: its segments can be shared from now on.

        One that somebody else computed meanwhile is kept once: this holder rides, and no longer
        pays. Gives back what it still pays for.
        """
        still = list(paying or (False,) * len(segments))
        for index, segment in enumerate(segments):
            node = self._nodes[segment.key]
            if still[index] and node.ready and node.payers > 1:
                before = self._take_out(node)
                node.payers, node.riders = node.payers - 1, node.riders + 1
                self._put_back(node, before)
                still[index] = False
            node.ready = True
        return tuple(still)

    def release(self, segments: tuple[Segment, ...], paying: tuple[bool, ...]) -> list[Segment]:
        """Undo one `acquire`; gives back the segments that nobody uses or holds any more."""
        left: list[Segment] = []
        for segment, pays in zip(segments, paying, strict=True):
            node = self._nodes[segment.key]
            before = self._take_out(node)
            if (pays and node.payers) or not node.riders:
                node.payers -= 1
            else:
                node.riders -= 1
            if node.payers == 0 and node.riders:
                node.payers, node.riders = 1, node.riders - 1
            self._put_back(node, before)
            if node.unused:
                del self._nodes[segment.key]
                if node.ready:
                    left.append(segment)
        return left

    def hold(self, segments: tuple[Segment, ...]) -> None:
        """Keep segments that are in use now, whoever stops using them."""
        for segment in segments:
            node = self._nodes[segment.key]
            before = self._take_out(node)
            node.holds += 1
            self._put_back(node, before)

    def drop(self, segments: tuple[Segment, ...]) -> list[Segment]:
        """Undo one `hold`; gives back the segments that nobody uses or holds any more."""
        left: list[Segment] = []
        for segment in segments:
            node = self._nodes[segment.key]
            before = self._take_out(node)
            node.holds -= 1
            self._put_back(node, before)
            if node.unused:
                del self._nodes[segment.key]
                left.append(segment)
        return left

    def _take_out(self, node: _Node) -> tuple[int, int]:
        return node.charged_tokens, node.held_tokens

    def _put_back(self, node: _Node, before: tuple[int, int]) -> None:
        self.charged_tokens += node.charged_tokens - before[0]
        self.held_tokens += node.held_tokens - before[1]
