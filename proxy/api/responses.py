"""Which responses the servers keep for later: where each is, and what it takes to go on from it.

`/v1/responses` keeps answers at the one server that made them. A request that continues one
(`previous_response_id`), a poll of it and its cancellation must go there, and only its own tenant
may name it.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, replace

from proxy.admission.prefix import within
from proxy.admission.types import Segment
from proxy.api.record import Record
from proxy.tokens.chain import MOST_SEGMENTS as MOST_OF_ONE_PROMPT
from proxy.tokens.sized import Sized
from proxy.upstream.sglang import RESPONSES_PATH, ROUTES

MOST_KEPT = 20_000  # at about 1 KB
MOST_OF_ONE_TENANT = 5_000  # who makes many must not push out the others'
MOST_SEGMENTS = 100_000  # of all together, about 10 MB; the oldest lose theirs

PREFIX = ROUTES[RESPONSES_PATH].rid_prefix
_NAME = re.compile(re.escape(PREFIX) + "[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Kept:
    """One response at `pool`. A request that goes on from it has these `tokens` before its own.

    `segments` are what of them the engine probably has in its cache, as long as tools and
    instructions (`preamble`) stay the same: these come first, and each request brings its own.
    """

    pool: str
    tokens: int
    preamble: bytes = b""
    segments: tuple[Segment, ...] = ()

    def before(self, sized: Sized) -> Sized:
        """The size of a request that goes on from this one. It teaches nothing about counting."""
        shape = sized.shape
        return replace(
            sized,
            prompt_tokens=self.tokens + sized.prompt_tokens,
            raw_tokens=self.tokens + sized.raw_tokens,
            least_tokens=self.tokens + sized.least_tokens,
            exact=False,
            segments=self.segments if shape.preamble == self.preamble else (),
            by_model=False,
            estimate=None,
            conversation=None,
        )


class Responses:
    """All of them, by tenant and id; the least used are forgotten first."""

    def __init__(
        self,
        most: int = MOST_KEPT,
        most_of_one: int = MOST_OF_ONE_TENANT,
        most_segments: int = MOST_SEGMENTS,
    ) -> None:
        self._most, self._most_of_one, self._most_segments = most, most_of_one, most_segments
        self._tenants: dict[str, OrderedDict[str, Kept]] = {}
        self._order: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._segmented: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._segments = 0

    def __len__(self) -> int:
        return len(self._order)

    def find(self, tenant: str, name: str) -> Kept | None:
        """A response of this tenant; None for one that is unknown, forgotten, or another's."""
        if not _NAME.fullmatch(name):
            return None
        own = self._tenants.get(tenant, OrderedDict())
        kept = own.get(name)
        if kept is not None:
            own.move_to_end(name)
            self._order.move_to_end((tenant, name))
        return kept

    def note(self, record: Record, rid: str) -> None:
        """The response that comes of a request: its id once it is sent, its length once that is known."""
        sized, ticket = record.sized, record.ticket
        if sized is None or ticket is None or record.tenant is None or record.pool is None:
            return
        name, usage = PREFIX + rid, ticket.observed.usage
        tokens = sized.prompt_tokens + ticket.observed.generated_tokens
        if usage is not None:
            tokens = usage.prompt_tokens + (usage.completion_tokens or 0)
        segments = within(sized.segments, tokens)  # they may have been over-counted
        rest = tokens - sum(segment.tokens for segment in segments)
        whole = segments == sized.segments and len(segments) < MOST_OF_ONE_PROMPT
        own = (Segment(name.encode(), rest),) if rest and whole else ()
        self.keep(
            record.tenant.name, name, Kept(record.pool, tokens, sized.shape.preamble, (*segments, *own))
        )

    def keep(self, tenant: str, name: str, kept: Kept) -> None:
        """From now on it can be found."""
        self._drop(tenant, name)
        own = self._tenants.setdefault(tenant, OrderedDict())
        own[name] = kept
        self._order[tenant, name] = None
        if kept.segments:
            self._segmented[tenant, name] = len(kept.segments)
            self._segments += len(kept.segments)
        if len(own) > self._most_of_one:
            self._drop(tenant, next(iter(own)))
        while len(self._order) > self._most:
            self._drop(*next(iter(self._order)))
        while self._segments > self._most_segments:
            oldest = next(iter(self._segmented))
            self._forget_segments(oldest)
            own = self._tenants[oldest[0]]
            own[oldest[1]] = replace(own[oldest[1]], segments=())

    def _drop(self, tenant: str, name: str) -> None:
        own = self._tenants.get(tenant, OrderedDict())
        if own.pop(name, None) is None:
            return
        del self._order[tenant, name]
        self._forget_segments((tenant, name))
        if not own:
            del self._tenants[tenant]

    def _forget_segments(self, key: tuple[str, str]) -> None:
        self._segments -= self._segmented.pop(key, 0)
