"""Where conversations are resident, and how long their context is held between two turns.

An agent with a 64K context returns every few seconds with 1K more. Served first come first
served among twenty such agents, each turn finds its context evicted and prefills it again.
Limiting who is active (CONCUR) and waiting briefly for the next request of the same stream
(anticipatory scheduling, Iyer and Druschel 2001) keeps it: after a turn the context is held for
a few times the conversation's usual think time, and the hold becomes the next turn's charge.
Nobody owns the pool: while others wait, a conversation that had its quantum is not held again.
"""

from collections import OrderedDict
from dataclasses import dataclass

from proxy.admission.types import Request, Segment

CONVERSATIONS_KEPT = 20_000
THINK_SECONDS = 5.0  # until one was seen
THINK_WEIGHT = 0.3
# A first turn without a session's name may be all there is. It is held if enough of them came back lately.
RETURN_SHARE = 0.2  # until one did or did not: the first that is seen to come back is enough
RETURN_WEIGHT = 0.2
MIN_RETURN_SHARE = 0.3
HOLD_THINKS = 3.0  # how many think times a hold lasts while nobody waits,
HOLD_THINKS_WAITING = 2.0  # and while somebody does
MIN_HOLD_TOKENS = 2048  # a smaller context is prefilled again in no time
# Of B. At a half, two of three 50K contexts of the 186,624-token pool cannot be held at once, and the
# third slot turns over with every turn: 0.19 turns/s instead of 0.24 (twenty agents, virtual time).
MAX_HELD_SHARE = 0.85
QUANTUM_SECONDS = 40.0  # how long a context may stay while others wait: the curve is in docs/algorithm.md,
QUANTUM_PREFILLS = 5.0  # or so many times what its prefill cost


@dataclass(slots=True)
class Conversation:
    """What is known of one conversation. `tail` is the key of its last closed segment."""

    tail: bytes
    explicit: bool
    pool: str = ""
    turns: int = 0
    prompt_tokens: int = 0  # of its last turn
    think_seconds: float = THINK_SECONDS
    followed: bool | None = None  # whether a second turn came after the first; None: not known yet
    ended_at: float | None = None
    running: int = 0
    resident_since: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Hold:
    """A context that is kept for its conversation's next turn."""

    conversation: Conversation
    segments: tuple[Segment, ...]
    tokens: int
    since: float
    until: float
    tenant: str = "default"

    def falls_at(self, max_bypass_seconds: float) -> float:
        """When it gives way to somebody who waits."""
        patience = HOLD_THINKS_WAITING * self.conversation.think_seconds
        return min(self.until, self.since + min(max_bypass_seconds, patience))


class IdleCache:
    """What the engine's radix cache probably still has of finished requests: LRU of segments."""

    def __init__(self) -> None:
        self._segments: OrderedDict[bytes, int] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment.key in self._segments

    def add(self, segments: list[Segment]) -> None:
        """Nobody uses these any more; the engine evicts leaves first, so the last goes first."""
        for segment in reversed(segments):
            self.tokens += segment.tokens - self._segments.pop(segment.key, 0)
            self._segments[segment.key] = segment.tokens

    def take(self, segments: tuple[Segment, ...]) -> None:
        """In use again."""
        for segment in segments:
            self.tokens -= self._segments.pop(segment.key, 0)

    def known_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Tokens of the leading segments that are probably cached."""
        total = 0
        for segment in segments:
            if segment.key not in self._segments:
                break
            total += segment.tokens
        return total

    def trim(self, room_tokens: int) -> None:
        """The engine has only so much room for what nobody uses."""
        while self.tokens > room_tokens and self._segments:
            _, tokens = self._segments.popitem(last=False)
            self.tokens -= tokens

    def clear(self) -> None:
        self._segments.clear()
        self.tokens = 0


class Conversations:
    """All conversations, found again by an explicit key or by the chain of their segments."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, Conversation] = OrderedDict()
        self.return_share = RETURN_SHARE  # of first turns without a name that a second one followed
        self.think_seconds = THINK_SECONDS  # what is usual

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, request: Request) -> Conversation | None:
        """The conversation that `request` continues."""
        if request.session:
            return self._by_key.get(_session_key(request))
        for segment in reversed(request.segments):
            found = self._by_key.get(segment.key)
            if found is not None and not found.explicit:
                return found
        return None

    def resumed(self, request: Request, arrived_at: float) -> Conversation | None:
        """A turn that came at `arrived_at` takes its place; None for a prompt too short to recognise."""
        if not request.segments:
            return None
        found = self.find(request)
        if found is None:
            key = _session_key(request) if request.session else request.segments[-1].key
            found = Conversation(key, bool(request.session), think_seconds=self.think_seconds)
            self._keep(found)
        elif found.ended_at is not None and not found.running:
            think = max(0.0, arrived_at - found.ended_at)
            found.think_seconds += THINK_WEIGHT * (think - found.think_seconds)
            self.think_seconds += THINK_WEIGHT * (think - self.think_seconds)
        if request.prompt_tokens > found.prompt_tokens:
            found.turns += 1  # the same prompt once more, a retry or a benchmark, is no next turn
        found.prompt_tokens = request.prompt_tokens
        found.running += 1
        return found

    def continues(self, conversation: Conversation, request: Request) -> None:
        """Its history is now this request's prompt."""
        if conversation.explicit or not request.segments:
            return
        tail = request.segments[-1].key
        if tail != conversation.tail:
            self._by_key.pop(conversation.tail, None)
            conversation.tail = tail
        self._keep(conversation)

    def hold_seconds(self, conversation: Conversation, prefill_seconds: float) -> float:
        """How long to keep its context for a next turn; 0 when none is to be expected.

        One that is not sure to come is waited for no longer than computing the context anew would
        take: so waiting costs at most twice what knowing would have (the ski-rental bound).
        """
        if conversation.explicit or conversation.turns >= 2:
            return HOLD_THINKS * conversation.think_seconds
        if self.return_share < MIN_RETURN_SHARE:
            return 0.0
        return min(HOLD_THINKS * conversation.think_seconds, prefill_seconds)

    def stayed_away(self, conversation: Conversation) -> None:
        """Its context was held as long as it could be, and no next turn came."""
        conversation.tokens = 0
        self._learn_return(conversation, followed=False)

    def goes_on(self, request: Request) -> bool:
        """A request has arrived: will another turn follow? Learns when it is itself a second one."""
        if not request.segments or request.prompt_tokens < MIN_HOLD_TOKENS:
            return False
        if request.session:
            return True
        found = self.find(request)
        if found is not None and request.prompt_tokens > found.prompt_tokens:
            self._learn_return(found, followed=True)
            return True
        return self.return_share >= MIN_RETURN_SHARE

    def _learn_return(self, conversation: Conversation, *, followed: bool) -> None:
        if conversation.followed is None and not conversation.explicit:
            conversation.followed = followed
            self.return_share += RETURN_WEIGHT * (followed - self.return_share)

    def _keep(self, conversation: Conversation) -> None:
        self._by_key[conversation.tail] = conversation
        self._by_key.move_to_end(conversation.tail)
        while len(self._by_key) > CONVERSATIONS_KEPT:
            self._by_key.popitem(last=False)


def quantum_seconds(prefill_seconds: float) -> float:
    """How long a context may stay while others wait, if computing it takes that long."""
    return max(QUANTUM_SECONDS, QUANTUM_PREFILLS * prefill_seconds)


def _session_key(request: Request) -> bytes:
    return b"session\x00" + request.tenant.encode() + b"\x00" + request.session.encode()
