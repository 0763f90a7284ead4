"""Every API but chat: shape and prompt of what it takes, and a clear refusal of what it does not."""

from typing import Any

import orjson
import pytest

from proxy.tokens.reading import read
from proxy.tokens.shape import Api, BadRequest, Reading


def reading(api: Api, **body: Any) -> Reading:
    return read(api, orjson.dumps({"model": "m"} | body))


def refused(api: Api, **body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        reading(api, **body)
    return caught.value


def texts(found: Reading) -> list[list[str]]:
    return [[text for unit in item for text in unit.texts] for item in found.prompt.items]


# --- /v1/completions ---


@pytest.mark.parametrize(
    ("prompt", "items"),
    [
        ("one", [["one"]]),
        (["one"], [["one"]]),
        (["one", "two"], [["one"], ["two"]]),
        (["", "two"], [[""], ["two"]]),
    ],
)
def test_completions_take_a_string_or_a_list_of_strings(prompt: object, items: list[list[str]]) -> None:
    assert texts(reading(Api.COMPLETIONS, prompt=prompt)) == items


@pytest.mark.parametrize(
    ("prompt", "ids", "largest"),
    [([3, 1, 2], [[3, 1, 2]], 3), ([[3, 1], [7]], [[3, 1], [7]], 7), ([0], [[0]], 0)],
)
def test_completions_take_ids_or_a_list_of_ids(prompt: object, ids: list[list[int]], largest: int) -> None:
    found = reading(Api.COMPLETIONS, prompt=prompt)

    assert [item[0].ids for item in found.prompt.items] == ids
    assert found.shape.largest_id == largest
    assert found.shape.has_ids


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [""], ["", ""], [[]], 3, True, {}, [1, "a"], ["a", 1], [1.5], [True], [-1],
     [[1], []], [[1], "a"], [[1], [-2]], [None], [{}], [2**40]],
)  # fmt: skip
def test_other_prompts_are_refused(prompt: object) -> None:
    param = refused(Api.COMPLETIONS, prompt=prompt).param

    assert param is not None
    assert param.startswith("prompt")


def test_completions_generate_sixteen_tokens_by_default() -> None:
    assert reading(Api.COMPLETIONS, prompt="x").shape.max_tokens == 16
    assert reading(Api.COMPLETIONS, prompt="x", max_tokens=0, echo=True).shape.max_tokens == 0
    assert refused(Api.COMPLETIONS, prompt="x", max_tokens=-5).param == "max_tokens"


def test_every_choice_of_every_prompt_is_a_sequence_and_best_of_is_not() -> None:
    shape = reading(Api.COMPLETIONS, prompt=["a", "b"], n=3, best_of=5).shape

    assert (shape.batch, shape.sequences) == (2, 6)


# --- /v1/embeddings ---


@pytest.mark.parametrize("given", ["one", ["one", "two"], [1, 2], [[1], [2]]])
def test_embeddings_take_all_four_forms_and_generate_nothing(given: object) -> None:
    assert reading(Api.EMBEDDINGS, input=given).shape.max_tokens == 0


def test_embeddings_of_images_count_the_image() -> None:
    found = reading(Api.EMBEDDINGS, input=[{"text": "a cat", "image": "https://x/cat.png"}])

    assert texts(found) == [["a cat"]]
    assert found.shape.media == 1


@pytest.mark.parametrize("given", [None, "", [], 3, [{"text": 3}], [{"text": "a"}, 3]])
def test_other_inputs_of_embeddings_are_refused(given: object) -> None:
    assert str(refused(Api.EMBEDDINGS, input=given).param).startswith("input")


# --- /v1/responses ---


def test_responses_take_a_string() -> None:
    found = reading(Api.RESPONSES, input="Hello", instructions="Be brief", max_output_tokens=9)

    assert texts(found) == [["Be brief", "Hello"]]
    assert found.shape.max_tokens == 7  # the server keeps two for itself
    assert reading(Api.RESPONSES, input="Hello").shape.max_tokens is None
    assert found.shape.wants_usage


def test_responses_take_items_of_many_kinds() -> None:
    items = [
        {"role": "user", "content": "one"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "summary": [{"text": "not rendered"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "three"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "four"}]},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://x/y.png"}],
        },
    ]
    found = reading(Api.RESPONSES, input=items)

    assert texts(found) == [["one", "two", "f", "{}", "three", "four"]]
    assert found.shape.media == 1


def test_a_previous_response_and_background_work_are_seen() -> None:
    shape = reading(Api.RESPONSES, input="x", previous_response_id="resp_1", background=True).shape

    assert shape.history == "resp_1"
    assert shape.background


def test_function_tools_of_responses_are_counted_as_the_template_prints_them() -> None:
    tool = {"type": "function", "name": "f", "parameters": {}}

    assert texts(reading(Api.RESPONSES, input="x", tools=[tool]))[0][0] == (
        '[{"type": "function", "function": {"name": "f", "parameters": {}, "description": null}, '
        '"defer_loading": null}]'
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", None),
        ("input", ""),
        ("input", []),
        ("input", 3),
        ("input", [3]),
        ("instructions", 3),
        ("tools", 3),
    ],
)
def test_malformed_responses_are_refused_by_name(field: str, value: object) -> None:
    assert str(refused(Api.RESPONSES, **({"input": "x"} | {field: value})).param).startswith(field)


# --- /v1/messages ---

ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def test_messages_count_system_blocks_and_tools() -> None:
    blocks = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "document", "source": {"type": "text", "data": "the document"}},
    ]
    history = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "sunny"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "not rendered"}]},
    ]
    found = reading(
        Api.MESSAGES,
        messages=history,
        max_tokens=5,
        system=[{"type": "text", "text": "Be brief", "cache_control": {}}],
        tools=[{"name": "f", "input_schema": {"type": "object"}}],
        metadata={"user_id": "u"},
    )

    assert texts(found)[0][1:] == ["Be brief", "see", "the document", "f", '{"a": 1}', "sunny"]
    assert '"parameters": {"type": "object"}' in texts(found)[0][0]
    assert (found.shape.media, found.shape.user, found.shape.max_tokens) == (1, "u", 5)


def test_messages_need_a_limit() -> None:
    assert refused(Api.MESSAGES, messages=ASK["messages"]).param == "max_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", ["x"]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"content": "x"}]),
        ("max_tokens", -1),
        ("system", 3),
        ("tools", [3]),
        ("metadata", "x"),
    ],
)
def test_malformed_messages_are_refused_by_name(field: str, value: object) -> None:
    assert str(refused(Api.MESSAGES, **(ASK | {field: value})).param).startswith(field)


# --- /generate ---


@pytest.mark.parametrize(
    "prompt", [{"text": "x"}, {"text": ["x", "y"]}, {"input_ids": [1]}, {"input_ids": [[1], [2]]}]
)
def test_generate_takes_text_or_ids_alone_or_in_a_batch(prompt: dict[str, Any]) -> None:
    shape = reading(Api.GENERATE, **prompt).shape

    assert shape.max_tokens == 128
    assert shape.batch == len(next(iter(prompt.values()))) if shape.batch > 1 else shape.batch == 1


def test_generate_reads_its_sampling_params() -> None:
    params = {"max_new_tokens": 7, "min_new_tokens": 2, "ignore_eos": True, "n": 2}
    shape = reading(Api.GENERATE, text=["a", "b"], sampling_params=params).shape

    assert (shape.max_tokens, shape.min_tokens, shape.ignore_eos, shape.sequences) == (7, 2, True, 4)


def test_the_largest_limit_speaks_for_a_batch() -> None:
    params = [{"max_new_tokens": 7}, {"max_new_tokens": 9, "n": 3}]
    shape = reading(Api.GENERATE, text=["a", "b"], sampling_params=params).shape

    assert (shape.max_tokens, shape.sequences) == (9, 4)


def test_an_explicit_null_runs_to_the_end() -> None:
    assert reading(Api.GENERATE, text="a", sampling_params={"max_new_tokens": None}).shape.max_tokens is None


def test_embeddings_as_input_are_one_token_a_row() -> None:
    found = reading(Api.GENERATE, input_embeds=[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])

    assert found.prompt.items[0][0].overhead_tokens == 3


def test_images_of_generate_belong_to_their_prompt() -> None:
    found = reading(Api.GENERATE, text=["a", "b"], image_data=["https://x/1.png", ["https://x/2.png", None]])

    assert [len(item[0].media or []) for item in found.prompt.items] == [1, 1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "x", "input_ids": [1]},
        {"text": 3},
        {"input_ids": "x", "sampling_params": 3},
        {"text": "x", "sampling_params": [3]},
        {"text": "x", "sampling_params": {"max_new_tokens": -1}},
        {"text": "x", "sampling_params": {"n": 0}},
        {"input_embeds": []},
        {"input_embeds": [3]},
    ],
)
def test_malformed_generate_requests_are_refused(body: dict[str, Any]) -> None:
    refused(Api.GENERATE, **body)
