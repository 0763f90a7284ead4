"""The chat requests that SGLang 0.5.23 makes of /v1/messages and /v1/responses bodies."""

from typing import Any

import pytest

from proxy.tokens.exact.from_messages import from_messages
from proxy.tokens.exact.from_responses import from_responses

# --- /v1/messages ---


def of_messages(*messages: Any, inline_system: bool = False, **body: Any) -> dict[str, Any] | None:
    return from_messages({"messages": list(messages)} | body, inline_system=inline_system)


def chat_of(*messages: Any, inline_system: bool = False, **body: Any) -> list[Any]:
    found = of_messages(*messages, inline_system=inline_system, **body)
    assert found is not None
    messages_found: list[Any] = found["messages"]
    return messages_found


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


HELLO = {"role": "user", "content": "Hello"}


def test_the_system_text_comes_first() -> None:
    assert chat_of(HELLO, system="Be brief") == [{"role": "system", "content": "Be brief"}, HELLO]
    assert chat_of(HELLO, system=[text("a"), text(""), text("b")])[0]["content"] == "a\nb"
    assert chat_of(HELLO, system="  ") == [HELLO]


def test_inline_system_messages_are_merged_unless_the_template_takes_them() -> None:
    inline = {"role": "system", "content": " Now in French "}

    assert chat_of(HELLO, inline, HELLO, system="x") == [
        {"role": "system", "content": "x\nNow in French"},
        HELLO,
        HELLO,
    ]
    assert chat_of(HELLO, inline, HELLO, inline_system=True) == [HELLO, inline, HELLO]


def test_blocks_of_text_become_a_string_or_parts() -> None:
    assert chat_of(user(text("a"))) == [{"role": "user", "content": "a"}]
    assert chat_of(user(text("a"), {"type": "image", "source": {}})) == [
        {"role": "user", "content": [text("a"), {"type": "image_url"}]}
    ]


def test_calls_and_results_become_messages_of_their_own() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("sunny"), text("warm")]}
    found = chat_of(
        HELLO,
        {"role": "assistant", "content": [text("Let me see"), call]},
        user(text("pre"), result, text("post")),
    )

    assert found[1] == {
        "role": "assistant",
        "content": "Let me see",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }
    assert found[2:] == [
        {"role": "user", "content": "pre"},
        {"role": "tool", "tool_call_id": "1", "content": [text("sunny"), text("warm")]},
        {"role": "user", "content": "post"},
    ]


@pytest.mark.parametrize(
    ("content", "given"), [("ok", "ok"), (None, ""), ([], ""), ([text("a")], "a"), ([text("")], "")]
)
def test_a_results_content_is_simplified(content: object, given: object) -> None:
    assert chat_of(user({"type": "tool_result", "content": content}))[0]["content"] == given


def test_an_empty_assistant_stays_as_a_placeholder() -> None:
    assert chat_of({"role": "assistant", "content": []})[0] == {"role": "assistant", "content": ""}


def test_tools_get_the_fields_that_the_server_fills_in() -> None:
    tools = [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}]
    found = of_messages(HELLO, tools=tools, tool_choice={"type": "tool", "name": "f"})

    assert found is not None
    assert found["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "", "parameters": {}, "strict": False},
            "defer_loading": None,
        }
    ]
    assert found["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_thinking_and_effort_are_variables_of_the_template() -> None:
    found = of_messages(
        HELLO, thinking={"type": "enabled", "budget_tokens": 2_000}, output_config={"effort": "xhigh"}
    )

    assert found is not None
    assert found["chat_template_kwargs"] == {
        "thinking": True,
        "enable_thinking": True,
        "reasoning_effort": "max",
    }


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hmm"}]},
        {"role": "assistant", "content": [{"type": "tool_result", "content": "x"}]},
        user({"type": "document", "source": {}}),
        user({"type": "tool_result", "content": [{"type": "search_result"}]}),
    ],
)
def test_what_depends_on_the_server_is_not_guessed(message: Any) -> None:
    assert of_messages(HELLO, message) is None


def test_switching_thinking_off_depends_on_the_server() -> None:
    assert of_messages(HELLO, thinking={"type": "disabled"}) is None


# --- /v1/responses ---


def of_responses(given: Any, *, inline_system: bool = False, **body: Any) -> list[Any]:
    found = from_responses({"input": given} | body, inline_system=inline_system)
    assert found is not None
    messages: list[Any] = found["messages"]
    return messages


def test_a_string_is_a_users_message_after_the_instructions() -> None:
    assert of_responses("Hello", instructions="Be brief") == [
        {"role": "system", "content": "Be brief"},
        HELLO,
    ]


def test_parts_become_texts_and_developers_are_labelled() -> None:
    items = [
        {"role": "developer", "content": "Obey"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}], "id": "x"},
    ]

    assert of_responses(items) == [
        {"role": "system", "content": "Developer instructions:\nObey"},
        {"role": "user", "content": [text("Hello")]},
    ]


def test_all_system_messages_come_first_unless_the_template_takes_them_anywhere() -> None:
    items = [HELLO, {"role": "system", "content": [{"type": "input_text", "text": "b"}]}]

    assert of_responses(items, instructions="a") == [{"role": "system", "content": "a\n\nb"}, HELLO]
    assert [message["role"] for message in of_responses(items, instructions="a", inline_system=True)] == [
        "system",
        "user",
        "system",
    ]


def test_one_turn_of_the_assistant_is_one_message() -> None:
    items = [
        HELLO,
        {"role": "assistant", "content": "One"},
        {"type": "message", "role": "assistant", "content": "Two"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "broken"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    ]
    _, assistant, tool = of_responses(items)

    assert assistant["content"] == "One\n\nTwo"
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "f", "arguments": {"a": 1}},
        {"name": "g", "arguments": {}},
    ]
    assert tool == {"role": "tool", "tool_call_id": "1", "content": "sunny"}


def test_phases_of_a_turn_stay_apart_and_mixed_contents_are_joined() -> None:
    parts = {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    items = [{"role": "assistant", "content": "a"}, parts, parts | {"phase": "final_answer"}]

    assert [message["content"] for message in of_responses(items)] == [[text("a"), text("b")], [text("b")]]


@pytest.mark.parametrize(
    "body",
    [
        {"input": "x", "previous_response_id": "resp_1"},
        {"input": "x", "tools": [{"type": "web_search"}]},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"type": "custom_tool_call"}]},
        {"input": [{"type": "function_call_output", "output": [{"type": "input_text", "text": "x"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"role": "user"}]},
    ],
)
def test_what_is_kept_on_the_server_or_unusual_is_not_guessed(body: dict[str, Any]) -> None:
    assert from_responses(body, inline_system=False) is None
