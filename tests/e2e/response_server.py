"""What `/v1/responses` of SGLang does when its response store is switched on, on top of the fake server."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import FakeServer, Received, Wire, event


def document(name: str, status: str = "completed", input_tokens: int = 40) -> dict[str, Any]:
    usage = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 60,
        "total_tokens": input_tokens + 60,
    }
    ended = status in ("completed", "incomplete")
    output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
               "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}]  # fmt: skip
    return {
        "id": name,
        "object": "response",
        "created_at": 1,
        "model": "tiny",
        "output": output if ended else [],
        "status": status,
        "usage": usage if ended else None,
        "error": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


@dataclass
class ResponseServer(FakeServer):
    """Keeps responses. One in the background runs until a test sets its status."""

    input_tokens: int = 40  # that every response reports
    kept: dict[str, str] = field(default_factory=dict)  # status by id
    polls: list[str] = field(default_factory=list)
    slow: asyncio.Event | None = None  # while set, a new response is answered only when it fires

    def end(self, name: str, status: str = "completed") -> None:
        self.kept[name] = status

    def names(self) -> list[str]:
        return list(self.kept)

    async def _respond(self, request: Received, wire: Wire) -> None:
        path = request.target.partition("?")[0]
        if not path.startswith("/v1/responses"):
            await super()._respond(request, wire)
        elif request.method == "GET":
            self.polls.append(path)
            await self._tell(path.rpartition("/")[2], wire)
        elif path.endswith("/cancel"):
            name = path.split("/")[3]
            if self.kept.get(name) in ("queued", "in_progress"):
                self.kept[name] = "cancelled"
            await self._tell(name, wire)
        else:
            await self._create(request, wire)

    async def _tell(self, name: str, wire: Wire) -> None:
        if name in self.kept:
            await wire.json(document(name, self.kept[name], self.input_tokens))
        else:
            await wire.json({"error": {"message": f"Response with id '{name}' not found.", "code": 404}}, 404)

    async def _create(self, request: Received, wire: Wire) -> None:
        body = request.json()
        name = body["request_id"]
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            await wire.json({"error": {"message": "not found", "code": 404}}, 404)
            return
        if body.get("background") and not body.get("stream"):
            self.kept[name] = "queued"
            if self.slow is not None:
                await self.slow.wait()
            await wire.json(document(name, "queued"))
            return
        self.kept[name] = "completed"
        if not body.get("stream"):
            await wire.json(document(name, input_tokens=self.input_tokens))
            return
        await wire.begin()
        await wire.chunk(
            event({"type": "response.created", "response": document(name, "in_progress")}, "response.created")
            + event({"type": "response.output_text.delta", "delta": "Hi"}, "response.output_text.delta")
            + event({"type": "response.completed", "response": document(name)}, "response.completed")
        )
        await wire.end()
