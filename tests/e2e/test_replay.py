"""The decision log of a live proxy is a trace that `plan` can replay."""

from pathlib import Path

from proxy.simulator.traces import read_trace
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
