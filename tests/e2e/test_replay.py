"""The decision log of a live proxy is a trace that `plan` can replay."""

from pathlib import Path
from typing import Any

import orjson

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.traces import read_trace
from proxy.simulator.virtual import replay
from tests.fakes import FakeServer
from tests.proxies import proxy_before
from tests.raw_http import chat


async def test_a_decision_log_written_by_the_proxy_is_read_back(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    async with proxy_before(fake, decision_log=path) as running:
        for words in (3, 300):
            reply = await running.ask(chat("word " * words, max_tokens=8))
            assert reply.status == 200
        refused = await running.ask(chat("word " * 10, max_tokens=2_000_000))
        assert refused.status == 400
        await running.settled()
    trace = read_trace(path)
    asks = [client.turns[0].ask for client in trace.workload.clients]
    assert [ask.max_tokens for ask in asks] == [8, 8, 2_000_000]
    assert [ask.output_tokens for ask in asks[:2]] == [8, 8]  # as the fake's usage says
    assert asks[0].prompt_tokens < 50 < asks[1].prompt_tokens
    assert trace.workload.clients[0].starts_at == 0.0
    assert all(client.starts_at < 60 for client in trace.workload.clients)
    assert "1 in the file were refused" in " ".join(trace.notes)


async def test_a_conversation_in_the_log_is_one_in_the_replay(fake: FakeServer, tmp_path: Path) -> None:
    """Its second turn finds its first cached, as it did; a stranger's prompt of that length does not."""
    path = tmp_path / "decisions.jsonl"
    told = "Once upon a time, at the end of a long road, a horse stood still. " * 2000
    first: list[dict[str, Any]] = [{"role": "user", "content": told}]
    second = [*first, {"role": "assistant", "content": " w" * 8}, {"role": "user", "content": "And then?"}]
    stranger = [{"role": "user", "content": "Another " + told}]
    talk = [("x-session-id", "my talk")]
    uncounted = {"choices": [], "object": "chat.completion"}  # a count of its own would correct ours
    fake.answer = lambda _, wire: wire.json(uncounted)
    async with proxy_before(fake, decision_log=path, session_hold_seconds=0.0) as running:
        for messages, headers in ((first, talk), (second, talk), (stranger, [])):
            body = {"model": "tiny", "messages": messages, "max_tokens": 8}
            assert (await running.ask(body, headers=headers)).status == 200
            await running.settled()
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    written = path.read_text()
    assert all(word not in written for word in ("Once", "horse", "And then", "my talk"))
    sent = [line for line in lines if line["event"] == "dispatch"]
    assert len(sent[0]["segments"]) > 10
    assert sent[1]["segments"][: len(sent[0]["segments"])] == sent[0]["segments"]
    assert sent[0]["session"]
    assert sent[0]["session"] == sent[1]["session"]
    assert sent[2]["session"] is None
    whole = Conditions(sliceable=False)  # a slice finds the slices before it cached as well
    run = replay(read_trace(path).workload, EngineConfig(), Controller(Limits()), conditions=whole)
    cached = [record.cached_tokens for record in run.records]
    assert (cached[1] or 0) > 0.9 * sent[0]["prompt_tokens"]
    assert (cached[2] or 0) < 1000


async def test_an_alias_is_of_no_use_outside_its_log(fake: FakeServer, tmp_path: Path) -> None:
    """Who guesses a prompt cannot tell by the log whether it was asked."""
    found = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        async with proxy_before(fake, decision_log=path) as running:
            assert (await running.ask(chat("the same words " * 2000, max_tokens=8))).status == 200
            await running.settled()
        line = next(map(orjson.loads, path.read_bytes().splitlines()))
        found.append({alias for alias, _ in line["segments"]})
    assert found[0]
    assert not found[0] & found[1]
