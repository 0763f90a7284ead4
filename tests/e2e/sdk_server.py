"""Answers of SGLang to what the official SDKs ask, always the same, so that two of them can be compared."""

from typing import Any

from tests.e2e.response_server import document
from tests.fakes import DONE, Received, Wire, chat_body, chat_event, chat_stream, event

TOOL_CALL = {"id": "call_1", "index": 0, "type": "function"}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Hello there"}],
    "model": "tiny",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 12, "output_tokens": 2},
}
RESPONSE = "resp_" + "1" * 32


async def answer(request: Received, wire: Wire) -> None:
    """One answer, by the path and whether a stream is asked for."""
    body = request.json()
    stream = bool(body.get("stream"))
    match request.target.partition("?")[0], stream:
        case "/v1/chat/completions", False:
            await wire.json(_tool_body() if body.get("tools") else chat_body())
        case "/v1/chat/completions", True:
            wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            await _send(wire, _tool_stream() if body.get("tools") else chat_stream(usage=wants_usage))
        case "/v1/completions", _:
            choice = {"index": 0, "text": " w w", "logprobs": None, "finish_reason": "length"}
            whole = {"id": "x", "object": "text_completion", "created": 1, "model": "tiny"}
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            await wire.json({**whole, "choices": [choice], "usage": usage})
        case "/v1/embeddings", _:
            given = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [{"object": "embedding", "index": i, "embedding": [0.5, i]} for i in range(len(given))]
            used = {"prompt_tokens": 4, "total_tokens": 4}
            await wire.json({"object": "list", "model": "tiny", "data": data, "usage": used})
        case "/v1/responses", False:
            await wire.json(document(RESPONSE))
        case "/v1/responses", True:
            await _send(wire, _response_stream())
        case "/v1/messages", False:
            await wire.json(MESSAGE)
        case "/v1/messages", True:
            await _send(wire, _message_stream())
        case "/v1/messages/count_tokens", _:
            await wire.json({"input_tokens": 12})
        case _:
            await wire.json({"object": "error", "message": "not here", "code": 404}, 404)


async def _send(wire: Wire, events: list[bytes]) -> None:
    await wire.begin()
    for item in events:
        await wire.chunk(item)
    await wire.end()


def _tool_body() -> dict[str, Any]:
    body = chat_body()
    call = {**TOOL_CALL, "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    return body


def _tool_stream() -> list[bytes]:
    calls = [
        [{**TOOL_CALL, "function": {"name": "weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"city": '}}],
        [{"index": 0, "function": {"arguments": '"Oslo"}'}}],
    ]
    deltas = [chat_event(None, tool_calls=call) for call in calls]
    return [chat_event("", role="assistant"), *deltas, chat_event(finish="tool_calls"), DONE]


def _response_stream() -> list[bytes]:
    part = {"type": "output_text", "text": "", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    done = document(RESPONSE)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": document(RESPONSE, "in_progress")},
        {"type": "response.in_progress", "response": document(RESPONSE, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "H", "logprobs": []},
        {"type": "response.output_text.delta", **place, "delta": "i", "logprobs": []},
        {"type": "response.output_text.done", **place, "text": "Hi", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": {**part, "text": "Hi"}},
        {"type": "response.output_item.done", "output_index": 0, "item": done["output"][0]},
        {"type": "response.completed", "response": done},
    ]
    return [event({**e, "sequence_number": i}, e["type"]) for i, e in enumerate(events)]


def _message_stream() -> list[bytes]:
    start = {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 12, "output_tokens": 0}}
    text = {"type": "text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " there"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 12, "output_tokens": 2},
        },
        {"type": "message_stop"},
    ]
    return [event(e, e["type"]) for e in events]
