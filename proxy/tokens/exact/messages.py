"""What SGLang hands to a chat template, from the body of a chat completion request.

Follows 0.5.23, entrypoints/openai/serving_chat.py (`_apply_jinja_template`) and protocol.py: its
models drop unknown fields and print missing ones as null, arguments of tool calls become objects, a
final assistant message becomes the user's unless it is to be continued.
"""

from typing import Any, NamedTuple

import orjson

from proxy.tokens.chat import chosen_tools
from proxy.tokens.tools import as_rendered

_TEXT_TYPES = ("text", "input_text")
_MEDIA_TYPES = {
    "image_url": "image", "input_image": "image", "video_url": "video",
    "audio_url": "audio", "input_audio": "audio",
}  # fmt: skip
# In the order of SGLang's model, which is the order in which a template that prints a message sees them.
_FIELDS = ("tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix")


class ChatInput(NamedTuple):
    """The arguments of a template, and the text that continues the final message after it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    options: dict[str, Any]
    continued: str


def chat_input(body: dict[str, Any], *, parts: bool, reorders: bool) -> ChatInput:
    """Reads a body that `read_chat` has accepted. `parts`, `reorders`: see `ChatTemplate`."""
    messages = [_dumped(message) for message in body["messages"]]
    if reorders:
        messages = _in_order_of_calls(messages)
    messages = [_contents(message, parts=parts) for message in messages]
    continued = ""
    last = messages[-1]
    if last["role"] == "assistant" and isinstance(last.get("content"), str):
        if body.get("continue_final_message"):
            continued = last["content"]
            messages.pop()
        else:
            messages[-1] = {"role": "user", "content": last["content"]}
    tools = as_rendered(chosen_tools(body)) or None
    return ChatInput(messages, tools, _options(body), continued)


def _dumped(message: dict[str, Any]) -> dict[str, Any]:
    """A message as SGLang's models keep it; of a user's only role and content."""
    role = message["role"]
    if role == "user":
        return {"role": role, "content": message.get("content")}
    kept: dict[str, Any] = {"role": role.lower(), "content": message.get("content")}
    for name in _FIELDS:
        if message.get(name) is not None:
            kept[name] = message[name]
    if isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call, parse=kept["role"] == "assistant") for call in kept["tool_calls"]]
    if isinstance(kept.get("tools"), list):
        kept["tools"] = as_rendered(kept["tools"])
    return kept


def _call(call: dict[str, Any], *, parse: bool) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if parse and isinstance(arguments, str):
        arguments = orjson.loads(arguments)
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _in_order_of_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool results with media in the order of the calls they answer."""
    ordered: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        ordered.append(message)
        position += 1
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        if not calls:
            continue
        end = position
        while end < len(messages) and messages[end]["role"] in ("tool", "function"):
            end += 1
        ordered.extend(_sorted_run(messages[position:end], [call["id"] for call in calls]))
        position = end
    return ordered


def _sorted_run(run: list[dict[str, Any]], call_ids: list[Any]) -> list[dict[str, Any]]:
    results = [message.get("tool_call_id") for message in run]
    known = set(call_ids)
    if (
        len(run) < 2
        or None in known
        or len(known) != len(call_ids)
        or len(set(results)) != len(results)
        or not known.issuperset(results)
        or not any(_has_media(message) for message in run)
    ):
        return run
    return sorted(run, key=lambda message: call_ids.index(message["tool_call_id"]))


def _has_media(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") in _MEDIA_TYPES for part in content
    )


def _contents(message: dict[str, Any], *, parts: bool) -> dict[str, Any]:
    content = message["content"]
    if content is None:
        return message | {"content": ""}
    if not isinstance(content, list):
        return message
    if not parts:
        texts = [part["text"] for part in content if _is_text(part)]
        return message | {"content": " ".join(texts)}
    kept = [_part(part) for part in content if isinstance(part, dict)]
    listed = [part for part in kept if part is not None]
    if message["role"] == "tool" and all(part["type"] == "text" for part in listed):
        return message | {"content": " ".join(part["text"] for part in listed)}
    others = {name: value for name, value in message.items() if name != "content"}
    return others | {"content": listed}


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str)


def _part(part: dict[str, Any]) -> dict[str, Any] | None:
    if _is_text(part):
        return {"type": "text", "text": part["text"]}
    kind = part.get("type")
    if kind in _MEDIA_TYPES:
        return {"type": _MEDIA_TYPES[kind]}
    return {"type": kind, "name": part.get("name")} if kind == "tool_reference" else None


def _options(body: dict[str, Any]) -> dict[str, Any]:
    """The variables a client may set: `chat_template_kwargs`, the effort, and what follows from it."""
    given = body.get("chat_template_kwargs")
    options = dict(given) if isinstance(given, dict) else {}
    effort, thinking = _effort(body), None
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and _enabled(reasoning):
        thinking = True
    if effort is not None:
        thinking = effort != "none"
    if thinking is not None:
        options.setdefault("thinking", thinking)
        options.setdefault("enable_thinking", thinking)
    effort = options.get("reasoning_effort", effort)
    return options if effort is None else {"reasoning_effort": effort} | options


def _enabled(reasoning: dict[str, Any]) -> bool:
    value = reasoning.get("enabled")
    if value is None:
        value = reasoning.get("enable", False)
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "y", "on")
    return bool(value)


def _effort(body: dict[str, Any]) -> Any:
    reasoning = body.get("reasoning")
    effort = body.get("reasoning_effort")
    if isinstance(reasoning, dict):
        given = reasoning.get("effort")
        effort = (given if given is not None else reasoning.get("reasoning_effort")) or effort
    if isinstance(effort, str) and effort.replace(".", "", 1).isdigit():
        return float(effort)
    return float(effort) if type(effort) is int else effort
