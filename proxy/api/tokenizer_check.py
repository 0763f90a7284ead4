"""Asks a server that came up whether it counts as we do, where counts are meant to be exact."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx
import orjson

from proxy.tokens.selfcheck import SelfCheck, self_check
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.sglang import TOKENIZE_PATH

logger = logging.getLogger("proxy.tokens")
ASK_SECONDS = 10.0


class TokenizerCheck:
    """One check at a time for each backend; the last verdicts are kept for `/admission/status`."""

    def __init__(self, sizer: Sizer, backend_of: Callable[[str], Backend]) -> None:
        self.verdicts: dict[str, SelfCheck] = {}
        self._sizer = sizer
        self._backend_of = backend_of
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ready = asyncio.Event()

    def counter_ready(self) -> None:
        """The tokenizer is loaded: what came up before can be checked now."""
        self._ready.set()

    def pool_up(self, pool: str) -> None:
        """A server is there, or there again: another model may run on it now."""
        backend = self._backend_of(pool)
        if backend.info is not None:
            self._sizer.serves(backend.info.models, backend.info.tokenizer_path)
        if self._sizer.meant_exact and backend.name not in self._tasks:
            task = asyncio.create_task(self._check(backend))
            self._tasks[backend.name] = task
            task.add_done_callback(lambda _: self._tasks.pop(backend.name, None))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _check(self, backend: Backend) -> None:
        await self._ready.wait()

        async def ask(body: dict[str, Any]) -> int | None:
            answer = await backend.link.post(TOKENIZE_PATH, orjson.dumps(body), seconds=ASK_SECONDS)
            document = orjson.loads(answer.content) if answer.status_code == 200 else None
            count = document.get("count") if isinstance(document, dict) else None
            return count if isinstance(count, int) else None

        try:
            found = await self_check(self._sizer, ask)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            logger.warning("%s: the tokenizer could not be checked (%s)", backend.name, type(error).__name__)
            return
        self.verdicts[backend.name] = found
        logger.log(logging.WARNING if found.wrong else logging.INFO, "%s: %s", backend.name, found.verdict)
