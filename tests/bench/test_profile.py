"""Each layer gets its own time, and what is wrapped behaves as before."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.api import asgi, intake
from proxy.api.gate import Gate
from tests.bench import spans
from tests.bench.profile import LAYERS, LOOP, Cost, by_layer, main
from tests.bench.spans import OUTSIDE, Clock, Costs, install, timed

FREE = Costs(0.0, 0.0)


class Time:
    """Passes only when it is told to."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def passes(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds


@pytest.fixture
def time() -> Iterator[Time]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "thread_time_ns", found := Time())
        yield found


def test_what_a_layer_calls_of_another_is_not_its_own(time: Time) -> None:
    clock = Clock()
    inner = timed(lambda: time.passes(10), "inner", clock)

    def outer() -> str:
        time.passes(1)
        inner()
        inner()
        time.passes(2)
        return "done"

    time.passes(100)
    assert timed(outer, "outer", clock)() == "done"
    found = clock.take()
    assert found.spent_ns == {OUTSIDE: 100, "outer": 3, "inner": 20}
    assert found.own_ns(Costs(inside_ns=4, outside_ns=1)) == {OUTSIDE: 99, "outer": 3 - 4 - 2, "inner": 12}
    assert clock.take().spent_ns == {OUTSIDE: 0}


async def test_a_coroutine_has_the_clock_only_while_it_runs(time: Time) -> None:
    clock = Clock()

    async def work(go_on: asyncio.Event) -> int:
        time.passes(5)
        await go_on.wait()
        time.passes(6)
        return 7

    go_on = asyncio.Event()
    task = asyncio.create_task(timed(work, "work", clock)(go_on))
    await asyncio.sleep(0)
    time.passes(1000)
    go_on.set()
    assert await task == 7
    assert clock.take().spent_ns == {OUTSIDE: 1000, "work": 11}


async def test_errors_and_cancellation_pass_through(time: Time) -> None:
    clock = Clock()
    seen = []

    async def fails() -> None:
        raise ValueError("as before")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            time.passes(3)
            raise

    with pytest.raises(ValueError, match="as before"):
        await timed(fails, "fails", clock)()
    task = asyncio.create_task(timed(waits, "waits", clock)())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (seen, clock.take().spent_ns["waits"]) == (["cancelled"], 3)


def test_functions_are_wrapped_wherever_they_were_imported_and_given_back() -> None:
    places = [asgi, intake]
    function, method = asgi.read_body, Gate.submit
    uninstall = install({"x": ("proxy.api.asgi:read_body", "proxy.api.gate:Gate.submit")}, Clock())
    assert all(vars(place)["read_body"] is not function for place in places)
    assert Gate.submit is not method
    uninstall()
    assert all(vars(place)["read_body"] is function for place in places)
    assert Gate.submit is method


def test_layers_are_scaled_to_what_the_load_costs_without_wrappers() -> None:
    size, decide = list(LAYERS)[3:5]
    clock = Clock(spent_ns={size: 3_000_000, decide: 1_000_000, OUTSIDE: 4_000_000})
    found = by_layer(Cost(cpu_ns=8_000_000, number=10, clock=clock), FREE, bare_ns=400_000)
    assert (found[size], found[decide], found[LOOP]) == (150, 50, 200)
    assert sum(found[layer] for layer in [*LAYERS, LOOP]) == 400


def test_every_layer_is_found_in_a_request_and_a_stream(tmp_path: Path) -> None:
    assert main(["--rounds", "1", "--seconds", "0.1", "--out", str(tmp_path)]) == 0
    (kept,) = tmp_path.glob("profile-*/profile.json")
    found = json.loads(kept.read_text())["microseconds"]
    for name in ("request", "chunk"):
        assert not [layer for layer in [*LAYERS, LOOP] if not 0 < found[name][layer] < 10_000]
