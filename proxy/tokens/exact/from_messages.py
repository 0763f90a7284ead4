"""A /v1/messages body as the chat request that SGLang makes of it.

Follows 0.5.23, entrypoints/anthropic/serving.py, `_convert_to_chat_completion_request`. What depends
on how the server was started (earlier thinking, switching it off) is not guessed.
"""

from typing import Any

from proxy.tokens.anthropic import chat_tools

_CARRIED = ("text", "image", "tool_use", "tool_result")


def from_messages(body: dict[str, Any], *, inline_system: bool) -> dict[str, Any] | None:
    """The chat request for a body that `read_messages` accepted, None when it cannot be known.

    `inline_system`: the template takes system messages in the middle of a conversation.
    """
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return None
    system = [text for text in _texts(body.get("system")) if text]
    if isinstance(body.get("system"), str) and body["system"].isspace():
        system = []
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        if message["role"] == "system" and not inline_system:
            system.extend(text.strip() for text in _texts(message["content"]) if text.strip())
        elif not _add(messages, message):
            return None
    if system:
        messages.insert(0, {"role": "system", "content": "\n".join(system)})
    return {"messages": messages, **_options(body, thinking)}


def _options(body: dict[str, Any], thinking: object) -> dict[str, Any]:
    options: dict[str, Any] = {"tools": chat_tools(body)}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool":
        options["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    variables: dict[str, Any] = {}
    if isinstance(thinking, dict):
        variables |= {"thinking": True, "enable_thinking": True}
    output = body.get("output_config")
    if isinstance(output, dict) and output.get("effort"):
        effort = output["effort"]
        variables["reasoning_effort"] = "max" if effort == "xhigh" else effort
    return options | ({"chat_template_kwargs": variables} if variables else {})


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [block["text"] for block in blocks if _is_text(block)]


def _is_text(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> bool:
    """Adds what one message becomes; False when it holds something that is not carried over."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return True
    if any(not isinstance(block, dict) or block.get("type") not in _CARRIED for block in content):
        return False
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        kind = block["type"]
        if kind == "tool_use":
            function = {"name": block.get("name") or "", "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            _flush(messages, parts)
            result = _result(block.get("content"))
            if result is None:
                return False
            call_id = block.get("tool_use_id") or block.get("id") or ""
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        elif kind == "tool_result":
            return False
        else:
            parts.append(
                {"type": "text", "text": block.get("text")} if kind == "text" else {"type": "image_url"}
            )
    if role == "user":
        _flush(messages, parts)
    else:
        said = {"role": role, "content": _joined(parts) if parts else ("" if not calls else None)}
        messages.append(said | ({"tool_calls": calls} if calls else {}))
    return True


def _flush(messages: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    if parts:
        messages.append({"role": "user", "content": _joined(parts)})
        parts.clear()


def _joined(parts: list[dict[str, Any]]) -> Any:
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return list(parts)


def _result(content: object) -> Any:
    """A tool's result as the content of a message, None when it holds what is not carried over."""
    if not isinstance(content, list):
        return str(content) if content else ""
    parts: list[dict[str, Any]] = []
    for block in content:
        if _is_text(block):
            parts.extend([{"type": "text", "text": block["text"]}] if block["text"] else [])
        elif isinstance(block, dict) and block.get("type") == "image":
            parts.append({"type": "image_url"})
        else:
            return None
    return _joined(parts) if parts else ""
