"""Tickets: decided once, closed once, whatever order the world's events come in."""

import asyncio

import pytest

from proxy.admission.job import State
from proxy.admission.limits import Limits
from proxy.admission.types import Dispatch, PoolFacts, Reason, Refuse
from proxy.api.ticket import Ticket
from proxy.upstream.call import Usage
from tests.api.gates import FACTS, Setup, request
from tests.waiting import eventually


@pytest.fixture
def world() -> Setup:
    return Setup()


async def test_a_request_that_fits_is_dispatched_before_submit_returns(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    assert isinstance(ticket.decision, Dispatch)
    assert await ticket.decided() is ticket.decision
    world.gate.finish(ticket, completed=True)
    assert world.is_empty()


async def test_one_that_does_not_waits_until_another_ends(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    second = world.gate.submit(request("b", 15_000))
    assert waits(second)
    waiting = asyncio.create_task(second.decided())
    await asyncio.sleep(0)
    world.gate.first_token(first)
    world.gate.finish(first, completed=True)
    assert isinstance(await waiting, Dispatch)
    world.gate.finish(second, completed=True)
    assert world.is_empty()


async def test_finishing_twice_gives_back_once(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.gate.finish(ticket, completed=True)
    world.gate.finish(ticket, completed=True)
    world.gate.leave(ticket)
    world.gate.leave_unsent(ticket)
    world.gate.first_token(ticket)
    assert world.is_empty()


async def test_who_leaves_the_queue_leaves_nothing_behind(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    second = world.gate.submit(request("b", 15_000))
    waiting = asyncio.create_task(second.decided())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    world.gate.leave_unsent(second)
    assert world.controller.jobs.keys() == {"a"}
    world.gate.finish(first, completed=True)
    assert world.is_empty()


async def test_a_decision_that_nobody_waits_for_any_more_is_kept_for_who_asks(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    second = world.gate.submit(request("b", 15_000))
    waiting = asyncio.create_task(second.decided())
    await asyncio.sleep(0)
    waiting.cancel()
    world.gate.finish(first, completed=True)  # decides `second` in the step in which its client left
    await asyncio.wait({waiting})
    assert isinstance(second.decision, Dispatch)
    assert isinstance(await second.decided(), Dispatch)
    world.gate.leave_unsent(second)
    assert world.is_empty()


async def test_who_leaves_when_decided_and_not_yet_sent_drains_nothing(world: Setup) -> None:
    ticket = world.gate.submit(request("a", 15_000))
    assert isinstance(ticket.decision, Dispatch)
    world.gate.leave_unsent(ticket)
    assert world.is_empty()


async def test_who_leaves_after_sending_is_charged_until_the_engine_has_let_go(world: Setup) -> None:
    ticket = world.gate.submit(request("a", 15_000))
    world.gate.leave(ticket)
    assert world.controller.jobs["a"].state is State.DRAINING
    assert not world.is_empty()
    world.gate.finish(ticket, completed=False)
    assert world.is_empty()


async def test_a_first_token_counts_once(world: Setup) -> None:
    ticket = world.gate.submit(request("a", 15_000))
    world.gate.first_token(ticket)
    at = ticket.first_token_at
    world.clock.now += 1
    world.gate.first_token(ticket)
    assert ticket.first_token_at == at
    assert world.controller.lines["b"].pool.backlog_tokens == 0
    world.gate.finish(ticket, completed=True)


async def test_back_pressure_puts_it_back_with_a_pause_and_the_timer_brings_it_again(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.gate.requeue(ticket)
    assert waits(ticket)
    waiting = asyncio.create_task(ticket.decided())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    world.clock.now += 1.0
    async with asyncio.timeout(2):
        assert isinstance(await waiting, Dispatch)
    world.gate.finish(ticket, completed=True)
    assert world.is_empty()
    world.gate.close()


async def test_whoever_cannot_wait_again_is_told_instead_of_waiting_for_ever(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.clock.now += 5.0
    world.gate.load("b", world.sample(waiting_uncached_tokens=0))  # taken for prefilled
    if world.gate.requeue(ticket):
        world.clock.now += 10.0
        async with asyncio.timeout(2):
            assert isinstance(await ticket.decided(), Dispatch)
    world.gate.finish(ticket, completed=False)
    assert world.is_empty()
    assert not world.gate.requeue(ticket)
    world.gate.close()


async def test_a_deadline_is_kept_without_anything_else_happening(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    second = world.gate.submit(request("b", 15_000, wait_limit_seconds=30.0))
    assert waits(second)
    world.clock.now += 31.0
    async with asyncio.timeout(2):
        refuse = await second.decided()
    assert isinstance(refuse, Refuse)
    assert refuse.reason is Reason.DEADLINE
    assert second.closed
    world.gate.finish(first, completed=True)
    assert world.is_empty()
    world.gate.close()


async def test_draining_refuses_the_queued_and_newcomers_and_lets_the_running_end(world: Setup) -> None:
    running = world.gate.submit(request("a", 15_000))
    queued = world.gate.submit(request("b", 15_000))
    world.gate.drain()
    newcomer = world.gate.submit(request("c"))
    for ticket in (queued, newcomer):
        assert isinstance(ticket.decision, Refuse)
        assert ticket.decision.reason is Reason.DRAINING
    assert world.gate.open_tickets == 1
    world.gate.finish(running, completed=True)
    assert world.is_empty()


async def test_back_pressure_while_draining_is_a_refusal(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.gate.drain()
    assert isinstance(ticket.decision, Dispatch)
    assert world.gate.requeue(ticket)
    refuse = await ticket.decided()
    assert isinstance(refuse, Refuse)
    assert refuse.reason is Reason.DRAINING
    assert world.is_empty()


async def test_a_slice_answered_after_its_request_lost_its_pool_is_no_error(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.gate.pool_down("b", "killed")
    assert world.gate.requeue(ticket)
    world.gate.slice_done("a", 2048, None)
    world.gate.slice_done("nobody", 2048, 0)
    world.gate.sliceable("a", 5000)
    world.gate.leave_unsent(ticket)
    assert world.is_empty()


async def test_with_no_backend_a_newcomer_is_refused_and_a_queued_one_waits_for_one(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    queued = world.gate.submit(request("b", 15_000))
    world.gate.pool_down("b", "connection refused")
    assert world.gate.down_reasons == {"b": "connection refused"}
    newcomer = world.gate.submit(request("c"))
    assert isinstance(newcomer.decision, Refuse)
    assert newcomer.decision.reason is Reason.NO_BACKEND
    world.gate.finish(first, completed=False)
    assert waits(queued)
    world.gate.pool_up("b", FACTS)
    assert isinstance(queued.decision, Dispatch)
    assert world.gate.down_reasons == {}
    world.gate.finish(queued, completed=True)
    assert world.is_empty()


async def test_a_server_that_comes_back_smaller_refuses_what_it_can_never_take(world: Setup) -> None:
    first = world.gate.submit(request("a", 15_000))
    queued = world.gate.submit(request("b", 15_000))
    world.gate.pool_down("b", "killed")
    world.gate.finish(first, completed=False)
    world.gate.pool_up("b", PoolFacts(pool_tokens=8_000, models=("tiny",)))
    assert isinstance(queued.decision, Refuse)
    assert queued.decision.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert world.is_empty()


async def test_the_same_id_twice_is_an_error_and_not_a_second_claim(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    with pytest.raises(ValueError, match="in use"):
        world.gate.submit(request("a"))
    world.gate.finish(ticket, completed=True)


async def test_a_long_request_urges_its_backend_to_report_and_a_short_one_does_not(world: Setup) -> None:
    short = world.gate.submit(request("a"))
    assert world.urged == []
    world.gate.finish(short, completed=True)
    world.gate.finish(world.gate.submit(request("b", 15_000)), completed=True)
    assert world.urged == ["b"]


async def test_streams_are_looked_at_and_their_growth_is_charged(world: Setup) -> None:
    ticket = world.gate.submit(request("a", max_tokens=None))
    world.gate.first_token(ticket)
    ticket.observed.generated_tokens = 500
    world.clock.now += 1.0
    world.gate.load("b", world.sample(running=1, used_tokens=600))
    assert world.controller.jobs["a"].generated_tokens == 500
    ticket.observed.usage = Usage(100, 520)
    world.gate.finish(ticket, completed=True)
    assert world.is_empty()


async def test_retractions_are_counted_from_their_growth(world: Setup) -> None:
    for total in (5, 5, 7):
        world.clock.now += 1.0
        world.gate.load("b", world.sample(retractions_total=total))
    world.clock.now += 1.0
    world.gate.load("b", world.sample(retractions_total=1))  # restarted
    assert world.gate.retractions["b"] == 2


async def test_a_closed_gate_runs_no_timer() -> None:
    world = Setup(limits=Limits())
    ticket = world.gate.submit(request("a"))
    world.gate.close()
    world.gate.finish(ticket, completed=False)
    assert world.is_empty()
    late = world.gate.submit(request("b"))
    world.gate.finish(late, completed=False)
    scheduled = [handle for handle in _timers() if not handle.cancelled()]
    assert not [handle for handle in scheduled if "Gate" in repr(handle)]


async def test_an_idle_gate_needs_no_timer(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.gate.finish(ticket, completed=True)
    await eventually(lambda: world.gate._stepper._timer is None)


def waits(ticket: Ticket) -> bool:
    return ticket.decision is None


def _timers() -> list[asyncio.TimerHandle]:
    timers: list[asyncio.TimerHandle] = getattr(asyncio.get_running_loop(), "_scheduled", [])
    return timers
