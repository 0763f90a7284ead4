"""Who pays for a shared prefix.

SGLang keeps one copy of a prefix that several requests use, once the first of them has
computed it. So a segment is charged once per *payer*: a request that starts before the segment
is ready computes its own copy and pays; one that starts after rides along for free. When the
last payer ends, a rider takes the charge over: never twice, never zero while anyone uses it.
"""

from dataclasses import dataclass

from proxy.admission.types import Segment


@dataclass(slots=True)
class _Node:
    tokens: int
    payers: int = 0
    riders: int = 0
    ready: bool = False

    @property
    def charged_tokens(self) -> int:
        return self.tokens * max(self.payers, 1 if self.riders else 0)


class PrefixLedger:
    """Reference-counted segments of one pool. `charged_tokens` is what they cost together."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        self.charged_tokens = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def ready_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Tokens of the leading segments that a running request already keeps resident."""
        total = 0
        for segment in segments:
            node = self._nodes.get(segment.key)
            if node is None or not node.ready:
                break
            total += segment.tokens
        return total

    def acquire(self, segments: tuple[Segment, ...]) -> tuple[bool, ...]:
        """Take part in each segment; says for each whether this request pays for it."""
        paying: list[bool] = []
        riding = True
        for segment in segments:
            node = self._nodes.get(segment.key)
            if node is None:
                node = self._nodes[segment.key] = _Node(segment.tokens)
            riding = riding and node.ready
            before = node.charged_tokens
            if riding:
                node.riders += 1
            else:
                node.payers += 1
            self.charged_tokens += node.charged_tokens - before
            paying.append(not riding)
        return tuple(paying)

    def mark_ready(self, segments: tuple[Segment, ...]) -> None:
        """A holder's prefill is done: its segments can be shared from now on."""
        for segment in segments:
            self._nodes[segment.key].ready = True

    def release(self, segments: tuple[Segment, ...], paying: tuple[bool, ...]) -> None:
        """Undo one `acquire`; the last holder of a segment removes it."""
        for segment, pays in zip(segments, paying, strict=True):
            node = self._nodes[segment.key]
            before = node.charged_tokens
            if pays and node.payers:
                node.payers -= 1
            elif node.riders:
                node.riders -= 1
            else:
                node.payers -= 1  # a rider that had taken the charge over
            if node.payers == 0 and node.riders:
                node.payers, node.riders = 1, node.riders - 1
            self.charged_tokens += node.charged_tokens - before
            if node.payers == 0 and node.riders == 0:
                del self._nodes[segment.key]
