"""/v1/chat/completions."""

from typing import Any

from proxy.tokens import fields
from proxy.tokens.breath import breathe
from proxy.tokens.content import MESSAGE_TOKENS, add_content, add_tool_call, dumped
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import cache_scope, largest_id, media_count, media_tokens
from proxy.tokens.shape import Api, BadRequest, Prompt, Reading, Shape, Unit
from proxy.tokens.tools import as_rendered

REPLY_TOKENS = 3  # the opening of the assistant's turn: 1-5 by family


def read_chat(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompt of a chat completion request.

    Raises BadRequest for what no engine takes. The schema of `response_format` steers decoding and
    is not part of the prompt.
    """
    messages = fields.array(body, "messages")
    given_ids = body.get("input_ids")
    if not messages:
        raise BadRequest("messages must be a non-empty array", "messages")
    fields.mapping(body, "response_format")
    units, tools = _units(body, messages, rules)
    largest = None
    if given_ids is not None:  # SGLang: replaces the rendered messages
        largest = largest_id(given_ids, "input_ids")
        units = [Unit("ids", ids=given_ids)]
    options = fields.mapping(body, "stream_options")
    sequences = fields.integer(body, "n", least=1) or 1
    shape = Shape(
        api=Api.CHAT,
        model=fields.string(body, "model") or "",
        stream=fields.boolean(body, "stream"),
        wants_usage=fields.boolean(options, "include_usage", "stream_options.include_usage"),
        continuous_usage=fields.boolean(
            options, "continuous_usage_stats", "stream_options.continuous_usage_stats"
        ),
        max_tokens=_max_tokens(body),
        min_tokens=fields.integer(body, "min_tokens", least=0) or 0,
        ignore_eos=fields.boolean(body, "ignore_eos"),
        sequences=sequences,
        largest_id=largest,
        media=media_count([units]),
        media_tokens=media_tokens([units]),
        session=fields.label(body, "prompt_cache_key", "session_id"),
        user=fields.label(body, "user"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt([units], tools=tools))


def _max_tokens(body: dict[str, Any]) -> int | None:
    """`max_completion_tokens` wins unless it is 0, as in SGLang: `max_completion_tokens or max_tokens`."""
    newer = fields.integer(body, "max_completion_tokens", least=0)
    older = fields.integer(body, "max_tokens", least=0)
    return newer or older


def _units(body: dict[str, Any], messages: list[Any], rules: MediaRules) -> tuple[list[Unit], bool]:
    units: list[Unit] = []
    tools = chosen_tools(body)
    if tools:  # rendered before the conversation, or into its first message
        units.append(Unit("tools", [dumped(as_rendered(tools), "tools")]))
    last_user = _last_user(messages)
    units.extend(_message(message, index, rules, index > last_user) for index, message in enumerate(messages))
    units.append(Unit("reply", [], REPLY_TOKENS))
    return units, bool(tools)


def chosen_tools(body: dict[str, Any]) -> list[Any]:
    """The tools that reach the prompt: none with `tool_choice: "none"`, one when one is named."""
    tools = fields.array(body, "tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise fields.wrong_type(tool, "an object", f"tools[{index}]")
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    wanted = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(wanted, dict) and isinstance(wanted.get("name"), str):
        return [tool for tool in tools if _name(tool) == wanted["name"]]
    return tools


def _name(tool: dict[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _last_user(messages: list[Any]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, dict) and message.get("role") == "user":
            return index
    return -1


def _message(message: object, index: int, rules: MediaRules, in_last_turn: bool) -> Unit:
    breathe()
    if not isinstance(message, dict):
        raise fields.wrong_type(message, "an object", f"messages[{index}]")
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRequest(f"messages[{index}].role must be a string", f"messages[{index}].role")
    unit = Unit(role, [], MESSAGE_TOKENS)
    content = message.get("content")
    if type(content) is str:
        unit.texts.append(content)
    else:
        add_content(unit, content, rules, f"messages[{index}].content")
    if len(message) > 2 or content is None:
        _extras(unit, message, index, in_last_turn)
    return unit


def _extras(unit: Unit, message: dict[str, Any], index: int, in_last_turn: bool) -> None:
    """Tool calls, tools given with a message, and reasoning: templates keep it only in the last turn."""
    reasoning = message.get("reasoning_content")
    if in_last_turn and isinstance(reasoning, str):
        unit.texts.append(reasoning)
    for position, call in enumerate(fields.array(message, "tool_calls", f"messages[{index}].tool_calls")):
        where = f"messages[{index}].tool_calls[{position}]"
        if not isinstance(call, dict):
            raise fields.wrong_type(call, "an object", where)
        function = fields.mapping(call, "function", f"{where}.function")
        add_tool_call(unit, function.get("name"), function.get("arguments"))
    own_tools = message.get("tools")
    if isinstance(own_tools, list) and own_tools:
        unit.texts.append(dumped(own_tools, f"messages[{index}].tools"))
