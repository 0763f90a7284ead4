"""The sizer with a model's own tokenizer directory."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from proxy.tokens.exact.code_rendered import rendered_in_code
from proxy.tokens.exact.counter import ExactCounter
from proxy.tokens.reading import read_document
from proxy.tokens.selfcheck import self_check
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sized import Sized
from proxy.tokens.sizer import Sizer
from tests.tokens.exact.families import FAMILIES, Model, trained, written
from tests.tokens.loaded import exact_sizer
from tests.tokens.strategies import requests

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TEXT = "The quick brown fox jumps over the lazy dog. It's a test, don't you think?\n"


@pytest.fixture
async def sizer(model: Model) -> AsyncIterator[Sizer]:
    async with exact_sizer(model.directory) as sizer:
        yield sizer


def chat(*contents: str, **body: Any) -> bytes:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return orjson.dumps({"model": "m", "messages": messages} | body)


def ids_of(model: Model, *contents: str, tools: str = "") -> list[int]:
    turns = "".join(f"<|{('user', 'assistant')[i % 2]}|>{text}<|end|>\n" for i, text in enumerate(contents))
    return model.encoded(f"<|bos|>{tools}{turns}<|assistant|>")


async def test_a_chat_is_counted_as_its_template_prints_it(sizer: Sizer, model: Model) -> None:
    sized = await sizer.size(Api.CHAT, chat("Hello", "Hi", "naïve café 日本"))

    assert sized.prompt_tokens == sized.least_tokens == len(ids_of(model, "Hello", "Hi", "naïve café 日本"))
    assert sized.exact
    assert sizer.stats().tokenizer == "fastokens"
    assert sizer.vocabulary_size == model.reference.get_vocab_size()


async def test_ids_are_given_for_slices(sizer: Sizer, model: Model) -> None:
    expected = ids_of(model, "Hello", tools='<|tools|>' + json.dumps(
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": None},
         "defer_loading": None}) + "\n")  # fmt: skip

    assert await sizer.ids(Api.CHAT, chat("Hello", tools=TOOLS)) == expected


async def test_plain_prompts_get_their_start_token(with_bos: Model) -> None:
    sizer = Sizer(tokenizer_path=with_bos.directory)
    await sizer.load()
    body = orjson.dumps({"prompt": ["hello", "hello there"]})
    expected = [with_bos.reference.encode(text).ids for text in ("hello", "hello there")]

    assert (await sizer.size(Api.COMPLETIONS, body)).prompt_tokens == sum(map(len, expected))
    assert await sizer.ids(Api.COMPLETIONS, body) is None
    assert await sizer.ids(Api.GENERATE, b'{"text": "hello"}') == expected[0]
    assert await sizer.ids(Api.GENERATE, b'{"input_ids": [4, 5]}') == [4, 5]
    sizer.close()


async def test_long_chats_are_exact_in_the_thread_and_share_segments(sizer: Sizer, model: Model) -> None:
    history = [f"{index} {TEXT * 30}" for index in range(41)]
    first = await sizer.size(Api.CHAT, chat(*history))
    second = await sizer.size(Api.CHAT, chat(*history, "Indeed.", "And then?"))

    assert first.prompt_tokens == len(ids_of(model, *history))
    assert second.segments[: len(first.segments) - 1] == first.segments[:-1]
    assert sum(segment.tokens for segment in second.segments) <= second.prompt_tokens


async def test_special_tokens_written_by_a_user_count_as_the_server_counts_them(
    sizer: Sizer, model: Model
) -> None:
    text = "<|end|> <think>! <|nothing|>"

    assert (await sizer.size(Api.CHAT, chat(text))).prompt_tokens == len(ids_of(model, text))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "no json"}}]}, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}] * 20_001},
    ],
)  # fmt: skip
async def test_what_cannot_be_exact_is_estimated_and_says_so(sizer: Sizer, body: dict[str, Any]) -> None:
    sized = await sizer.size(Api.CHAT, orjson.dumps(body))

    assert not sized.exact
    assert sized.prompt_tokens > 0
    assert await sizer.ids(Api.CHAT, orjson.dumps(body)) is None


async def test_other_chat_apis_are_counted_as_the_chat_that_the_server_makes_of_them(
    sizer: Sizer, model: Model
) -> None:
    message = b'{"max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}'
    expected = ids_of(model, "Hello")

    for api, body in ((Api.RESPONSES, b'{"input": "Hello"}'), (Api.MESSAGES, message)):
        sized = await sizer.size(api, body)
        assert (sized.exact, sized.prompt_tokens) == (True, len(expected))
        assert await sizer.ids(api, body) == expected


async def test_where_that_cannot_be_known_they_are_estimated(sizer: Sizer, model: Model) -> None:
    body = orjson.dumps({"input": TEXT, "previous_response_id": "resp_1"})
    sized = await sizer.size(Api.RESPONSES, body)

    assert not sized.exact
    assert sized.raw_tokens == len(model.encoded(TEXT)) + 4 + 3
    assert await sizer.ids(Api.RESPONSES, body) is None


async def test_a_template_that_fails_leaves_an_estimate(tmp_path: Path) -> None:
    template = "{{ raise_exception('no') }}"
    model = written(tmp_path / "m", trained(FAMILIES["llama"]), chat_template=template)
    sizer = Sizer(tokenizer_path=model.directory)
    await sizer.load()

    assert not (await sizer.size(Api.CHAT, chat("Hello"))).exact
    sizer.close()


async def test_a_template_that_wants_bare_functions_gets_them(tmp_path: Path) -> None:
    template = "{% for tool in tools %}{{ raise_exception('x') if tool.type else tool.name }}{% endfor %}"
    model = written(tmp_path / "m", trained(FAMILIES["llama"]), chat_template=template)
    sizer = Sizer(tokenizer_path=model.directory)
    await sizer.load()

    assert await sizer.ids(Api.CHAT, chat("Hello", tools=TOOLS)) == model.encoded("f")
    sizer.close()


async def test_another_template_can_be_given(model: Model, tmp_path: Path) -> None:
    override = tmp_path / "other.jinja"
    override.write_text("{{ messages[0].content }}!")
    sizer = Sizer(tokenizer_path=model.directory, chat_template=override)
    await sizer.load()

    assert await sizer.ids(Api.CHAT, chat("Hello")) == model.encoded("Hello!")
    sizer.close()


async def test_a_directory_that_cannot_be_used_leaves_the_default(tmp_path: Path) -> None:
    sizer = Sizer(tokenizer_path=tmp_path)
    await sizer.load()

    assert sizer.ready
    assert sizer.stats().tokenizer == "o200k_base"
    assert "there is no tokenizer.json" in (sizer.stats().note or "")
    assert sizer.vocabulary_size is None
    assert await sizer.ids(Api.CHAT, chat("Hello")) is None
    sizer.close()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {}, "merges": []}}']
)
async def test_a_broken_tokenizer_file_leaves_the_default(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    sizer = Sizer(tokenizer_path=tmp_path)
    await sizer.load()

    assert sizer.stats().tokenizer == "o200k_base"
    assert sizer.stats().note
    sizer.close()


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "DeepSeek V4"),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, "DeepSeek V4.1"),
        ({"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v41"}, "DeepSeek V4"),
        ({"architectures": ["KimiK3ForConditionalGeneration"]}, "Kimi K3"),
        ({"architectures": ["InklingForConditionalGeneration"]}, "Inkling"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "DeepSeek V3.2"),
        ({"architectures": ["Qwen3ForCausalLM"]}, None),
        ({}, None),
    ],
)
def test_models_that_are_rendered_in_code_are_recognised(
    tmp_path: Path, config: dict[str, Any], name: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    note = rendered_in_code(tmp_path)

    assert note is None if name is None else note is not None and name in note


async def test_such_a_model_is_calibrated_and_says_so(tmp_path: Path) -> None:
    model = written(tmp_path / "m", trained(FAMILIES["deepseek"]))
    (model.directory / "config.json").write_text('{"architectures": ["DeepseekV4ForCausalLM"]}')
    sizer = Sizer(tokenizer_path=model.directory)
    await sizer.load()

    assert not (await sizer.size(Api.CHAT, chat("Hello"))).exact
    assert (await sizer.size(Api.COMPLETIONS, b'{"prompt": "Hello"}')).exact
    assert "DeepSeek V4" in (sizer.stats().note or "")
    sizer.close()


def test_a_directory_without_template_says_so(tmp_path: Path) -> None:
    model = written(tmp_path / "m", trained(FAMILIES["llama"]), chat_template=None)

    assert (
        ExactCounter(model.directory, None, memo_entries=10).note
        == "the tokenizer directory has no chat template"
    )


def test_a_template_that_is_none_says_so(tmp_path: Path) -> None:
    model = written(tmp_path / "m", trained(FAMILIES["llama"]), chat_template="{% if %}")

    assert "cannot be used" in (ExactCounter(model.directory, None, memo_entries=10).note or "")


async def test_usage_that_disagrees_ends_the_trust(sizer: Sizer) -> None:
    async def sized() -> Sized:
        return await sizer.size(Api.CHAT, chat(TEXT * 50))

    for _ in range(40):
        sizer.observe(await sized(), (await sized()).raw_tokens)
    assert (await sized()).exact
    for _ in range(60):
        sizer.observe(await sized(), round((await sized()).raw_tokens * 1.2))
    wrong = await sized()

    assert not wrong.exact
    assert wrong.prompt_tokens > wrong.raw_tokens
    assert sizer.stats().exact_ratios["m"] > 1.02


# --- the self-check ---


def server(model: Model, template: Callable[[dict[str, Any]], str] | None) -> Any:
    """A server's /v1/tokenize with this tokenizer; without a template it does not know chats."""

    async def ask(body: dict[str, Any]) -> int | None:
        await asyncio.sleep(0)
        if "prompt" in body:
            return len(model.reference.encode(body["prompt"]).ids)
        return None if template is None else len(model.encoded(template(body)))

    return ask


async def _same(sizer: Sizer, body: dict[str, Any]) -> int | None:
    ids = await sizer.ids(Api.CHAT if "messages" in body else Api.COMPLETIONS, orjson.dumps(body))
    return None if ids is None else len(ids)


async def test_the_self_check_finds_the_right_directory(sizer: Sizer) -> None:
    async def ask(body: dict[str, Any]) -> int | None:
        return await _same(sizer, body)

    check = await self_check(sizer, ask)

    assert not check.wrong
    assert check.verdict == "all 10 probes are counted as the server counts them"
    assert check.error_share == 0


async def test_the_self_check_names_a_wrong_tokenizer(sizer: Sizer, models: dict[str, Model]) -> None:
    check = await self_check(sizer, server(models["two_splits"], None))

    assert check.wrong
    assert check.verdict.startswith("the tokenizer directory is not this server's: counts differ for ")
    assert check.error_share > 0


async def test_the_self_check_names_a_wrong_template(sizer: Sizer, model: Model) -> None:
    check = await self_check(sizer, server(model, lambda body: str(body["messages"])))

    assert check.wrong
    assert check.verdict == (
        "the server uses another chat template: counts differ for chat, chat of several turns, "
        "chat with tools, tool call and result"
    )


async def test_the_self_check_says_when_nothing_can_be_checked(
    sizer: Sizer, tmp_path: Path, model: Model
) -> None:
    async def silent(body: dict[str, Any]) -> int | None:
        return None

    assert "does not answer" in (await self_check(sizer, silent)).verdict
    default = Sizer(tokenizer_path=tmp_path)
    await default.load()
    check = await self_check(default, server(model, str))
    default.close()

    assert not check.wrong
    assert check.verdict.startswith("counts are calibrated estimates: tokenizer directory")


# --- whatever a body holds ---


@pytest.fixture(scope="module")
def counter(models: dict[str, Model]) -> ExactCounter:
    return ExactCounter(models["llama"].directory, None, memo_entries=10)


@given(request_=requests())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_json_makes_the_exact_counter_raise(
    request_: tuple[Api, dict[str, Any]], counter: ExactCounter
) -> None:
    api, body = request_
    document = orjson.loads(orjson.dumps(body))
    try:
        shape, prompt = read_document(api, document)
    except BadRequest:
        return
    measured = counter.measure(shape, prompt, document, sampled=False)
    ids = counter.ids(shape, prompt, document)

    if measured is not None and measured.exact and ids is not None:
        assert len(ids) == measured.tokens


class PanicException(BaseException):
    """Named as the class that Rust code raises."""


@pytest.mark.parametrize("error", [PanicException(), ValueError()])
async def test_ids_that_the_tokenizer_fails_to_give_are_not_known(
    error: BaseException, sizer: Sizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(text: str) -> list[int]:
        raise error

    assert sizer._exact is not None
    monkeypatch.setattr(sizer._exact.tokenizer, "ids", fails)
    assert await sizer.ids(Api.COMPLETIONS, orjson.dumps({"prompt": " " * 1_000})) is None
