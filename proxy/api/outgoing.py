"""The client's side of one request: one head, then bytes, and one end."""

from proxy.admission.types import Lane
from proxy.api.answers import Answer, error_event
from proxy.api.asgi import Send, answer
from proxy.api.headers import Headers
from proxy.tokens.shape import Api


class Outgoing:
    """What is sent to one client. `status` is what became of its request, 0 while that is open."""

    __slots__ = ("_request_id", "_send", "api", "committed", "sent_bytes", "started", "status")

    def __init__(self, api: Api, send: Send, request_id: str) -> None:
        self.api = api
        self.status = 0
        self.started = False  # its answer has begun: there is no other any more
        self.committed = False  # a 200 went ahead: whatever comes now comes as events
        self.sent_bytes = 0  # of a backend's answer, as it went on
        self._send = send
        self._request_id = request_id

    async def commit(self, lane: Lane) -> None:
        """The head of a stream whose outcome is not known yet."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would keep small events to itself
            (b"x-admission-lane", lane.value.encode()),
            (b"x-request-id", self._request_id.encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self.committed = True

    async def whole(self, reply: Answer) -> None:
        """An answer of ours, from its status to its end; as an error event where that is too late."""
        self.status = reply.status
        self.started = True
        if self.committed:
            await self.end(error_event(self.api, reply))
        else:
            await answer(self._send, reply, self._request_id)

    async def begin(self, status: int, headers: Headers) -> None:
        """The head of a backend's answer; of a stream, the client may have one already."""
        self.status = status
        self.started = True
        if not self.committed:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def chunk(self, data: bytes) -> None:
        """More of the body; returns when the client is ready for the next."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.sent_bytes += len(data)

    async def end(self, data: bytes = b"") -> None:
        """The body's last bytes. Without it the server cuts the connection: an incomplete body."""
        await self._send({"type": "http.response.body", "body": data})
