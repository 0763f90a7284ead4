"""Tool definitions in the form that reaches the prompt.

SGLang reads them into models of its own and prints those: unknown fields are dropped, missing ones
are null (0.5.23, entrypoints/openai/protocol.py, `Tool` and `Function`).
"""

from typing import Any

_FIELDS = ("description", "name", "parameters", "strict", "defer_loading")
_OPTIONAL = ("strict", "defer_loading")


def as_rendered(tools: list[Any]) -> list[Any]:
    """`tools` of a chat completion request as the template gets them. They must be objects."""
    return [_tool(tool) for tool in tools]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    defer = tool.get("defer_loading")
    return {
        "type": tool.get("type", "function"),
        "function": _function(function, defer),
        "defer_loading": defer,
    }


def _function(function: dict[str, Any], defer: object) -> dict[str, Any]:
    """The client's order first, then what it left out; the two optional fields only when set."""
    given = [name for name in function if name in _FIELDS]
    names = [*given, *(name for name in _FIELDS if name not in given)]
    values = {name: function.get(name) for name in names}
    if values["defer_loading"] is None:
        values["defer_loading"] = defer
    return {name: value for name, value in values.items() if name not in _OPTIONAL or value is not None}
