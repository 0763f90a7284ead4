"""Servers found, polled, declared down for good reasons only, and found again."""

import asyncio
import logging
import time

import pytest

from proxy.upstream import UpstreamUnreachable
from proxy.upstream import poll as poll_module
from proxy.upstream.sglang import ServerInfo
from tests.fakes import POOL, FakeServer, Received, Wire, chat_event
from tests.upstream.support import Connect, Heard, call, read_all
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def test_a_server_is_discovered_with_its_facts(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    backend = await connect()
    ((pool, facts),) = heard.up
    assert pool == "b"
    assert backend.pools == ("b",)
    assert (facts.pool_tokens, facts.max_request_tokens, facts.vocab_tokens) == (POOL, POOL - 6, 4096)
    assert isinstance(backend.info, ServerInfo)
    assert not any(request.target.startswith("/health") for request in fake.requests)


async def test_samples_carry_the_servers_time_whatever_its_clock_says(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.clock_skew_seconds, fake.age_seconds = 5000.0, 0.4
    fake.used, fake.running, fake.uncached = 500, 2, 70
    await connect()
    assert heard.last.at == pytest.approx(time.monotonic() - 0.4, abs=0.3)
    assert (heard.last.used_tokens, heard.last.running, heard.last.waiting_uncached_tokens) == (500, 2, 70)


async def test_urging_polls_often_for_a_moment(connect: Connect, heard: Heard) -> None:
    backend = await connect(poll_seconds=30.0)
    before = len(heard.loads)
    backend.urge()
    await asyncio.sleep(0.4)
    assert len(heard.loads) - before >= 3


@pytest.mark.parametrize(
    ("missing", "used"),
    [({"/v1/loads"}, 900), ({"/v1/loads", "/get_load"}, 4096)],
)
async def test_older_servers_are_read_by_what_they_have(
    fake: FakeServer, connect: Connect, heard: Heard, missing: set[str], used: int
) -> None:
    fake.missing = missing
    fake.metrics = (
        'sglang:max_total_num_tokens{tp_rank="0"} 186624.0\nsglang:num_used_tokens{tp_rank="0"} 4096.0\n'
    )
    await connect()
    assert heard.last.used_tokens == used


async def test_old_names_of_the_endpoints_do_as_well(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.missing = {"/server_info", "/model_info", "/ready"}
    await connect()
    assert heard.up[0][1].pool_tokens == POOL


async def test_a_server_that_reports_no_load_works_by_the_pool_that_is_set(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.missing = {"/v1/loads", "/get_load", "/metrics", "/server_info", "/get_server_info"}
    await connect(wait=False, spec={"pool_tokens": 5000})
    await eventually(lambda: bool(heard.up))
    assert heard.up[0][1].pool_tokens == 5000
    assert not heard.loads


async def test_a_pool_nobody_names_is_asked_for(fake: FakeServer, connect: Connect, heard: Heard) -> None:
    fake.missing = {"/v1/loads", "/get_load", "/metrics", "/server_info", "/get_server_info"}
    await connect(wait=False)
    await eventually(lambda: bool(heard.down))
    assert "set PROXY_POOL_TOKENS" in heard.down[0][1]


async def test_the_pool_may_come_from_the_load_alone(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.missing = {"/server_info", "/get_server_info"}
    await connect()
    assert heard.up[0][1].pool_tokens == POOL


async def test_retractions_come_from_metrics_beside_the_load(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.info = {"enable_metrics": True}
    fake.metrics = (
        'sglang:num_retracted_requests_total{tp_rank="0"} 3.0\nsglang:new_token_ratio{tp_rank="0"} 0.4\n'
    )
    await connect()
    await eventually(lambda: heard.last.retractions_total == 3)
    assert heard.last.new_token_ratio == 0.4
    assert sum(request.target == "/metrics" for request in fake.requests) == 1


async def test_each_dp_rank_is_a_pool_and_requests_name_theirs(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.dp_size = 2
    backend = await connect()
    assert backend.pools == ("b/0", "b/1")
    assert [pool for pool, _ in heard.up] == ["b/0", "b/1"]
    await eventually(lambda: {pool for pool, _ in heard.loads} == {"b/0", "b/1"})
    await read_all(await backend.send(call(pool="b/1", document={"routed_dp_rank": 0})))
    document = fake.posts()[0].json()
    assert (document["routed_dp_rank"], document["data_parallel_rank"]) == (1, 1)


async def test_a_wrong_key_is_said_to_be_one(fake: FakeServer, connect: Connect, heard: Heard) -> None:
    fake.key = "right"
    await connect(wait=False, spec={"api_key": "wrong"})
    await eventually(lambda: bool(heard.down))
    assert heard.down[0] == ("b", "refuses our API key")


async def test_a_server_that_is_down_at_start_is_found_when_it_comes(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    await fake.stop()
    await connect(wait=False)
    await eventually(lambda: bool(heard.down))
    assert not heard.up
    await fake.start()
    await eventually(lambda: bool(heard.up))


async def test_a_server_that_still_loads_is_waited_for(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.ready = False
    await connect(wait=False)
    await eventually(lambda: bool(heard.down))
    assert heard.down == [("b", "not ready yet")]
    fake.ready = True
    await eventually(lambda: bool(heard.up))


async def test_a_killed_server_is_down_at_once_and_comes_back_with_another_pool(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    backend = await connect()
    await fake.stop()
    killed_at = time.monotonic()
    await eventually(lambda: bool(heard.down))
    assert time.monotonic() - killed_at < 2.0
    assert backend.info is None
    fake.pool_tokens, fake.prefilled = 65_536, 0
    await fake.start()
    await eventually(lambda: len(heard.up) == 2)
    assert heard.up[1][1].pool_tokens == 65_536
    assert len(heard.down) == 1


@pytest.mark.parametrize("change", [{"pool_tokens": 65_536}, {"prefilled": 5}])
async def test_a_restart_between_two_polls_is_noticed(
    fake: FakeServer, connect: Connect, heard: Heard, change: dict[str, int]
) -> None:
    await connect()
    for name, value in change.items():
        setattr(fake, name, value)
    await eventually(lambda: len(heard.up) == 2)
    assert heard.up[1][1].pool_tokens == fake.pool_tokens
    assert not heard.down


async def test_ranks_that_vanish_with_a_restart_are_down(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    fake.dp_size = 2
    backend = await connect()
    fake.dp_size, fake.pool_tokens = 1, 1000
    await eventually(lambda: backend.pools == ("b",))
    assert {pool for pool, _ in heard.down} == {"b/0", "b/1"}
    assert heard.up[-1][0] == "b"


async def test_late_polls_are_not_a_dead_server(
    fake: FakeServer, connect: Connect, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_module, "_POLL_TIMEOUT_SECONDS", 0.1)
    await connect()
    fake.freeze = asyncio.Event()
    await asyncio.sleep(0.6)
    assert not heard.down
    fake.freeze.set()
    before = len(heard.loads)
    await eventually(lambda: len(heard.loads) > before)
    assert not heard.down
    assert len(heard.up) == 1


async def test_a_server_silent_for_long_is_down_and_waiting_requests_hear_of_it(
    fake: FakeServer, connect: Connect, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_module, "_POLL_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(poll_module, "_LATE_SECONDS_UNTIL_DOWN", 0.3)
    backend = await connect()
    fake.freeze = asyncio.Event()
    with pytest.raises(UpstreamUnreachable, match="no useful answer") as lost:
        await backend.send(call())
    assert lost.value.sent
    assert "timed out" in heard.down[0][1]
    fake.freeze.set()


async def test_a_server_whose_streams_go_on_is_not_dead_however_late_its_polls(
    fake: FakeServer, connect: Connect, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_module, "_POLL_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(poll_module, "_LATE_SECONDS_UNTIL_DOWN", 0.3)

    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        for _ in range(50):
            await wire.chunk(chat_event("x"))
            await asyncio.sleep(0.02)
        await wire.end()

    fake.answer = answer
    backend = await connect()
    async with await backend.send(call(stream=True)) as exchange:
        fake.freeze = asyncio.Event()
        async for _ in exchange:
            pass
        assert not heard.down
    fake.freeze.set()


async def test_polls_that_fail_are_not_a_dead_server_either(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    await connect()
    fake.missing = {"/v1/loads"}
    await asyncio.sleep(0.4)
    assert not heard.down


async def test_nothing_a_server_says_ends_the_polling(
    fake: FakeServer, connect: Connect, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_module, "_LAST_RETRY_SECONDS", 0.05)
    await connect()
    fake.running = 1e999  # type: ignore[assignment]  # not JSON, and no number that fits
    await asyncio.sleep(0.2)
    fake.prefilled = 1e400  # type: ignore[assignment]
    await asyncio.sleep(0.2)
    fake.running, fake.prefilled = 7, 2000
    await eventually(lambda: heard.last.running == 7)


async def test_closing_a_backend_that_never_found_its_server_is_clean(
    fake: FakeServer, connect: Connect
) -> None:
    await fake.stop()
    backend = await connect(wait=False)
    await backend.close()
    await backend.close()
