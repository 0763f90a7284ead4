"""/v1/responses."""

from hashlib import blake2b
from typing import Any

from proxy.tokens import fields
from proxy.tokens.chat import REPLY_TOKENS
from proxy.tokens.content import MESSAGE_TOKENS, add_content, add_tool_call, dumped
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import cache_scope, media_count, media_tokens
from proxy.tokens.shape import Api, BadRequest, Prompt, Reading, Shape, Unit
from proxy.tokens.tools import as_rendered

_HEADROOM_TOKENS = 2  # SGLang 0.5.23 takes them off `max_output_tokens` (protocol.py)


def read_responses(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompt of a response request.

    With `previous_response_id` the body shows only the last turn: `Shape.history` names the rest.
    """
    given = body.get("input")
    if given is None or given == [] or given == "":
        raise BadRequest("input must be a non-empty string or array", "input")
    if not isinstance(given, str | list):
        raise fields.wrong_type(given, "a string or an array", "input")
    units: list[Unit] = []
    tools = [_chat_form(tool, index) for index, tool in enumerate(fields.array(body, "tools"))]
    if body.get("tool_choice") == "none":
        tools = []
    if tools:
        units.append(Unit("tools", [dumped(as_rendered(tools), "tools")]))
    instructions = fields.string(body, "instructions")
    if instructions:
        units.append(Unit("system", [instructions], MESSAGE_TOKENS))
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    units.extend(_item(item, index, rules) for index, item in enumerate(items))
    units.append(Unit("reply", [], REPLY_TOKENS))
    limit = fields.integer(body, "max_output_tokens", least=0)
    shape = Shape(
        api=Api.RESPONSES,
        model=fields.string(body, "model") or "",
        stream=fields.boolean(body, "stream"),
        wants_usage=True,  # the final event carries it
        max_tokens=None if limit is None else max(0, limit - _HEADROOM_TOKENS),
        media=media_count([units]),
        media_tokens=media_tokens([units]),
        session=fields.label(body, "prompt_cache_key", "session_id"),
        user=fields.label(body, "user"),
        history=fields.string(body, "previous_response_id"),
        preamble=_preamble(units[: len(units) - len(items) - 1]),
        kept=fields.boolean({"store": True} | body, "store"),
        background=fields.boolean(body, "background"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt([units], tools=bool(tools)))


def _preamble(units: list[Unit]) -> bytes:
    """Tools and instructions: each request brings its own, and the history comes after them."""
    texts = (f"{unit.label}\0{text}\0" for unit in units for text in unit.texts)
    return blake2b("".join(texts).encode("utf-8", "replace"), digest_size=16).digest()


def _chat_form(tool: object, index: int) -> dict[str, Any]:
    """A function tool in the form the chat template prints: its fields under `function`."""
    if not isinstance(tool, dict):
        raise fields.wrong_type(tool, "an object", f"tools[{index}]")
    if tool.get("type") != "function" or "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _item(item: object, index: int, rules: MediaRules) -> Unit:
    where = f"input[{index}]"
    if not isinstance(item, dict):
        raise fields.wrong_type(item, "an object", where)
    kind = item.get("type", "message")
    if kind == "reasoning":
        return Unit("reasoning")
    if kind == "function_call":
        unit = Unit("assistant", [], MESSAGE_TOKENS)
        add_tool_call(unit, item.get("name"), item.get("arguments"))
        return unit
    if kind == "function_call_output":
        unit = Unit("tool", [], MESSAGE_TOKENS)
        add_content(unit, item.get("output"), rules, f"{where}.output")
        return unit
    role = item.get("role", "user")
    if not isinstance(role, str):
        raise BadRequest(f"{where}.role must be a string", f"{where}.role")
    unit = Unit(role, [], MESSAGE_TOKENS)
    add_content(unit, item.get("content"), rules, f"{where}.content")
    return unit
