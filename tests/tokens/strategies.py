"""Request bodies as hypothesis makes them up: nearly right, so that they get far."""

from typing import Any

from hypothesis import strategies as st

from proxy.tokens.shape import Api

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "messages",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "prompt",
    "input",
    "text",
    "input_ids",
    "input_embeds",
    "image_data",
    "sampling_params",
    "tools",
    "tool_choice",
    "system",
    "metadata",
    "instructions",
    "response_format",
    "min_tokens",
    "ignore_eos",
    "user",
    "previous_response_id",
]
PART_TYPES = [
    "text",
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "file",
    "document",
    "tool_use",
    "tool_result",
    "thinking",
    "video_url",
    "input_file",
    "unheard_of",
]
PART_FIELDS = ["text", "image_url", "source", "content", "input", "name", "file", "input_audio"]
TEXT = st.text(max_size=5)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES)}, optional=dict.fromkeys(PART_FIELDS, TEXT | JSON)
)
FUNCTION = st.fixed_dictionaries(
    {"name": TEXT},
    optional={"arguments": st.just("{}") | TEXT | JSON, "description": TEXT, "parameters": JSON},
)
CALL = st.fixed_dictionaries({"function": FUNCTION}, optional={"id": TEXT, "type": TEXT, "name": TEXT})
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "system", "developer"]),
        "content": TEXT | st.lists(PART, max_size=3) | st.none(),
    },
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        "tool_calls": st.lists(CALL, max_size=2),
        "tools": st.lists(CALL, max_size=2),
        **dict.fromkeys(
            ["reasoning_content", "output", "arguments", "name", "phase", "call_id"], TEXT | JSON
        ),
    },
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=4) | st.lists(MESSAGE | JSON, max_size=3) | JSON
BODY = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=2) | st.fixed_dictionaries(
    {}, optional={"tools": st.lists(CALL, max_size=2), "system": TEXT, "reasoning": JSON, "thinking": JSON}
)


def requests() -> st.SearchStrategy[tuple[Api, dict[str, Any]]]:
    """An API, and a body with about the right fields and anything in them."""
    return st.builds(_request, st.sampled_from(Api), BODY, MESSAGES)


def _request(api: Api, body: dict[str, Any], messages: object) -> tuple[Api, dict[str, Any]]:
    name = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}.get(api)
    if name is not None:
        body = body | {name: messages} | ({"max_tokens": 5} if api is Api.MESSAGES else {})
    if api is Api.COMPLETIONS:
        body = {"prompt": messages if isinstance(messages, str) else "prompt"} | body
    return api, body
