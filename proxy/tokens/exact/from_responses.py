"""A /v1/responses body as the chat request that SGLang makes of it.

Follows 0.5.23, entrypoints/openai/serving_responses.py, `_make_request`. With an earlier response's
id the history is on the server: not to be known here.
"""

from typing import Any

import orjson

_DEVELOPER = "Developer instructions:"
_TEXT_TYPES = ("text", "input_text", "output_text")


def from_responses(body: dict[str, Any], *, inline_system: bool) -> dict[str, Any] | None:
    """The chat request for a body that `read_responses` accepted, None when it cannot be known.

    `inline_system`: the template takes system messages in the middle of a conversation.
    """
    if body.get("previous_response_id") is not None:
        return None
    tools = body.get("tools") or []
    if any(tool.get("type") != "function" for tool in tools):
        return None
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    for item in items:
        message = _message(item)
        if message is None:
            return None
        messages.append(message)
    messages = _merged(messages)
    if not inline_system:
        messages = _leading_system(messages)
    reasoning = body.get("reasoning")
    return {
        "messages": messages,
        "tools": [_tool(tool) for tool in tools],
        "tool_choice": _choice(body.get("tool_choice")),
        "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, dict) else None,
        "chat_template_kwargs": body.get("chat_template_kwargs"),
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function | {"strict": tool.get("strict", False)}}


def _choice(choice: object) -> object:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _message(item: dict[str, Any]) -> dict[str, Any] | None:
    kind = item.get("type")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": _arguments(item.get("arguments"))}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output")
        if not isinstance(output, str):
            return None
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
    if kind not in (None, "message"):
        return None
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or not isinstance(content, str | list):
        return None
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") not in _TEXT_TYPES for part in content):
            return None
        content = [{"type": "text", "text": part.get("text")} for part in content]
    if role == "developer":
        role, content = "system", _labelled(content)
    phase = item.get("phase")
    return {"role": role, "content": content} | ({"phase": phase} if phase is not None else {})


def _labelled(content: Any) -> Any:
    if isinstance(content, str):
        return f"{_DEVELOPER}\n{content}"
    if not content:
        return [{"type": "text", "text": _DEVELOPER}]
    return [{"type": "text", "text": f"{_DEVELOPER}\n{content[0]['text']}"}, *content[1:]]


def _arguments(given: object) -> object:
    if isinstance(given, str):
        try:
            given = orjson.loads(given) if given else None
        except orjson.JSONDecodeError:
            given = None
    return given if isinstance(given, dict) else {}


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of assistant messages as one: texts joined, calls one after the other."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else {}
        both = last.get("role") == message["role"] == "assistant"
        if not both or last.get("phase") != message.get("phase"):
            merged.append(message)
            continue
        joined = dict(last)
        joined["content"] = _both(last.get("content"), message.get("content"))
        calls = (last.get("tool_calls") or []) + (message.get("tool_calls") or [])
        merged[-1] = joined | ({"tool_calls": calls} if calls else {})
    return merged


def _both(first: Any, second: Any) -> Any:
    if not second:
        return first
    if not first:
        return second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = (
        [{"type": "text", "text": given}] if isinstance(given, str) else given for given in (first, second)
    )
    return [part for given in parts for part in given]


def _leading_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system messages as one at the start, for templates that take no others."""
    texts: list[str] = []
    for message in messages:
        if message["role"] == "system":
            content = message["content"]
            texts.extend([content] if isinstance(content, str) else [part["text"] for part in content])
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others] if texts else others
