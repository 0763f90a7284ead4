"""What SGLang 0.5.23 hands to a template; the expectations were taken from its own models."""

from typing import Any

import pytest

from proxy.tokens.exact.messages import ChatInput, chat_input
from proxy.tokens.tools import as_rendered

HELLO = {"role": "user", "content": "Hello"}


def given(*messages: Any, parts: bool = False, reorders: bool = False, **body: Any) -> ChatInput:
    return chat_input({"messages": list(messages)} | body, parts=parts, reorders=reorders)


def call(name: str, arguments: Any, call_id: str = "1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, "x": 1}


def result(call_id: str, *, image: bool = False) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": "x"}}] if image else call_id
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_of_a_users_message_only_role_and_content_stay() -> None:
    assert given(HELLO | {"name": "bob", "reasoning_content": "x"}).messages == [HELLO]


def test_other_messages_keep_what_the_model_knows_and_is_not_null() -> None:
    system = {"role": "System", "content": "x", "name": "n", "foo": 1, "tool_calls": None}

    assert given(system, HELLO).messages[0] == {"role": "system", "content": "x", "name": "n"}


def test_a_missing_content_is_an_empty_string() -> None:
    assert given({"role": "assistant", "content": None}, HELLO).messages[0] == {
        "role": "assistant",
        "content": "",
    }


def test_arguments_of_an_assistants_calls_become_objects() -> None:
    assistant = {"role": "assistant", "tool_calls": [call("f", '{"a": [1]}')]}

    assert given(HELLO, assistant, HELLO).messages[1]["tool_calls"] == [
        {"id": "1", "index": None, "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
    ]


def test_parts_are_joined_for_templates_that_take_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "input_text", "text": "b"}]

    assert given({"role": "user", "content": parts}).messages[0]["content"] == "a b"


def test_parts_are_kept_for_templates_that_take_them() -> None:
    parts = [
        {"type": "text", "text": "a", "cache": 1},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "thinking", "thinking": "x"},
    ]

    assert given({"role": "user", "content": parts}, parts=True).messages[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image"},
        {"type": "audio"},
    ]


def test_a_tool_result_of_texts_is_joined_even_then() -> None:
    tool = {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}

    assert given(HELLO, tool, parts=True).messages[1]["content"] == "a b"


def test_a_final_assistant_message_becomes_the_users() -> None:
    assert given(HELLO, {"role": "assistant", "content": "So", "name": "x"}).messages[1] == {
        "role": "user",
        "content": "So",
    }


def test_unless_it_is_to_be_continued() -> None:
    found = given(HELLO, {"role": "assistant", "content": "So"}, continue_final_message=True)

    assert found.messages == [HELLO]
    assert found.continued == "So"


def test_results_with_media_follow_the_order_of_their_calls() -> None:
    assistant = {"role": "assistant", "tool_calls": [call("f", "{}", "1"), call("g", "{}", "2")]}
    results = [result("2", image=True), result("1")]

    def order(reorders: bool, *messages: Any) -> list[Any]:
        return [
            message.get("tool_call_id") for message in given(HELLO, *messages, reorders=reorders).messages[2:]
        ]

    assert order(True, assistant, *results) == ["1", "2"]
    assert order(False, assistant, *results) == ["2", "1"]
    assert order(True, assistant, result("2"), result("1")) == ["2", "1"]
    assert order(True, assistant, result("2", image=True), result("3")) == ["2", "3"]


def test_tools_are_printed_as_sglangs_models_print_them() -> None:
    tools = [
        {"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "extra": 3}, "type": "function", "zz": 1},
        {"type": "function", "function": {"name": "g", "description": "d", "strict": True}},
        {"type": "function", "defer_loading": True, "function": {"name": "h"}},
    ]

    assert repr(as_rendered(tools)) == repr(
        [
            {
                "type": "function",
                "function": {"parameters": {"b": 1, "a": 2}, "name": "f", "description": None},
                "defer_loading": None,
            },
            {
                "type": "function",
                "function": {"name": "g", "description": "d", "strict": True, "parameters": None},
                "defer_loading": None,
            },
            {
                "type": "function",
                "function": {"name": "h", "description": None, "parameters": None, "defer_loading": True},
                "defer_loading": True,
            },
        ]
    )


def test_without_tools_there_is_none() -> None:
    assert given(HELLO).tools is None
    assert given(HELLO, tools=[{"function": {"name": "f"}}], tool_choice="none").tools is None


ON, OFF = ({"thinking": value, "enable_thinking": value} for value in (True, False))


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"a": 1}}, {"a": 1}),
        ({"reasoning_effort": "none"}, OFF | {"reasoning_effort": "none"}),
        ({"reasoning_effort": "low"}, ON | {"reasoning_effort": "low"}),
        ({"reasoning_effort": "0.5"}, ON | {"reasoning_effort": 0.5}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"thinking": 0, "reasoning_effort": "max"}},
            ON | {"thinking": 0, "reasoning_effort": "max"},
        ),
        ({"reasoning": {"enabled": "yes"}}, ON),
        ({"reasoning": {"effort": "high"}}, ON | {"reasoning_effort": "high"}),
    ],
)
def test_effort_and_thinking_reach_the_template(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert given(HELLO, **body).options == options
