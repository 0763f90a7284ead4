"""What is remembered of responses: bounded, by tenant, and with a history that fits what comes after it."""

import time

import orjson

from proxy.admission.types import Request, Segment
from proxy.api.keys import Tenant
from proxy.api.record import Record
from proxy.api.responses import Kept, Responses
from proxy.api.ticket import Ticket
from proxy.telemetry.tracing import NO_TRACER
from proxy.tokens.counter import Counter
from proxy.tokens.shape import Api
from proxy.tokens.sized import Sized
from proxy.tokens.sizer import Sizer
from proxy.upstream.call import Usage

TEXT = "The quick brown fox jumps over the lazy dog. " * 400


def name(number: int) -> str:
    return f"resp_{number:032x}"


def kept(tokens: int = 10, segments: int = 0) -> Kept:
    return Kept("b0", tokens, segments=tuple(Segment(b"%d" % index, 1) for index in range(segments)))


def test_a_tenant_finds_its_own_and_no_others() -> None:
    responses = Responses()
    responses.keep("a", name(1), kept())
    assert responses.find("a", name(1)) == kept()
    assert responses.find("b", name(1)) is None
    assert responses.find("a", name(2)) is None
    for other in ("", "resp_", "resp_1", name(1) + "0", name(1) + "\n", name(1).upper(), "x" * 10_000):
        assert responses.find("a", other) is None


def test_the_least_used_is_forgotten_first() -> None:
    responses = Responses(most=3)
    for number in (1, 2, 3):
        responses.keep("a", name(number), kept())
    responses.find("a", name(1))
    responses.keep("a", name(4), kept())
    assert [responses.find("a", name(number)) is not None for number in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]
    assert len(responses) == 3


def test_a_tenant_with_many_pushes_out_its_own_only() -> None:
    responses = Responses(most=100, most_of_one=5)
    responses.keep("quiet", name(0), kept())
    for number in range(1, 90):
        responses.keep("busy", name(number), kept())
    assert responses.find("quiet", name(0)) is not None
    assert len(responses) == 1 + 5
    assert responses.find("busy", name(89)) is not None
    assert responses.find("busy", name(80)) is None


def test_many_tenants_are_bounded_together() -> None:
    responses = Responses(most=10)
    for number in range(1000):
        responses.keep(f"tenant {number}", name(number), kept(segments=3))
    assert len(responses) == 10
    assert len(responses._tenants) == 10
    assert responses._segments == 30


def test_segments_are_bounded_and_the_oldest_lose_theirs() -> None:
    responses = Responses(most_segments=10)
    for number in (1, 2, 3):
        responses.keep("a", name(number), kept(tokens=number, segments=4))
    oldest, newest = responses.find("a", name(1)), responses.find("a", name(3))
    assert oldest is not None
    assert newest is not None
    assert (oldest.tokens, len(oldest.segments), len(newest.segments)) == (1, 0, 4)
    responses.keep("a", name(3), kept(tokens=3, segments=9))  # the same once more, grown
    assert responses._segments == 9


# --- a turn after another ---


async def sized(sizer: Sizer, **fields: object) -> Sized:
    return await sizer.size(Api.RESPONSES, orjson.dumps({"model": "m", **fields}))


def noted(responses: Responses, size: Sized, rid: str, usage: Usage | None) -> Kept:
    record = Record("id", 0.0, NO_TRACER.start("/", "id", []))
    record.tenant, record.sized, record.pool = Tenant("a"), size, "b0"
    record.ticket = Ticket(Request(rid, 1), time.monotonic(), None)
    record.ticket.observed.usage = usage
    responses.note(record, rid)
    found = responses.find("a", "resp_" + rid)
    assert found is not None
    return found


async def test_a_turn_has_the_history_before_it_and_its_segments() -> None:
    sizer, responses = Sizer(counter=Counter(None, memo_entries=100)), Responses()
    first = await sized(sizer, instructions="Be brief.", input=TEXT)
    assert len(first.segments) >= 2
    history = noted(responses, first, "1" * 32, Usage(first.prompt_tokens + 7, 500))
    second = history.before(await sized(sizer, instructions="Be brief.", input="And?"))
    assert history.tokens == first.prompt_tokens + 507
    assert history.tokens < second.prompt_tokens < history.tokens + 40
    assert second.least_tokens > history.tokens
    assert second.segments[: len(first.segments)] == first.segments
    assert sum(segment.tokens for segment in second.segments) == history.tokens
    third = noted(responses, second, "2" * 32, None).before(
        await sized(sizer, instructions="Be brief.", input="Why?")
    )
    assert third.segments[: len(second.segments)] == second.segments
    assert sum(segment.tokens for segment in third.segments) <= third.prompt_tokens
    sizer.close()


async def test_of_an_over_counted_prompt_only_so_many_segments_are_there() -> None:
    sizer, responses = Sizer(counter=Counter(None, memo_entries=100)), Responses()
    first = await sized(sizer, input=TEXT)
    history = noted(responses, first, "1" * 32, Usage(first.segments[0].tokens + 10, 5))
    assert history.segments == first.segments[:1]
    sizer.close()


async def test_a_conversation_of_thousands_of_turns_stays_bounded() -> None:
    sizer, responses = Sizer(counter=Counter(None, memo_entries=100)), Responses()
    size = await sized(sizer, input="Go on.")
    turn = size
    for number in range(3000):
        history = noted(responses, turn, f"{number:032x}", Usage(turn.prompt_tokens, 5))
        turn = history.before(size)
    assert len(turn.segments) == 1024
    assert sum(segment.tokens for segment in turn.segments) < turn.prompt_tokens
    assert responses._segments <= 100_000
    sizer.close()


async def test_other_instructions_or_tools_are_another_beginning() -> None:
    sizer, responses = Sizer(counter=Counter(None, memo_entries=100)), Responses()
    history = noted(responses, await sized(sizer, instructions="Be brief.", input=TEXT), "1" * 32, None)
    tool = {"type": "function", "name": "f", "parameters": {}}
    for fields in ({}, {"instructions": "Be long."}, {"instructions": "Be brief.", "tools": [tool]}):
        turn = history.before(await sized(sizer, input="And?", **fields))
        assert turn.segments == ()
        assert turn.prompt_tokens > history.tokens
    sizer.close()


async def test_a_turn_teaches_nothing_about_counting() -> None:
    sizer, responses = Sizer(counter=Counter(None, memo_entries=100)), Responses()
    history = noted(responses, await sized(sizer, input=TEXT), "1" * 32, None)
    turn = history.before(await sized(sizer, input="And?"))
    sizer.observe(turn, 10 * turn.prompt_tokens)
    assert not sizer.stats().samples
    sizer.close()
