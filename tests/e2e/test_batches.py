"""Batches count each of their items; what generates nothing reserves nothing; small reads count nothing."""

from typing import Any

import pytest

from proxy.admission.types import Request
from tests.fakes import FakeServer, Received, Wire
from tests.proxies import Running
from tests.raw_http import Connection, Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "one two three four five six seven eight"


def echo_usage(prompt_tokens: int) -> Any:
    async def answer(_: Received, wire: Wire) -> None:
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        await wire.json({"scores": [[0.5]], "usage": usage})

    return answer


async def no_usage(_: Received, wire: Wire) -> None:
    await wire.json({})


@pytest.fixture
def asked(proxy: Running, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, int]]:
    """What the gate was asked, and what was charged for it beside its prompt."""
    found: list[tuple[Request, int]] = []
    submit = proxy.app.gate.submit

    def watched(request: Request, sliced: Any = None) -> Any:
        ticket = submit(request, sliced)
        found.append((request, proxy.app.gate.controller.jobs[request.rid].reserve_tokens))
        return ticket

    monkeypatch.setattr(proxy.app.gate, "submit", watched)
    return found


@pytest.mark.parametrize(
    ("path", "one", "three"),
    [
        ("/v1/embeddings", {"input": TEXT}, {"input": [TEXT] * 3}),
        ("/v1/classify", {"input": TEXT}, {"input": [TEXT] * 3}),
        ("/v1/score", {"query": TEXT, "items": TEXT}, {"query": TEXT, "items": [TEXT] * 3}),
        ("/v1/rerank", {"query": TEXT, "documents": [TEXT]}, {"query": TEXT, "documents": [TEXT] * 3}),
        (
            "/generate",
            {"text": TEXT, "sampling_params": {"max_new_tokens": 0}},
            {"text": [TEXT] * 3, "sampling_params": {"max_new_tokens": 0}},
        ),
        ("/generate", {"input_ids": [5] * 9}, {"input_ids": [[5] * 9] * 3}),
        ("/v1/completions", {"prompt": TEXT}, {"prompt": [TEXT] * 3}),
    ],
)
async def test_each_item_counts(
    server: FakeServer, proxy: Running, asked: list[Any], path: str, one: Any, three: Any
) -> None:
    server.answer = no_usage  # it would teach what the second counts for
    for body in (one, three):
        assert (await proxy.ask({"model": "tiny", **body}, path)).status == 200
    (first, _), (second, reserve) = asked
    assert (first.sequences, second.sequences) == (1, 3)
    assert second.prompt_tokens == pytest.approx(3 * first.prompt_tokens, abs=3)
    if second.max_tokens == 0:
        assert reserve == 0
    await proxy.settled()


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank"])
async def test_what_the_server_counted_is_booked(server: FakeServer, proxy: Running, path: str) -> None:
    before = proxy.metric("prompt_tokens_total", lane="short")
    server.answer = echo_usage(77)
    reply = await proxy.ask({"query": "q", "items": ["a", "b"], "documents": ["a", "b"]}, path)
    assert reply.json()["scores"] == [[0.5]]
    assert reply.header("x-admission-lane") == "short"
    await proxy.settled()
    assert proxy.metric("prompt_tokens_total", lane="short") == before + 77


async def test_the_body_of_a_score_goes_on_as_it_came(server: FakeServer, proxy: Running) -> None:
    """It has no field for a request id."""
    body = b'{"query": "q", "items": ["a"], "label_token_ids": [1]}'
    await proxy.ask(body, "/v1/score")
    assert server.posts()[-1].body == body


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"query": [1], "items": [[4096]]}, "prompt"),
        ("/v1/score", {"query": [4096], "items": [[1]]}, "prompt"),
        ("/v1/score", {"query": "q", "items": ["a"] * 5000}, "n"),
        (
            "/v1/score",
            {"query": "q", "items": ["a"], "query_embed_overrides": [[1.0]]},
            "query_embed_overrides",
        ),
        ("/v1/score", {"query": "q"}, "items"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 5000}, "n"),
        ("/v1/classify", {}, "input"),
    ],
)
async def test_what_multiplies_or_kills_is_refused(
    server: FakeServer, proxy: Running, path: str, body: Any, param: str
) -> None:
    reply = await proxy.ask({"model": "tiny", **body}, path)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert server.posts() == []


async def test_a_long_query_of_many_items_can_never_fit(server: FakeServer, proxy: Running) -> None:
    reply = await proxy.ask({"query": TEXT * 200, "items": ["a"] * 4000}, "/v1/score")
    assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": TEXT}),
        ("/v1/tokenize", {"prompt": [TEXT] * 3}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/v1/detokenize", {"tokens": [[1], [2]]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": TEXT}]}),
    ],
)
async def test_small_questions_are_forwarded_uncounted_and_bounded(
    server: FakeServer, proxy: Running, asked: list[Any], path: str, body: Any
) -> None:
    assert (await proxy.ask(body, path)).status == 200
    assert server.posts()[-1].json() == body
    assert asked == []
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {17 * 2**20}\r\n\r\n"
    assert (await _raw(proxy.port, head.encode())).status == 413
    assert len(server.posts()) == 1


async def _raw(port: int, data: bytes) -> Reply:
    async with await Connection.open(port) as connection:
        await connection.send(data)
        return await connection.reply()
