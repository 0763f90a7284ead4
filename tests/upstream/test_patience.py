"""Answers that do not begin."""

import asyncio

import pytest

from proxy.admission.types import LoadSample
from proxy.upstream import UpstreamUnreachable
from proxy.upstream.patience import prefill_seconds
from tests.fakes import FakeServer, Received, Wire, chat_body
from tests.upstream.support import Connect, Heard, call, read_all
from tests.waiting import eventually


def sample(tokens: int | None, seconds: float | None) -> LoadSample:
    return LoadSample(
        at=0.0,
        used_tokens=0,
        running=0,
        waiting=0,
        prefill_tokens_total=tokens,
        prefill_busy_seconds_total=seconds,
    )


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        (None, 80.0),
        (sample(None, None), 80.0),
        (sample(50_000, 0.5), 80.0),  # too little to tell a pace
        (sample(100_000, 10.0), 4.0),
    ],
)
def test_a_prefill_may_take_four_times_what_the_mean_pace_says(
    seen: LoadSample | None, seconds: float
) -> None:
    assert prefill_seconds(10_000, seen) == seconds


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_an_idle_server_forgot_is_given_up(
    fake: FakeServer, connect: Connect, stream: bool
) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await asyncio.Event().wait()

    fake.answer = answer
    backend = await connect(stall_seconds=0.2)
    with pytest.raises(UpstreamUnreachable, match="no answer within") as failed:
        await backend.send(call(stream=stream))
    assert failed.value.sent
    await eventually(lambda: len(fake.aborts()) == 1)


@pytest.mark.parametrize(("stream", "load"), [(False, "running"), (True, "waiting")])
async def test_one_whose_silence_the_load_explains_is_waited_for(
    fake: FakeServer, connect: Connect, heard: Heard, stream: bool, load: str
) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await asyncio.sleep(0.6)
        await wire.json(chat_body())

    fake.answer = answer
    setattr(fake, load, 1)
    backend = await connect(stall_seconds=0.1)
    exchange = await backend.send(call(stream=stream))
    assert exchange.status == 200
    await read_all(exchange)


async def test_a_stream_that_runs_and_says_nothing_is_not(fake: FakeServer, connect: Connect) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await asyncio.Event().wait()

    fake.answer = answer
    fake.running = 1
    backend = await connect(stall_seconds=0.2)
    with pytest.raises(UpstreamUnreachable, match="no answer within"):
        await backend.send(call(stream=True))


async def test_a_long_prompt_has_the_time_that_its_prefill_takes(fake: FakeServer, connect: Connect) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await asyncio.sleep(0.6)
        await wire.json(chat_body())

    fake.answer = answer
    backend = await connect(stall_seconds=0.2)
    exchange = await backend.send(call(stream=True, prompt_tokens=100))  # 0.8 s at the slowest pace
    assert exchange.status == 200
    await read_all(exchange)
