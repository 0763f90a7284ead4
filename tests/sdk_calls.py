"""What the official SDKs are used for, as functions of a client: run directly and through the proxy.

Each gives plain data without what differs from one request to the next (ids, times).
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anthropic
import openai
from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": " import the file"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ANTHROPIC_TOOL: Any = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}
RESPONSES_TOOL: Any = {"type": "function", "strict": False, **TOOL["function"]}
SURE = {"temperature": 0}  # the SDK of Anthropic has no argument for it
_CHANGES = (
    "id",
    "sequence_number",
    "item_id",
    "call_id",
    "created",
    "created_at",
    "completed_at",
    "e2e_latency",
)

_TEXTS = ("delta", "content", "text")

OpenAICall = Callable[[openai.AsyncOpenAI, str], Awaitable[object]]
AnthropicCall = Callable[[anthropic.AsyncAnthropic, str], Awaitable[object]]


def plain(value: object) -> object:
    """Data of an SDK's objects, without ids and times."""
    if isinstance(value, BaseModel):
        value = value.model_dump(warnings=False)  # SGLang's `metadata` is not OpenAI's
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name not in _CHANGES}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def joined(events: Iterable[object]) -> list[object]:
    """Plain events of a stream; texts in a row as one, since the server cuts them as it is pressed."""
    found: list[tuple[object, list[str]]] = []
    for event in events:
        texts: list[str] = []
        shape = _without_texts(plain(event), texts)
        if found and found[-1][0] == shape and texts:
            found[-1] = shape, [before + text for before, text in zip(found[-1][1], texts, strict=True)]
        else:
            found.append((shape, texts))
    return list(found)


def _without_texts(value: object, texts: list[str]) -> object:
    if isinstance(value, list):
        return [_without_texts(item, texts) for item in value]
    if not isinstance(value, dict):
        return value
    shape = {}
    for name, item in value.items():
        is_text = name in _TEXTS and isinstance(item, str)
        if is_text:
            texts.append(item)
        shape[name] = "" if is_text else _without_texts(item, texts)
    return shape


# --- openai ---


async def chat(client: openai.AsyncOpenAI, model: str) -> object:
    return plain(
        await client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=8)
    )


async def chat_stream(client: openai.AsyncOpenAI, model: str) -> object:
    stream = await client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=8, stream=True
    )
    return joined([chunk async for chunk in stream])


async def chat_stream_with_usage(client: openai.AsyncOpenAI, model: str) -> object:
    stream = await client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    return joined([chunk async for chunk in stream])


async def tools(client: openai.AsyncOpenAI, model: str) -> object:
    return plain(
        await client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=8, tools=[TOOL]
        )
    )


async def tools_stream(client: openai.AsyncOpenAI, model: str) -> object:
    async with client.chat.completions.stream(
        model=model, messages=QUESTION, temperature=0, max_tokens=8, tools=[TOOL]
    ) as stream:
        types = [event.type async for event in stream]
        # how often each comes depends on how the server cuts the text, which is by time
        return list(dict.fromkeys(types)), plain(stream.current_completion_snapshot)


async def raw_response(client: openai.AsyncOpenAI, model: str) -> object:
    raw = await client.chat.completions.with_raw_response.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=8
    )
    return raw.status_code, raw.headers["content-type"], plain(raw.parse())


async def streaming_response(client: openai.AsyncOpenAI, model: str) -> object:
    async with client.chat.completions.with_streaming_response.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=8
    ) as raw:
        return raw.status_code, plain(await raw.parse())


async def completions(client: openai.AsyncOpenAI, model: str) -> object:
    return plain(await client.completions.create(model=model, prompt=" a file", temperature=0, max_tokens=4))


async def responses(client: openai.AsyncOpenAI, model: str) -> object:
    return plain(
        await client.responses.create(model=model, input=" a file", temperature=0, max_output_tokens=8)
    )


async def responses_with_tools(client: openai.AsyncOpenAI, model: str) -> object:
    return plain(
        await client.responses.create(
            model=model, input=" a file", temperature=0, max_output_tokens=8, tools=[RESPONSES_TOOL]
        )
    )


async def responses_stream(client: openai.AsyncOpenAI, model: str) -> object:
    stream = await client.responses.create(
        model=model, input=" a file", temperature=0, max_output_tokens=8, stream=True
    )
    return joined([event async for event in stream])


async def models(client: openai.AsyncOpenAI, model: str) -> object:
    return [plain(found) async for found in client.models.list()]


OPENAI: tuple[OpenAICall, ...] = (
    chat,
    chat_stream,
    chat_stream_with_usage,
    tools,
    tools_stream,
    raw_response,
    streaming_response,
    completions,
    responses,
    responses_with_tools,
    responses_stream,
    models,
)

# --- anthropic ---


async def message(client: anthropic.AsyncAnthropic, model: str) -> object:
    return plain(await client.messages.create(model=model, messages=QUESTION, extra_body=SURE, max_tokens=8))


async def message_with_tools(client: anthropic.AsyncAnthropic, model: str) -> object:
    return plain(
        await client.messages.create(
            model=model, messages=QUESTION, extra_body=SURE, max_tokens=8, tools=[ANTHROPIC_TOOL]
        )
    )


async def message_events(client: anthropic.AsyncAnthropic, model: str) -> object:
    stream = await client.messages.create(
        model=model, messages=QUESTION, extra_body=SURE, max_tokens=8, stream=True
    )
    return joined([event async for event in stream])


async def message_stream(client: anthropic.AsyncAnthropic, model: str) -> object:
    async with client.messages.stream(
        model=model, messages=QUESTION, extra_body=SURE, max_tokens=8, system="Be brief."
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        return text, plain(await stream.get_final_message())


async def raw_message(client: anthropic.AsyncAnthropic, model: str) -> object:
    raw = await client.messages.with_raw_response.create(
        model=model, messages=QUESTION, extra_body=SURE, max_tokens=8
    )
    return raw.status_code, plain(await raw.parse())


async def count_tokens(client: anthropic.AsyncAnthropic, model: str) -> object:
    return plain(await client.messages.count_tokens(model=model, messages=QUESTION))


ANTHROPIC: tuple[AnthropicCall, ...] = (
    message,
    message_with_tools,
    message_events,
    message_stream,
    raw_message,
    count_tokens,
)
