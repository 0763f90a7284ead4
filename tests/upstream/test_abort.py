"""Ending requests at the server: when the abort is sent, for which ids, and when it counts as done."""

import asyncio
import logging
import time
from collections.abc import Coroutine

import pytest

from proxy.upstream import Backend, Call, Exchange, UpstreamBroken, UpstreamUnreachable
from proxy.upstream import abort as abort_module
from tests.fakes import DONE, FakeServer, Received, Wire, chat_body, chat_event, chat_stream
from tests.upstream.support import Connect, call, read_all
from tests.waiting import eventually


async def endless(fake: FakeServer, request: Received, wire: Wire) -> None:
    """A stream that only an abort ends, as SGLang ends it."""
    await wire.begin()
    await wire.chunk(chat_event("", role="assistant"))
    aborted = fake.abort_event(request.rid)
    while not aborted.is_set():
        await wire.chunk(chat_event("x"))
        await asyncio.sleep(0.01)
    for chunk in (chat_event(finish="abort"), DONE):
        await wire.chunk(chunk)
    await wire.end()


async def waiting(fake: FakeServer, request: Received, wire: Wire) -> None:
    """Queued or prefilling until an abort comes; the answer is an aborted one."""
    await fake.abort_event(request.rid).wait()
    await wire.json(chat_body(0, finish="abort"))


def serve(fake: FakeServer, kind: object) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await kind(fake, request, wire)  # type: ignore[operator]

    fake.answer = answer


def later(sending: Coroutine[None, None, Exchange]) -> asyncio.Task[Exchange]:
    return asyncio.create_task(sending)


async def cancelled(task: asyncio.Task[Exchange]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def seconds_of(work: Coroutine[None, None, None]) -> float:
    begun = time.monotonic()
    await work
    return time.monotonic() - begun


def abort_delay(fake: FakeServer) -> float:
    """From the arrival of the request to that of its abort."""
    (abort,) = [request for request in fake.requests if request.target == "/abort_request"]
    return abort.at - fake.posts()[0].at


async def test_a_running_stream_is_aborted_at_once_and_confirmed_by_its_end(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)
    async with await backend.send(sent) as exchange:
        await anext(exchange)
        assert await seconds_of(backend.abort(sent.rid)) < 1.0
        assert exchange.observed.aborted
        assert exchange.observed.ended
        with pytest.raises(UpstreamBroken):
            await anext(exchange)
    assert fake.aborts() == [sent.rid]


async def test_whoever_reads_a_stream_that_the_proxy_aborts_is_told_that_it_is_not_whole(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)
    exchange = await backend.send(sent)
    reader = asyncio.create_task(read_all(exchange))
    await asyncio.sleep(0.05)
    await backend.abort(sent.rid)
    with pytest.raises(UpstreamBroken, match="ended by the proxy"):
        await reader
    assert exchange.observed.aborted


async def test_closing_an_unfinished_exchange_aborts_it_in_the_background(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)
    async with await backend.send(sent) as exchange:
        await anext(exchange)
    await backend.abort(sent.rid)
    assert exchange.observed.aborted
    assert fake.aborts() == [sent.rid]


async def test_closing_a_finished_exchange_aborts_nothing(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        for chunk in chat_stream(2):
            await wire.chunk(chunk)
        await asyncio.sleep(0.5)  # [DONE] has passed, the body's end has not
        await wire.end()

    fake.answer = answer
    backend = await connect()
    sent = call(stream=True)
    async with await backend.send(sent) as exchange:
        while not exchange.observed.ended:
            await anext(exchange)
    await backend.abort(sent.rid)
    assert fake.aborts() == []


async def test_a_reader_cancelled_in_mid_stream_leaves_an_aborted_request(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)

    async def read() -> None:
        await read_all(await backend.send(sent))

    task = asyncio.create_task(read())
    await eventually(lambda: bool(fake.posts()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await seconds_of(backend.abort(sent.rid)) < 2.0
    assert fake.aborts() == [sent.rid]


async def test_a_small_request_is_aborted_soon_after_it_was_sent(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call()
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    await backend.abort(sent.rid)
    assert 0.08 < abort_delay(fake) < 1.0
    assert fake.aborts() == [sent.rid]


async def test_a_request_in_the_tokenizer_is_not_aborted_before_twice_the_predicted_time(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call(prompt_tokens=100_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    await backend.abort(sent.rid)
    assert 0.55 < abort_delay(fake) < 2.0


async def test_a_poll_that_shows_the_request_lets_the_abort_go_earlier(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call(prompt_tokens=180_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    aborting = asyncio.create_task(backend.abort(sent.rid))
    await asyncio.sleep(0.2)
    assert fake.aborts() == []
    fake.uncached = 175_000
    await aborting
    assert 0.19 < abort_delay(fake) < 1.0


async def test_a_stale_poll_shows_nothing(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    fake.age_seconds = 5.0
    fake.uncached = 175_000
    sent = call(prompt_tokens=100_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    await backend.abort(sent.rid)
    assert abort_delay(fake) > 0.55


async def test_anothers_arrival_is_not_taken_for_ours(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    other, ours = call(prompt_tokens=170_000), call(prompt_tokens=100_000)
    first, second = later(backend.send(other)), later(backend.send(ours))
    await eventually(lambda: len(fake.posts()) == 2)
    fake.uncached = 170_000  # the other's
    await cancelled(second)
    await backend.abort(ours.rid)
    assert abort_delay(fake) > 0.55
    await backend.abort(other.rid)
    await first


async def test_the_connection_stays_open_until_the_abort_was_sent(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call(prompt_tokens=180_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    connections = len(fake.open)
    await cancelled(task)
    await asyncio.sleep(0.15)
    assert fake.aborts() == []
    assert len(fake.open) >= connections
    await backend.abort(sent.rid)


async def test_a_request_whose_connection_died_is_not_aborted_too_early_either(
    fake: FakeServer, connect: Connect
) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        wire.reset()

    fake.answer = answer
    backend = await connect()
    sent = call(prompt_tokens=50_000)
    for _ in range(2):  # the first may meet an idle connection, and be tried again
        with pytest.raises(UpstreamUnreachable):
            await backend.send(sent)
    await backend.abort(sent.rid)
    aborts = [request for request in fake.requests if request.target == "/abort_request"]
    by_rid = {request.rid: request.at for request in fake.posts()}
    assert aborts
    assert all(abort.at - by_rid[str(abort.json()["rid"])] > 0.25 for abort in aborts)


async def test_a_request_that_was_never_delivered_needs_no_abort(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    sent = call(body=b'{"prompt":"' + b"x" * 50_000_000 + b'"}')
    fake.freeze = asyncio.Event()
    task = later(backend.send(sent))
    await asyncio.sleep(0.02)
    await cancelled(task)
    await backend.abort(sent.rid)
    fake.freeze.set()
    await asyncio.sleep(0.05)
    assert fake.aborts() == []


async def test_every_item_of_a_batch_is_aborted(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        for item in range(3):
            await fake.abort_event(f"{request.rid}_{item}").wait()
        await wire.json(chat_body(0, finish="abort"))

    fake.answer = answer
    backend = await connect()
    sent = call("/v1/completions", {"prompt": ["a", "b", "c"]}, sequences=3)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    assert await seconds_of(backend.abort(sent.rid)) < 1.0
    assert set(fake.aborts()) == {sent.rid, *(f"{sent.rid}_{item}" for item in range(3))}


async def test_what_no_id_ends_is_ended_by_its_connection(fake: FakeServer, connect: Connect) -> None:
    gone = asyncio.Event()

    async def answer(request: Received, wire: Wire) -> None:
        fake.running, fake.used = 2, 500
        try:
            await wire.begin()
            while True:
                await wire.chunk(chat_event("x"))
                await asyncio.sleep(0.01)
        finally:
            fake.running, fake.used = 0, 0
            gone.set()

    fake.answer = answer
    backend = await connect()
    for sent in (call(stream=True, sequences=2), call("/v1/messages", {}, stream=True)):
        gone.clear()
        async with await backend.send(sent) as exchange:
            await anext(exchange)
        assert await seconds_of(backend.abort(sent.rid)) < 3.0
        assert gone.is_set()


async def test_responses_are_aborted_under_their_own_prefix(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call("/v1/responses", {"input": "x"})
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    await backend.abort(sent.rid)
    assert fake.aborts() == [f"resp_{sent.rid}"]


async def test_a_greeting_proves_nothing_about_the_scheduler(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(b'event: response.created\ndata: {"type":"response.created"}\n\n')
        await fake.abort_event(request.rid).wait()
        await wire.end()

    fake.answer = answer
    backend = await connect()
    sent = call("/v1/responses", {"input": "x"}, stream=True, prompt_tokens=50_000)
    async with await backend.send(sent):
        pass
    await backend.abort(sent.rid)
    assert abort_delay(fake) > 0.25


async def test_an_abort_that_came_too_early_is_repeated(
    fake: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_module, "_REPEAT_SECONDS", 0.1)

    async def answer(request: Received, wire: Wire) -> None:
        await eventually(lambda: len(fake.aborts()) >= 3)  # deaf to the first two
        await wire.json(chat_body(0, finish="abort"))

    fake.answer = answer
    backend = await connect()
    sent = call()
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    await backend.abort(sent.rid)
    assert len(fake.aborts()) == 3


async def test_an_abort_that_nothing_confirms_ends_all_the_same(
    fake: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(abort_module, "CONFIRM_SECONDS", 0.3)
    monkeypatch.setattr(abort_module, "_REPEAT_SECONDS", 0.1)
    never = asyncio.Event()

    async def answer(request: Received, wire: Wire) -> None:
        await never.wait()

    fake.answer = answer
    backend = await connect()
    sent = call()
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    assert 0.3 < await seconds_of(backend.abort(sent.rid)) < 3.0
    assert "not confirmed" in caplog.text


async def test_an_abort_goes_on_when_whoever_asked_for_it_is_cancelled(
    fake: FakeServer, connect: Connect
) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call(prompt_tokens=180_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    asking = asyncio.create_task(backend.abort(sent.rid))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert fake.aborts() == []
    await eventually(lambda: fake.aborts() == [sent.rid])


async def test_aborting_what_nobody_knows_is_nothing(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    assert await seconds_of(backend.abort("unknown")) < 0.5
    assert fake.aborts() == []


async def test_aborting_at_a_dead_server_is_over_at_once(
    fake: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)
    async with await backend.send(sent) as exchange:
        await fake.stop()
        with pytest.raises(UpstreamBroken):
            await read_all(exchange)
        assert await seconds_of(backend.abort(sent.rid)) < 2.0
    assert not exchange.observed.ended


async def test_aborts_use_the_admin_key(fake: FakeServer, connect: Connect) -> None:
    fake.key, fake.admin_key = "key", "admin"
    serve(fake, endless)
    backend = await connect(spec={"api_key": "key", "admin_key": "admin"})
    sent = call(stream=True)
    async with await backend.send(sent):
        pass
    await backend.abort(sent.rid)
    assert fake.abort_event(sent.rid).is_set()


async def test_a_missing_admin_key_is_said(
    fake: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_module, "CONFIRM_SECONDS", 0.2)
    fake.admin_key = "admin"
    serve(fake, endless)
    backend = await connect()
    sent = call(stream=True)
    async with await backend.send(sent):
        pass
    await backend.abort(sent.rid)
    assert "set its admin key" in caplog.text


async def test_closing_the_backend_sends_pending_aborts_at_once(fake: FakeServer, connect: Connect) -> None:
    serve(fake, waiting)
    backend = await connect()
    sent = call(prompt_tokens=180_000)
    task = later(backend.send(sent))
    await eventually(lambda: bool(fake.posts()))
    await cancelled(task)
    assert await seconds_of(backend.close()) < 1.5
    assert fake.aborts() == [sent.rid]


async def test_closing_the_backend_ends_what_still_runs(fake: FakeServer, connect: Connect) -> None:
    serve(fake, endless)
    backend = await connect()
    running: list[Call] = [call(stream=True) for _ in range(3)]
    exchanges = [await backend.send(sent) for sent in running]
    await backend.close()
    assert set(fake.aborts()) == {sent.rid for sent in running}
    assert all(exchange.observed.ended for exchange in exchanges)


async def test_many_aborts_at_once_leave_nothing(fake: FakeServer, connect: Connect) -> None:
    serve(fake, endless)
    backend: Backend = await connect()
    running = [call(stream=True) for _ in range(30)]

    async def leave(sent: Call) -> None:
        async with await backend.send(sent) as exchange:
            await anext(exchange)
        await backend.abort(sent.rid)

    await asyncio.gather(*map(leave, running))
    assert set(fake.aborts()) == {sent.rid for sent in running}
