import asyncio
import gc
import threading
import time
from pathlib import Path

import orjson
import pytest

from proxy.tokens.counter import Counter
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sizer import Sizer

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. "


def chat(text: str, model: str = "m") -> bytes:
    return orjson.dumps({"model": model, "messages": [{"role": "user", "content": text}]})


async def test_before_loading_sizes_come_from_bytes_and_teach_nothing() -> None:
    sizer = Sizer()
    assert not sizer.ready
    sized = await sizer.size(Api.CHAT, chat(TEXT * 100))
    assert sized.prompt_tokens > 1_000
    for _ in range(30):
        sizer.observe(sized, sized.raw_tokens * 2)
    assert sizer.stats().samples == {}
    sizer.close()


async def test_loading_makes_it_ready() -> None:
    sizer = Sizer()
    await sizer.load()
    assert sizer.ready
    assert (await sizer.size(Api.CHAT, chat("hello world"))).raw_tokens == 2 + 4 + 3
    await sizer.load()
    sizer.close()


async def test_a_template_without_a_tokenizer_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    sizer = Sizer(chat_template=Path("/t.jinja"))
    await sizer.load()
    assert "PROXY_CHAT_TEMPLATE has no effect without PROXY_TOKENIZER_PATH" in caplog.text
    sizer.close()


async def test_small_bodies_are_sized_without_a_thread(sizer: Sizer) -> None:
    coroutine = sizer.size(Api.CHAT, chat("hello world"))
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value.raw_tokens == 9


async def test_large_bodies_are_sized_in_one_thread_and_the_loop_goes_on(sizer: Sizer) -> None:
    bodies = [chat(f"{index} " + TEXT * 5_000) for index in range(4)]
    sizing = asyncio.gather(*(sizer.size(Api.CHAT, body) for body in bodies))
    turns = 0
    while not sizing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert [thread.name for thread in threading.enumerate() if "token-counter" in thread.name].__len__() == 1
    assert all(sized.raw_tokens > 90_000 for sized in await sizing)


@pytest.mark.parametrize("size", [1, 100_000])
async def test_only_bad_requests_are_raised(sizer: Sizer, size: int) -> None:
    with pytest.raises(BadRequest):
        await sizer.size(Api.CHAT, b"[" * size)
    assert sizer.stats().backlog_bytes == 0


async def test_a_long_backlog_is_estimated_instead_of_waited_for(counter: Counter) -> None:
    sizer = Sizer(counter=Counter(counter.encoder, memo_entries=10), backlog_bytes=500_000)
    bodies = [chat(f"{index} " + TEXT * 5_000) for index in range(10)]
    sizes = await asyncio.gather(*(sizer.size(Api.CHAT, body) for body in bodies))

    assert 5 <= sizer.stats().sampled <= 9
    assert {round(sized.raw_tokens / sizes[0].raw_tokens, 1) for sized in sizes} == {1.0}
    assert sizer.stats().backlog_bytes == 0
    sizer.close()


async def test_a_giant_body_is_estimated(counter: Counter) -> None:
    sizer = Sizer(counter=counter, counted_bytes=100_000)
    await sizer.size(Api.CHAT, chat(TEXT * 5_000))
    assert sizer.stats().sampled == 1
    sizer.close()


async def test_a_client_that_leaves_while_waiting_frees_the_backlog(counter: Counter) -> None:
    sizer = Sizer(counter=Counter(counter.encoder, memo_entries=10))
    tasks = [asyncio.create_task(sizer.size(Api.CHAT, chat(f"{i} " + TEXT * 3_000))) for i in range(5)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sized = await sizer.size(Api.CHAT, chat(TEXT * 300))
    assert sized.raw_tokens > 1_000
    assert sizer.stats().backlog_bytes == 0
    sizer.close()


async def test_usage_calibrates_and_segments_stay_within_the_prompt(sizer: Sizer) -> None:
    text = TEXT * 400
    for index in range(30):
        sized = await sizer.size(Api.CHAT, chat(f"{index} " + text))
        sizer.observe(sized, round(sized.raw_tokens * 0.8))
    sized = await sizer.size(Api.CHAT, chat("new " + text))

    assert sized.prompt_tokens == pytest.approx(sized.raw_tokens * 0.8, rel=0.02)
    assert sized.segments
    assert sum(segment.tokens for segment in sized.segments) <= sized.prompt_tokens
    assert sizer.stats().ratios["m"] == pytest.approx(0.8, rel=0.02)


async def test_a_conversations_next_turn_builds_on_its_true_count(sizer: Sizer) -> None:
    messages = [{"role": "user", "content": TEXT * 50}]
    first = await sizer.size(Api.CHAT, orjson.dumps({"model": "m", "messages": messages}))
    for _ in range(20):
        sizer.observe(first, 5_000)
    more = [*messages, {"role": "assistant", "content": "Indeed."}, {"role": "user", "content": "Go on."}]
    second = await sizer.size(Api.CHAT, orjson.dumps({"model": "m", "messages": more}))

    assert 5_010 < second.prompt_tokens < 5_050


async def test_samples_are_wanted_until_two_hundred(sizer: Sizer) -> None:
    sized = await sizer.size(Api.CHAT, chat("hello"))
    assert sizer.needs_samples("m")
    for _ in range(200):
        sizer.observe(sized, 10)
    assert not sizer.needs_samples("m")
    assert sizer.needs_samples("other")


async def test_usage_is_wanted_again_for_what_was_hardly_seen(sizer: Sizer) -> None:
    english = await sizer.size(Api.CHAT, chat(TEXT * 20))
    for _ in range(200):
        sizer.observe(english, english.raw_tokens)

    assert not sizer.wants_usage(await sizer.size(Api.CHAT, chat(TEXT * 20)))
    assert sizer.wants_usage(await sizer.size(Api.CHAT, chat("敏捷的棕色狐狸跳过了懒狗" * 50)))
    assert sizer.wants_usage(await sizer.size(Api.CHAT, chat(TEXT * 20, model="other")))


async def test_ids_are_exact_and_teach_nothing(sizer: Sizer) -> None:
    sized = await sizer.size(Api.COMPLETIONS, orjson.dumps({"model": "m", "prompt": list(range(3_000))}))
    sizer.observe(sized, 9_999)

    assert (sized.prompt_tokens, sized.least_tokens, sized.exact) == (3_000, 3_000, True)
    assert sizer.stats().samples == {}
    assert sized.shape.largest_id == 2_999


async def test_the_estimate_from_bytes_follows_what_was_counted(sizer: Sizer) -> None:
    before = sizer.bytes_estimate(100_000)
    for index in range(200):
        await sizer.size(Api.CHAT, chat(f"{index} " + "敏捷的棕色狐狸跳过了懒狗" * 200))

    assert before == pytest.approx(100_000 / 3.5, rel=0.01)
    assert sizer.bytes_estimate(100_000) != before
    assert sizer.bytes_estimate(0) == 1


async def test_an_empty_prompt_still_takes_a_token(sizer: Sizer) -> None:
    body = orjson.dumps({"prompt": ["", "x"]})
    assert (await sizer.size(Api.COMPLETIONS, body)).prompt_tokens >= 1


async def test_the_collector_is_on_again_after_large_bodies(sizer: Sizer) -> None:
    await sizer.size(Api.CHAT, chat(TEXT * 1_000))
    assert gc.isenabled()


async def test_a_usual_chat_is_sized_in_well_under_a_millisecond(sizer: Sizer) -> None:
    body, took = chat(TEXT * 12), []
    for _ in range(50):
        start = time.perf_counter()
        await sizer.size(Api.CHAT, body)
        took.append(time.perf_counter() - start)

    assert min(took) < 0.001
