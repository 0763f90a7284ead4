"""Whatever a client sends, it gets a clear 4xx in the shape of its API, and the proxy goes on."""

import asyncio
import json
from typing import Any

import pytest

from tests.e2e.holding import COMPLETIONS
from tests.fakes import FakeServer
from tests.proxies import Running
from tests.raw_http import CHAT, Reply, chat

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
GENERATE = "/generate"


pytestmark = pytest.mark.asyncio(loop_scope="module")


def check_bad(reply: Reply, status: int = 400) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert reply.status == status, reply.body
    assert reply.header("content-type") == "application/json"
    assert reply.header("x-request-id")
    assert reply.header("retry-after") is None
    assert set(error) == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"nonsense",
        b'{"model": "tiny"',
        b"[]",
        b'"text"',
        b"null",
        b"17",
        b"\x00\x01\x02",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        json.dumps(chat()).encode("utf-16"),
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"a": NaN}',
        b"{}",
        b"{} {}",
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
async def test_what_is_no_request_of_that_api_is_a_400(
    server: FakeServer, proxy: Running, path: str, body: bytes
) -> None:
    check_bad(await proxy.ask(body, path))
    assert server.posts() == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": {"role": "user"}}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages[0]"),
        (CHAT, {"messages": [{"content": "no role"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 17}]}, "messages[0].content"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"max_tokens": "many"}, "max_tokens"),
        (CHAT, {"max_tokens": [1]}, "max_tokens"),
        (CHAT, {"max_completion_tokens": -5}, "max_completion_tokens"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"n": "two"}, "n"),
        (CHAT, {"stream": "perhaps"}, "stream"),
        (CHAT, {"stream_options": []}, "stream_options"),
        (CHAT, {"tools": {}}, "tools"),
        (CHAT, {"model": 5}, "model"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": {}}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], []]}, "prompt[1]"),
        (GENERATE, {"text": None}, None),
    ],
)
async def test_wrong_types_name_the_field(
    server: FakeServer, proxy: Running, path: str, fields: dict[str, Any], param: str | None
) -> None:
    error = check_bad(await proxy.ask({**chat(), **fields}, path))
    if param is not None:
        assert error["param"] == param
    assert server.posts() == []


async def test_the_same_in_anthropics_shape(proxy: Running) -> None:
    for body in (b"nonsense", json.dumps({"model": "m", "max_tokens": -1, "messages": []}).encode()):
        reply = await proxy.ask(body, MESSAGES)
        assert reply.status == 400
        assert reply.json()["type"] == "error"
        assert set(reply.json()["error"]) == {"type", "message"}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 100_000},
        {"n": 4},
        {"unknown_field": {"a": [1, 2]}},
        {"temperature": 1e308},
        {"model": "\x00\n\u202e \U0001f600" + "x" * 5000},
        {"user": "\x1b[31m"},
        {"messages": [{"role": "user", "content": "\x00\u2028\ud7ff\U0010ffff"}]},
    ],
)
async def test_odd_but_legal_requests_are_the_servers_to_judge(
    server: FakeServer, proxy: Running, fields: dict[str, Any]
) -> None:
    reply = await proxy.ask(chat(**fields))
    assert reply.status == 200
    sent = server.posts()[-1].json()
    assert {name: sent[name] for name in fields} == fields


async def test_lone_surrogates_are_forwarded_as_they_came(server: FakeServer, proxy: Running) -> None:
    body = b'{"model": "t\\ud800", "messages": [{"role": "user", "content": "a \\udfff b"}]}'
    assert (await proxy.ask(body)).status == 200
    assert server.posts()[0].body.startswith(body[:-1])


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_megabyte_is_no_name_of_a_model(server: FakeServer, proxy: Running, path: str) -> None:
    """Names are remembered, those that nobody serves too."""
    reply = await proxy.ask(chat(model="m" * 1_000_000, max_tokens=5, input="Hello"), path)
    assert reply.status == 400
    assert "model" in reply.json()["error"]["message"]
    assert server.posts() == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=4097)),
        (CHAT, chat(n=10**9)),
        (CHAT, chat(n=10**30)),
        (CHAT, chat(n=1e308)),
        (COMPLETIONS, {"model": "t", "prompt": ["a", "b"], "n": 10**30}),
        (COMPLETIONS, {"model": "t", "prompt": ["a"] * 5000}),
        (GENERATE, {"text": ["a"], "sampling_params": {"n": 1e308}}),
    ],
)
async def test_no_request_may_ask_for_more_sequences_than_can_be_counted_and_aborted(
    server: FakeServer, proxy: Running, path: str, body: dict[str, Any]
) -> None:
    assert "4096" in check_bad(await proxy.ask(body, path))["message"]
    assert (await proxy.ask(body, "/admission/explain")).status == 400
    assert server.posts() == []


@pytest.mark.parametrize("fields", [{"max_tokens": 10**30}, {"min_tokens": 10**30}, {"min_tokens": 2**63}])
async def test_numbers_beyond_all_measure_break_no_sum(proxy: Running, fields: dict[str, Any]) -> None:
    for path in (CHAT, "/admission/explain"):
        assert (await proxy.ask(chat(**fields), path)).status in (200, 400, 429)


@pytest.mark.parametrize(
    "deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
async def test_deep_nesting_is_refused(proxy: Running, deep: bytes) -> None:
    check_bad(await proxy.ask(b'{"messages": [{"role": "user", "content": "hi"}], "x": ' + deep + b"}"))


@pytest.mark.parametrize("character", ["a", " ", "\\n", '\\"', "\U0001f600", "\\u00e9"])
async def test_ten_megabytes_of_one_character_stall_nobody(
    server: FakeServer, proxy: Running, character: str
) -> None:
    server.pool_tokens = 186_624
    text = (character * (10_000_000 // len(character.encode()))).encode()
    asked = asyncio.create_task(
        proxy.ask(b'{"model": "t", "messages": [{"role": "user", "content": "' + text + b'"}]}')
    )
    loop = asyncio.get_running_loop()
    longest = 0.0
    while not asked.done():
        before = loop.time()
        await asyncio.sleep(0.005)
        longest = max(longest, loop.time() - before)
    reply = await asked
    assert reply.status in (200, 400, 429)
    assert reply.whole
    assert longest < 1.0


async def test_token_ids_outside_the_vocabulary_never_reach_the_server(
    server: FakeServer, proxy: Running
) -> None:
    assert "4096" in check_bad(await proxy.ask({"model": "t", "prompt": [1, 4096]}, COMPLETIONS))["message"]
    check_bad(await proxy.ask({"model": "t", "prompt": [[1], [99_999]]}, COMPLETIONS))
    check_bad(await proxy.ask({"input_ids": [1, 2**31]}, GENERATE))
    check_bad(await proxy.ask(chat(input_ids=[1, 2])))
    assert server.posts() == []
    assert (await proxy.ask({"model": "t", "prompt": [1, 4095]}, COMPLETIONS)).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"session_params": {"id": "s"}},
        {"custom_logit_processor": "code"},
        {"return_hidden_states": True},
        {"input_embeds": [[0.1]]},
        {"background": True},
    ],
)
async def test_fields_that_cannot_be_honoured_are_refused(
    server: FakeServer, proxy: Running, fields: dict[str, Any]
) -> None:
    assert check_bad(await proxy.ask(chat(**fields)))["param"] == next(iter(fields))
    assert server.posts() == []
