"""/v1/messages, the Anthropic API as SGLang serves it."""

import re
from typing import Any

from proxy.tokens import fields
from proxy.tokens.chat import REPLY_TOKENS
from proxy.tokens.content import MESSAGE_TOKENS, add_content, dumped
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import cache_scope, media_count, media_tokens
from proxy.tokens.shape import Api, BadRequest, Prompt, Reading, Shape, Unit
from proxy.tokens.tools import as_rendered


def read_messages(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompt of a messages request. `max_tokens` is required there."""
    messages = fields.array(body, "messages")
    if not messages:
        raise BadRequest("messages must be a non-empty array", "messages")
    max_tokens = fields.integer(body, "max_tokens", least=0)
    if max_tokens is None:
        raise BadRequest("max_tokens is required", "max_tokens")
    units: list[Unit] = []
    tools = chat_tools(body)
    if tools:
        units.append(Unit("tools", [dumped(as_rendered(tools), "tools")]))
    if body.get("system"):
        system = Unit("system", [], MESSAGE_TOKENS)
        add_content(system, body["system"], rules, "system")
        units.append(system)
    units.extend(_message(message, index, rules) for index, message in enumerate(messages))
    units.append(Unit("reply", [], REPLY_TOKENS))
    metadata = fields.mapping(body, "metadata")
    shape = Shape(
        api=Api.MESSAGES,
        model=fields.string(body, "model") or "",
        stream=fields.boolean(body, "stream"),
        wants_usage=True,  # every stream of this API carries it
        max_tokens=max_tokens,
        media=media_count([units]),
        media_tokens=media_tokens([units]),
        session=fields.label(body, "session_id"),
        user=fields.label(metadata, "user_id"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt([units], tools=bool(tools)))


_SERVER_TOOL = re.compile(r"(web_search|computer|bash|text_editor)_\d{8}")


def chat_tools(body: dict[str, Any]) -> list[Any]:
    """The tools as the functions that the server makes of them; tools of Anthropic's own are left out."""
    tools: list[Any] = []
    for index, tool in enumerate(fields.array(body, "tools")):
        if not isinstance(tool, dict):
            raise fields.wrong_type(tool, "an object", f"tools[{index}]")
        kind = tool.get("type")
        if isinstance(kind, str) and _SERVER_TOOL.fullmatch(kind):
            continue
        function = {
            "name": tool.get("name"),
            "description": tool.get("description") or "",
            "parameters": tool.get("input_schema"),
            "strict": bool(tool.get("strict")),
        }
        deferred = tool.get("defer_loading")
        tools.append({"type": "function", "function": function, "defer_loading": deferred})
    choice = body.get("tool_choice")
    return [] if isinstance(choice, dict) and choice.get("type") == "none" else tools


def _message(message: object, index: int, rules: MediaRules) -> Unit:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise fields.wrong_type(message, "an object", where)
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRequest(f"{where}.role must be a string", f"{where}.role")
    if message.get("content") is None:
        raise BadRequest(f"{where}.content is required", f"{where}.content")
    unit = Unit(role, [], MESSAGE_TOKENS)
    add_content(unit, message["content"], rules, f"{where}.content")
    return unit
