"""The engine does what SGLang was seen to do (sglang 0.5.23; the captures' own numbers where they fit)."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.simulator.engine import Engine
from proxy.simulator.jobs import (
    DuplicateRid,
    Ended,
    EndReason,
    EngineConfig,
    EngineEvent,
    Policy,
    PromptTooLong,
    Retracted,
    Started,
)
from proxy.simulator.pace import Pace
from proxy.simulator.prompt import SpanPrompt

# a second for 10,000 prefilled tokens, 10 ms a decode step: easy to reckon with
PACE = Pace(1e-4, 0.0, 0.01, 0.0)
CONFIG = EngineConfig(
    pool_tokens=8192, chunk_tokens=1000, max_prefill_tokens=4000, tokenize_token_seconds=0.0, pace=PACE
)


def send(engine: Engine, rid: str, tokens: int, output: int, *, shared: int = 0, eos: bool = False) -> None:
    """`eos`: it may produce far more than it does."""
    prompt = SpanPrompt([("shared", shared), (f"of {rid}", tokens - shared)])
    engine.submit(rid, prompt, output_tokens=output, max_new=None if eos else output, ignore_eos=not eos)


def until_idle(engine: Engine, limit: float = 10_000.0) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    while engine.unfinished and engine.now < limit:
        events += engine.advance(limit)
    return events


def starts(events: Iterable[EngineEvent]) -> dict[str, float]:
    return {event.rid: event.at for event in events if isinstance(event, Started)}


def ends(events: Iterable[EngineEvent]) -> dict[str, Ended]:
    return {event.rid: event for event in events if isinstance(event, Ended)}


def test_a_request_alone_takes_its_prefill_and_then_its_decode_steps() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 500, 11)
    events = until_idle(engine)
    assert starts(events)["a"] == pytest.approx(0.05)
    end = ends(events)["a"]
    assert end.at == pytest.approx(0.05 + 10 * 0.01)
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == (EndReason.LENGTH, 500, 11)


def test_ending_by_itself_is_a_stop() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 500, 11, eos=True)
    assert ends(until_idle(engine))["a"].reason is EndReason.STOP


def test_text_reaches_the_scheduler_when_it_is_tokenized_and_ids_at_once() -> None:
    engine = Engine(replace(CONFIG, tokenize_token_seconds=1e-3))
    prompt = SpanPrompt([("a", 500)])
    engine.submit("text", prompt, output_tokens=1)
    engine.submit("ids", SpanPrompt([("b", 500)]), output_tokens=1, delay_seconds=0)
    begun = starts(until_idle(engine))
    assert begun["ids"] == pytest.approx(0.05)
    assert begun["text"] == pytest.approx(0.55)


def test_prompts_are_tokenized_one_after_the_other() -> None:
    """SGLang does it on its event loop: twenty of 64K at once were seen to stop it for six seconds."""
    engine = Engine(replace(CONFIG, tokenize_token_seconds=1e-3))
    for rid in ("a", "b"):
        engine.submit(rid, SpanPrompt([(rid, 500)]), output_tokens=1)
    begun = starts(until_idle(engine))
    assert begun["a"] == pytest.approx(0.55)
    assert begun["b"] == pytest.approx(1.05)


def test_a_chunked_prompt_takes_every_step_whole_and_the_next_waits_for_its_last_chunk() -> None:
    engine = Engine(CONFIG)
    send(engine, "long", 4500, 5)
    send(engine, "short", 100, 5)
    begun = starts(until_idle(engine))
    # five chunks; what the last leaves over takes in the short one, so both start together
    assert begun["long"] == begun["short"] == pytest.approx(0.46)


def test_decodes_stall_while_a_prompt_is_prefilled() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 100, 50)
    engine.advance(0.105)
    before = engine.generated()["a"]
    send(engine, "long", 4000, 5)
    while not any(isinstance(event, Started) for event in engine.advance(1.0)):
        assert engine.generated()["a"] <= before + 1


def test_the_queue_stops_at_the_first_that_does_not_fit() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 6000, 100)
    send(engine, "too large for now", 3000, 10)
    send(engine, "small", 100, 10)
    events = until_idle(engine)
    assert starts(events)["small"] > ends(events)["a"].at
    assert starts(events)["small"] >= starts(events)["too large for now"]


def test_the_captured_queue_of_long_prompts_starts_in_the_captured_order() -> None:
    # sglang-captures: four 64K, one 180K and a small one on the story's pool; each alone but the first
    # two, and the small one together with the last
    engine = Engine(EngineConfig(chunk_tokens=4096, tokenize_token_seconds=0, pace=PACE))
    arrivals = (
        ("64K-0", 64_000, 400),
        ("64K-1", 64_000, 400),
        ("64K-2", 64_000, 400),
        ("180K-0", 180_000, 300),
        ("64K-3", 64_000, 200),
        ("small", 1_000, 50),
    )
    for rid, tokens, output in arrivals:
        send(engine, rid, tokens, output)
    events = until_idle(engine)
    begun, ended = starts(events), ends(events)
    assert begun["64K-1"] < ended["64K-0"].at == ended["64K-1"].at < begun["64K-2"]
    assert ended["64K-2"].at < begun["180K-0"] < ended["180K-0"].at < begun["64K-3"]
    assert begun["64K-3"] == begun["small"]


def test_running_requests_are_charged_what_they_may_still_produce() -> None:
    # 500 + 3000 each: with ignore_eos the whole output counts, so the third must wait
    engine = Engine(replace(CONFIG, max_prefill_tokens=500))
    for rid in "abc":
        send(engine, rid, 500, 3000)
    events = until_idle(engine)
    assert starts(events)["b"] < 1.0
    assert starts(events)["c"] >= ends(events)["a"].at


def test_without_ignore_eos_the_ratio_lets_more_in_and_the_pool_overflows() -> None:
    # captured: two running, 3,000 of 8,192 tokens used, a third is let in at ratio 0.1; then retraction
    engine = Engine(CONFIG)
    for rid in "ab":
        engine.submit(rid, SpanPrompt([(rid, 500)]), output_tokens=3000, max_new=3000)
    engine.advance(0.2)
    for _ in range(4):
        engine.advance(14.0)
    for rid in "cd":
        engine.submit(rid, SpanPrompt([(rid, 500)]), output_tokens=3000, max_new=3000)
    events = until_idle(engine)
    retracted = [event.rid for event in events if isinstance(event, Retracted)]
    assert retracted == ["c"]  # the one with the least output
    assert ends(events)["c"].completion_tokens == 3000
    assert engine.scheduler.retractions == 1
    # thrown back to the end of the queue, behind the one that waited
    assert starts(events)["d"] < ends(events)["c"].at


def test_the_longest_output_that_is_reserved_is_4096_tokens() -> None:
    engine = Engine(CONFIG)
    engine.submit("a", SpanPrompt([("a", 500)]), output_tokens=6500, max_new=6500)
    engine.advance(0.01)
    engine.submit("b", SpanPrompt([("b", 500)]), output_tokens=6500, max_new=6500)
    events = until_idle(engine)
    assert starts(events)["b"] < 0.2
    assert [event.rid for event in events if isinstance(event, Retracted)] == ["b"]
    assert ends(events)["b"].completion_tokens == 6500


def test_a_prompt_that_fills_the_pool_is_served_and_its_output_cut() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", CONFIG.max_request_tokens, 4000)
    end = ends(until_idle(engine))["a"]
    assert end.completion_tokens == CONFIG.pool_tokens - CONFIG.max_request_tokens - 2


def test_more_than_the_pool_or_the_context_is_refused() -> None:
    engine = Engine(replace(CONFIG, context_tokens=20_000))
    with pytest.raises(PromptTooLong) as pool:
        send(engine, "a", 8187, 1)
    assert (pool.value.of_pool, pool.value.limit) == (True, 8186)
    with pytest.raises(PromptTooLong) as context:
        send(engine, "a", 20_000, 1)
    assert not context.value.of_pool


def test_two_live_requests_cannot_have_one_id() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 10, 1)
    with pytest.raises(DuplicateRid):
        send(engine, "a", 10, 1)


def test_at_most_so_many_run() -> None:
    engine = Engine(replace(CONFIG, max_running_requests=2))
    for rid in "abc":
        send(engine, rid, 10, 10)
    events = until_idle(engine)
    assert starts(events)["c"] > ends(events)["a"].at - 1e-9


def test_at_most_so_many_wait() -> None:
    engine = Engine(replace(CONFIG, max_queued_requests=2))
    send(engine, "running", 6000, 100)
    engine.advance(1.0)
    for rid in "abc":
        send(engine, rid, 3000, 1)
    turned_away = [end for end in ends(until_idle(engine)).values() if end.reason is EndReason.QUEUE_FULL]
    assert [end.rid for end in turned_away] == ["c"]


# --- the cache --------------------------------------------------------------------------------


def test_a_finished_request_leaves_its_tokens_cached_and_they_count_as_free() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 500, 3000)
    until_idle(engine)
    engine.advance(engine.now + 1)
    load = engine.load()
    assert (load.used_tokens, load.evictable_tokens) == (0, 3499)
    assert load.available_tokens == 8192 - 3499


def test_the_next_turn_of_a_conversation_prefills_only_what_is_new() -> None:
    engine = Engine(CONFIG)
    first = SpanPrompt([("question", 2000)])
    engine.submit("1", first, output_tokens=101, output_key="answer")
    until_idle(engine)
    second = SpanPrompt([("question", 2000), ("answer", 101), ("next", 200)])
    engine.submit("2", second, output_tokens=1)
    at = engine.now
    events = until_idle(engine)
    assert ends(events)["2"].cached_tokens == 2100  # the last token generated has no cache entry yet
    assert starts(events)["2"] - at == pytest.approx(0.0201)


def test_the_same_prompt_again_prefills_one_token() -> None:
    engine = Engine(CONFIG)
    for rid in "ab":
        engine.submit(rid, SpanPrompt([("same", 3000)]), output_tokens=5)
        events = until_idle(engine)
    assert ends(events)["b"].cached_tokens == 2999


def test_a_shared_prefix_of_running_requests_is_used_once() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 1000, 400, shared=800)
    engine.advance(0.2)
    engine.advance(0.3)
    send(engine, "b", 1000, 400, shared=800)
    engine.advance(0.5)
    engine.advance(1.0)
    engine.advance(2.0)
    outputs = sum(engine.generated().values())
    assert engine.scheduler.kv.used == 1200 + outputs  # the step under way has taken its slots


def test_growing_slices_fill_the_cache_that_the_request_then_hits() -> None:
    engine = Engine(CONFIG)
    cached = []
    for upto in (2048, 4096, 6144):
        engine.submit(f"slice {upto}", SpanPrompt([("ids", upto)]), output_tokens=0, max_new=0)
        cached.append(ends(until_idle(engine))[f"slice {upto}"].cached_tokens)
    engine.submit("request", SpanPrompt([("ids", 7609)]), output_tokens=4)
    end = ends(until_idle(engine))["request"]
    assert cached == [0, 2048, 4096]
    assert end.cached_tokens == 6144


def test_what_somebody_in_the_queue_will_need_is_evicted_last() -> None:
    """Behind a head that does not fit, too: every 32nd pass over the queue refreshes what it would hit."""
    engine = Engine(replace(CONFIG, pool_tokens=1000, chunk_tokens=8, max_prefill_tokens=8))
    for rid in ("older", "newer"):
        engine.submit(rid, SpanPrompt([(rid, 300)]), output_tokens=1, max_new=1, ignore_eos=True)
        until_idle(engine)
    send(engine, "running", 280, 350)  # evicts one of the two, and fills the pool with the other
    engine.advance(engine.now + 0.001)
    send(engine, "head", 900, 10)
    follower = SpanPrompt([("older", 300), ("its next turn", 20)])
    engine.submit("follower", follower, output_tokens=1, max_new=1, ignore_eos=True)
    ran = engine.now + 2.5
    while engine.now < ran:
        engine.advance(ran)
    engine.abort("running")
    engine.abort("head")
    assert ends(until_idle(engine))["follower"].cached_tokens == 300


def test_without_a_radix_cache_nothing_is_kept() -> None:
    engine = Engine(replace(CONFIG, radix_cache=False))
    for rid in "ab":
        engine.submit(rid, SpanPrompt([("same", 3000)]), output_tokens=5)
        events = until_idle(engine)
    assert ends(events)["b"].cached_tokens == 0
    assert engine.scheduler.kv.available == 8192


def test_the_cache_is_flushed_only_when_nothing_runs() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 500, 10)
    assert not engine.flush_cache()
    until_idle(engine)
    assert engine.flush_cache()
    assert engine.scheduler.kv.available == 8192


# --- aborts -----------------------------------------------------------------------------------


def test_an_abort_ends_every_request_whose_id_starts_so() -> None:
    engine = Engine(CONFIG)
    for rid in ("job-1", "job-10", "other"):
        send(engine, rid, 100, 500)
    engine.advance(0.2)
    engine.advance(0.25)
    engine.abort("job-1")
    reasons = {rid: end.reason for rid, end in ends(until_idle(engine)).items()}
    assert reasons == {"job-1": EndReason.ABORT, "job-10": EndReason.ABORT, "other": EndReason.LENGTH}


def test_an_abort_during_prefill_waits_for_the_chunk_under_way() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 8000, 10)
    engine.advance(0.25)
    engine.abort("a")
    end = ends(until_idle(engine))["a"]
    assert end.at == pytest.approx(0.3)
    assert engine.scheduler.kv.used == 0


def test_an_abort_while_it_is_tokenized_is_lost() -> None:
    engine = Engine(replace(CONFIG, tokenize_token_seconds=1e-3))
    send(engine, "a", 500, 10)
    engine.advance(0.1)
    engine.abort("a")
    assert ends(until_idle(engine))["a"].reason is EndReason.LENGTH


def test_a_waiting_request_is_gone_after_the_step_under_way() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 6000, 100)
    send(engine, "b", 3000, 10)
    engine.advance(0.65)
    engine.advance(0.66)
    engine.abort("b")
    assert ends(engine.advance(0.7))["b"].at < 0.68


# --- what it publishes ------------------------------------------------------------------------


def test_a_request_in_chunked_prefill_is_neither_running_nor_waiting() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 5000, 10)
    engine.advance(0.25)
    load = engine.load()
    assert (load.running, load.waiting, load.used_tokens) == (0, 0, 2000)
    assert load.waiting_uncached_tokens == 4000  # as captured: the chunk just done is not taken off yet


def test_the_load_is_as_old_as_the_last_15_decode_steps() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 100, 500)
    while not engine.advance(1.0):
        pass
    ages = []
    for tick in range(1, 60):
        engine.advance(0.01 + tick * 0.013)
        ages.append(engine.now - engine.load().at)
    assert 0.1 < max(ages) < 0.17


def test_the_total_counts_all_that_waits_and_may_exceed_the_pool() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 6000, 100)
    send(engine, "b", 6000, 100)
    engine.advance(0.4)
    load = engine.load()
    assert load.waiting == 1
    assert load.total_tokens == load.used_tokens + 6000


def test_prefill_counters_give_the_true_rate() -> None:
    engine = Engine(CONFIG)
    send(engine, "a", 5000, 10)
    until_idle(engine)
    load = engine.load()
    assert load.prefill_tokens_total / load.prefill_busy_seconds_total == pytest.approx(10_000)


# --- policies ---------------------------------------------------------------------------------


def test_shortest_prefill_first_lets_shorter_ones_share_the_chunk() -> None:
    engine = Engine(replace(CONFIG, policy=Policy.SHORTEST_PREFILL_FIRST))
    send(engine, "long", 4500, 5)
    engine.advance(0.05)
    send(engine, "short", 100, 5)
    begun = starts(until_idle(engine))
    assert begun["short"] == pytest.approx(0.2)
    assert begun["long"] > 0.45


def test_longest_prefix_match_prefers_what_is_cached() -> None:
    engine = Engine(replace(CONFIG, policy=Policy.LPM))
    send(engine, "warm", 1000, 2, shared=900)
    until_idle(engine)
    send(engine, "holding", 6500, 50)
    engine.advance(engine.now + 0.1)
    send(engine, "cold", 2000, 2)
    send(engine, "cached", 1000, 2, shared=900)
    begun = starts(until_idle(engine))
    assert begun["cached"] <= begun["cold"]


# --- always -----------------------------------------------------------------------------------

sendings = st.lists(
    st.tuples(
        st.integers(1, 6000),  # prompt
        st.integers(0, 800),  # output
        st.integers(0, 3),  # which shared prefix
        st.booleans(),  # ignore_eos
        st.floats(0.0, 1.0),  # pause
        st.booleans(),  # abort somebody
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(sendings, st.sampled_from(list(Policy)), st.booleans())
def test_every_token_is_accounted_for_and_everything_ends(
    sends: list[tuple[int, int, int, bool, float, bool]], policy: Policy, radix: bool
) -> None:
    engine = Engine(replace(CONFIG, policy=policy, radix_cache=radix))
    kv, over = engine.scheduler.kv, []
    for number, (tokens, output, group, ignore_eos, pause, abort) in enumerate(sends):
        spans = [(f"group {group}", tokens // 2), (f"own {number}", tokens - tokens // 2)]
        engine.submit(
            f"r{number:03}", SpanPrompt(spans), output_tokens=output, max_new=output, ignore_eos=ignore_eos
        )
        if abort:
            engine.abort(f"r{number // 2:03}")
        to = engine.now + pause
        while engine.now < to:
            over += [event for event in engine.advance(to) if isinstance(event, Ended)]
            assert 0 <= kv.used <= kv.capacity
            assert kv.available >= 0
    over += ends(until_idle(engine)).values()
    assert sorted(end.rid for end in over) == [f"r{number:03}" for number in range(len(sends))]
    assert (kv.used, kv.private, engine.unfinished) == (0, 0, 0)
