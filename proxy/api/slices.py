"""Carries out one request's sliced prefill: gets its ids, sends the slices the gate asks for."""

import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

from proxy.upstream.backend import Backend
from proxy.upstream.prefix import PromptIds, fetch_ids, prefill

RID_BYTES = 16


class Listener(Protocol):
    """Who wants to know how it goes."""

    def sliceable(self, rid: str, prompt_tokens: int | None) -> None:
        """The ids are here, so many; None: they will not come."""

    def slice_done(self, rid: str, end_tokens: int, cached_tokens: int | None) -> None:
        """A slice was answered."""


class SlicedPrefill:
    """Ids and slices of one request. Its tasks end by themselves."""

    def __init__(
        self,
        rid: str,
        body: bytes,
        listener: Listener,
        backend_of: Callable[[str], Backend],
        count_here: Callable[[bytes], Awaitable[list[int] | None]],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._rid = rid
        self._body = body
        self._listener = listener
        self._count_here = count_here
        self._backend_of = backend_of
        self._ids: PromptIds | None = None
        self.by_server = False
        self.sent = 0
        self._spawn = spawn

    @property
    def ids(self) -> bytes | None:
        """All ids of the prompt, comma-separated, where the server itself has made them.

        Ids made here key the cache as well, but are never sent in place of the client's text.
        """
        return self._ids.first(len(self._ids)) if self._ids is not None and self.by_server else None

    def tokenize(self, pool: str) -> None:
        """Get the ids: the request's turn is near."""
        self._spawn(self._tokenize(pool))

    def send(self, pool: str, end_tokens: int) -> None:
        """Have `pool` prefill the first `end_tokens` ids."""
        self.sent += 1
        self._spawn(self._send(pool, self._ids, end_tokens))

    def close(self) -> None:
        """The request itself is on its way, or over: the ids are not needed any more."""
        self._ids = None
        self._body = b""

    async def _tokenize(self, pool: str) -> None:
        ids = None
        try:
            if self._body:
                here = await self._count_here(self._body)
                ids = await fetch_ids(self._backend_of(pool).link, self._body) if here is None else None
                ids = self._ids = PromptIds.of(here) if here is not None else ids
                self.by_server = here is None
        finally:
            self._listener.sliceable(self._rid, None if ids is None else len(ids))

    async def _send(self, pool: str, ids: PromptIds | None, end_tokens: int) -> None:
        cached = None
        try:
            if ids is not None:
                backend = self._backend_of(pool)
                rid = secrets.token_hex(RID_BYTES)
                cached = await prefill(backend.link, ids, end_tokens, rid, backend.rank_of(pool))
        finally:
            self._listener.slice_done(self._rid, end_tokens, cached)
