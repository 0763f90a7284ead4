from typing import Any

import orjson
import pytest

from proxy.tokens.reading import read
from proxy.tokens.shape import Api, BadRequest, Reading, Shape, Unit

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def chat(**body: Any) -> Reading:
    return read(Api.CHAT, orjson.dumps({"model": "m", "messages": HELLO} | body))


def shape(**body: Any) -> Shape:
    return chat(**body).shape


def units(*messages: Any) -> list[Unit]:
    return chat(messages=list(messages)).prompt.items[0][:-1]


def refused(**body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        chat(**body)
    return caught.value


def test_a_plain_request_has_the_apis_defaults() -> None:
    plain = shape()

    assert (plain.api, plain.model, plain.stream, plain.wants_usage) == (Api.CHAT, "m", False, False)
    assert (plain.max_tokens, plain.min_tokens, plain.sequences) == (None, 0, 1)
    assert plain.fields == {"model", "messages"}
    assert not plain.has_ids


def test_the_newer_limit_wins_unless_it_is_zero() -> None:
    assert shape(max_tokens=5).max_tokens == 5
    assert shape(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert shape(max_tokens=5, max_completion_tokens=0).max_tokens == 5
    assert shape(max_tokens=0).max_tokens == 0
    assert shape(max_tokens=10**18).max_tokens == 10**18


@pytest.mark.parametrize("limit", [-1, 3.5, "abc", True, [], {}])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_that_is_no_count_is_refused(name: str, limit: object) -> None:
    assert refused(**{name: limit}).param == name


def test_what_the_engine_coerces_is_not_refused() -> None:
    assert shape(max_tokens=8.0).max_tokens == 8
    assert shape(max_tokens="8").max_tokens == 8
    assert shape(max_tokens=None).max_tokens is None
    assert shape(stream="true").stream
    assert shape(stream=1).stream
    assert not shape(stream=None).stream


@pytest.mark.parametrize("n", [0, -1, "x", 1.5, [1]])
def test_a_number_of_choices_below_one_is_refused(n: object) -> None:
    assert refused(n=n).param == "n"


def test_each_choice_is_a_sequence() -> None:
    assert shape(n=3).sequences == 3
    assert shape(n=None).sequences == 1


@pytest.mark.parametrize("messages", [[], None, "Hello", {}, 3, True])
def test_messages_must_be_a_non_empty_array(messages: object) -> None:
    assert refused(messages=messages).param == "messages"


def test_missing_messages_are_refused() -> None:
    with pytest.raises(BadRequest, match="messages"):
        read(Api.CHAT, b'{"model": "m"}')


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hello", "messages[1]"),
        (None, "messages[1]"),
        ({"content": "Hello"}, "messages[1].role"),
        ({"role": 3, "content": "Hello"}, "messages[1].role"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content"),
        ({"role": "user", "content": [3]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "messages[1].content[0].text"),
        ({"role": "assistant", "content": None, "tool_calls": 3}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": ["x"]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": 1}]},
            "messages[1].tool_calls[0].function",
        ),
    ],
)
def test_a_malformed_message_is_refused_by_name(message: object, param: str) -> None:
    assert refused(messages=[*HELLO, message]).param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("stream", "maybe"),
        ("stream", 2),
        ("tools", {}),
        ("tools", [3]),
        ("stream_options", []),
        ("response_format", "json"),
        ("min_tokens", -1),
        ("ignore_eos", "perhaps"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    param = refused(**{field: value}).param

    assert param is not None
    assert param.startswith(field)


def test_unknown_fields_pass() -> None:
    assert shape(logit_bias={"1": 2}, something_new=[{"deep": 1}]).fields >= {"logit_bias", "something_new"}


def test_string_and_part_list_contents_are_both_text() -> None:
    first, second = units(
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]},
    )

    assert first.texts == ["one"]
    assert second.texts == ["one", "two"]


def test_tool_calls_and_their_results_are_counted() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    _, assistant, tool = units(
        HELLO[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    )

    assert assistant.texts == ["weather", '{"city": "Bern"}']
    assert assistant.overhead_tokens == 4 + 20
    assert tool.texts == ["sunny"]


def test_arguments_given_as_an_object_are_counted_as_json() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Zürich"}}}

    assert units({"role": "assistant", "tool_calls": [call]})[0].texts[1] == '{"city": "Zürich"}'


def test_tools_come_first_as_the_server_prints_them() -> None:
    tools = chat(tools=[CLOCK]).prompt.items[0][0]

    assert tools.label == "tools"
    assert tools.texts[0] == (
        '[{"type": "function", "function": {"name": "clock", "description": null, "parameters": null}, '
        '"defer_loading": null}]'
    )


def test_tools_that_the_choice_excludes_do_not_reach_the_prompt() -> None:
    assert chat(tools=[CLOCK, WEATHER], tool_choice="none").prompt.items[0][0].label == "user"
    named = chat(tools=[CLOCK, WEATHER], tool_choice={"type": "function", "function": {"name": "clock"}})
    assert "weather" not in named.prompt.items[0][0].texts[0]
    assert "clock" in named.prompt.items[0][0].texts[0]


def test_reasoning_is_counted_only_after_the_last_user_message() -> None:
    thought = {"role": "assistant", "content": "done", "reasoning_content": "hmm"}

    assert units(HELLO[0], thought, HELLO[0])[1].texts == ["done"]
    assert units(HELLO[0], HELLO[0], thought)[2].texts == ["done", "hmm"]


def test_a_response_schema_is_not_part_of_the_prompt() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

    assert chat(response_format=schema).prompt == chat().prompt


def test_usage_options_are_read() -> None:
    both = shape(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})

    assert both.wants_usage
    assert both.continuous_usage


def test_ids_replace_the_messages() -> None:
    reading = chat(input_ids=[5, 9, 7])

    assert reading.shape.largest_id == 9
    assert reading.prompt.items[0][0].ids == [5, 9, 7]


def test_session_user_and_cache_scope_are_kept() -> None:
    kept = shape(prompt_cache_key="k", user="u", lora_path="a", cache_salt="s", extra_key=None)

    assert (kept.session, kept.user) == ("k", "u")
    assert kept.cache_scope == ("lora_path=a", "cache_salt=s")


def test_tools_nested_too_deeply_to_print_are_refused() -> None:
    deep = b'{"a":' * 1_000 + b"1" + b"}" * 1_000
    body = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"parameters":' + deep + b"}]}"

    with pytest.raises(BadRequest, match="nested too deeply"):
        read(Api.CHAT, body)


def test_contents_nested_too_deeply_to_walk_are_refused() -> None:
    opening, closing = b'[{"type":"tool_result","content":', b"}]"
    body = b'{"messages":[{"role":"user","content":' + opening * 450 + b'"x"' + closing * 450 + b"}]}"

    with pytest.raises(BadRequest, match="nested too deeply"):
        read(Api.CHAT, body)
