"""The bytes of one answer, as the transport delivers them."""

import asyncio
import contextlib

import httpx

from proxy.upstream.errors import UpstreamBroken
from proxy.upstream.link import reason_of
from proxy.upstream.reply import Reply

# For the few bytes that follow a failure, so that the connection can be used again.
_REST_SECONDS = 1.0
_LARGEST_REST_BYTES = 64 * 1024


class AnswerBytes:
    """Reads a response's raw body, one chunk when asked, and says in our words how it failed.

    `reading`: a read is under way. `cut`: the connection is gone, nothing more can be read.
    """

    __slots__ = ("_reply", "_stall_seconds", "cut", "reading")

    def __init__(self, response: httpx.Response, stall_seconds: float) -> None:
        # From here on bytes flow, and silence means trouble. The transport looks into this very
        # dict whenever it is asked for more of the body.
        response.request.extensions["timeout"]["read"] = stall_seconds
        assert isinstance(response.stream, Reply), "answers are read through make_client's transport"
        self._reply = response.stream
        self._stall_seconds = stall_seconds
        self.reading = False
        self.cut = False

    async def read(self) -> bytes:
        """What has come, or the next to come. Raises StopAsyncIteration behind the last, UpstreamBroken on
        failure. A read that is cancelled loses nothing: the next one, whoever's, goes on from there."""
        self.reading = True
        try:
            return await self._reply.__anext__()
        except httpx.ReadTimeout as error:
            self.cut = True
            raise UpstreamBroken(f"silent for {self._stall_seconds:g} s") from error
        except httpx.TransportError as error:
            self.cut = True
            raise UpstreamBroken(f"connection lost: {reason_of(error)}") from error
        finally:
            self.reading = False

    async def rest(self) -> tuple[bytes, bool]:
        """What follows, if it is short and comes at once; and whether it was all."""
        content = b""
        with contextlib.suppress(UpstreamBroken, TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                while len(content) < _LARGEST_REST_BYTES:
                    try:
                        content += await self.read()
                    except StopAsyncIteration:
                        return content, True
        return content, False

    async def close(self) -> None:
        """Gives the connection back where the body was complete, else closes it."""
        await self._reply.aclose()
