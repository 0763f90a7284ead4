from itertools import pairwise
from typing import Any

import orjson

from proxy.tokens.chain import MOST_SEGMENTS, SEGMENT_TOKENS
from proxy.tokens.composition import COMPONENTS, DIGITS
from proxy.tokens.counter import Counter
from proxy.tokens.measure import Measured, measure
from proxy.tokens.reading import read
from proxy.tokens.shape import Api

PARAGRAPH = "All happy families are alike; each unhappy family is unhappy in its own way. " * 10


def measured(counter: Counter, api: Api = Api.CHAT, *, sampled: bool = False, **body: Any) -> Measured:
    raw = orjson.dumps({"model": "m"} | body)
    shape, prompt = read(api, raw)
    return measure(counter, shape, prompt, sampled=sampled)


def turns(count: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"{i} {PARAGRAPH}"} for i in range(count)]


def keys(found: Measured) -> list[bytes]:
    return [mark.key for mark in found.segments]


def test_a_chat_is_its_texts_plus_four_a_message_and_three(counter: Counter) -> None:
    messages = [{"role": "system", "content": "hello world"}, {"role": "user", "content": "hello world"}]

    assert measured(counter, messages=messages).tokens == 2 * (2 + 4) + 3


def test_ids_count_one_each(counter: Counter) -> None:
    assert measured(counter, Api.COMPLETIONS, prompt=list(range(5_000))).tokens == 5_000


def test_a_batch_is_summed(counter: Counter) -> None:
    assert measured(counter, Api.COMPLETIONS, prompt=["hello world"] * 3).tokens == 6


def test_the_next_turn_shares_all_closed_segments(counter: Counter) -> None:
    first, second = measured(counter, messages=turns(21)), measured(counter, messages=turns(23))

    assert len(first.segments) >= 5
    assert keys(second)[: len(keys(first))] == keys(first)
    assert second.segments[: len(first.segments)] == first.segments


def test_segments_hold_at_least_512_tokens_and_never_more_than_the_prompt(counter: Counter) -> None:
    found = measured(counter, messages=turns(40))
    ends = [0, *(mark.tokens for mark in found.segments)]

    assert all(end - start >= SEGMENT_TOKENS for start, end in pairwise(ends))
    assert ends[-1] <= found.tokens


def test_keys_are_sixteen_bytes_and_all_different(counter: Counter) -> None:
    found = keys(measured(counter, messages=[{"role": "user", "content": PARAGRAPH}] * 40))

    assert {len(key) for key in found} == {16}
    assert len(set(found)) == len(found)


def test_a_difference_changes_every_later_key(counter: Counter) -> None:
    changed = turns(20)
    changed[10] = changed[10] | {"content": changed[10]["content"] + "!"}
    first, second = keys(measured(counter, messages=turns(20))), keys(measured(counter, messages=changed))
    common = [a == b for a, b in zip(first, second, strict=True)]

    assert common[0]
    assert not common[-1]
    assert sorted(common, reverse=True) == common


def test_role_model_tools_and_cache_scope_are_part_of_the_key(counter: Counter) -> None:
    plain = keys(measured(counter, messages=turns(10)))[0]
    other_role = [{"role": "system", "content": turns(1)[0]["content"]}, *turns(10)[1:]]

    assert keys(measured(counter, messages=other_role))[0] != plain
    assert keys(measured(counter, messages=turns(10), model="n"))[0] != plain
    assert keys(measured(counter, messages=turns(10), cache_salt="s"))[0] != plain
    assert keys(measured(counter, messages=turns(10), tools=[{"function": {"name": "f"}}]))[0] != plain


def test_texts_that_join_to_the_same_are_told_apart(counter: Counter) -> None:
    def conversation(first: str, second: str) -> list[dict[str, Any]]:
        parts = [
            {"type": "text", "text": first},
            {"type": "text", "text": second},
            {"type": "text", "text": PARAGRAPH * 5},
        ]
        return [{"role": "user", "content": parts}]

    assert keys(measured(counter, messages=conversation("ab", "c"))) != keys(
        measured(counter, messages=conversation("a", "bc"))
    )


def test_a_long_text_that_grows_shares_its_beginning(counter: Counter) -> None:
    story = PARAGRAPH * 100
    first = keys(measured(counter, Api.COMPLETIONS, prompt=story))
    second = keys(measured(counter, Api.COMPLETIONS, prompt=story + PARAGRAPH * 20))
    shared = sum(a == b for a, b in zip(first, second, strict=False))

    assert shared >= len(first) - 1 > 5


def test_ids_that_grow_share_their_beginning(counter: Counter) -> None:
    first = keys(measured(counter, Api.COMPLETIONS, prompt=list(range(10_000))))
    second = keys(measured(counter, Api.COMPLETIONS, prompt=list(range(12_000))))

    assert first[:4] == second[:4]
    assert len(first) >= 4


def test_a_batch_has_no_segments(counter: Counter) -> None:
    assert measured(counter, Api.COMPLETIONS, prompt=[PARAGRAPH * 50] * 2).segments == ()


def test_there_are_never_more_than_1024_segments(counter: Counter) -> None:
    found = measured(counter, Api.COMPLETIONS, prompt=list(range(4_000_000)))

    assert len(found.segments) <= MOST_SEGMENTS
    assert found.tokens == 4_000_000


def test_different_images_make_different_keys(counter: Counter) -> None:
    def asked(url: str) -> list[bytes]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": PARAGRAPH}]
        return keys(measured(counter, messages=[{"role": "user", "content": parts}] * 3))

    assert asked("https://x/1.png") != asked("https://x/2.png")
    assert asked("https://x/1.png") == asked("https://x/1.png")


def test_an_estimate_from_samples_is_close_and_has_the_same_keys(counter: Counter) -> None:
    text = "".join(
        f"{i} bottles of beer on the wall, take {i % 7} down and pass them around\n" for i in range(9_000)
    )
    sampled = measured(counter, sampled=True, messages=[{"role": "user", "content": text}])
    counted = measured(counter, messages=[{"role": "user", "content": text}])

    assert abs(sampled.tokens / counted.tokens - 1) < 0.05
    assert keys(sampled)[-1] in keys(counted)


def test_a_prompt_is_told_apart_by_component(counter: Counter) -> None:
    messages = [
        {"role": "user", "content": "敏捷的棕色狐狸" * 50},
        {"role": "user", "content": "1234 " * 500},
    ]
    found = measured(counter, messages=messages, tools=[{"function": {"name": "f"}}])
    parts = dict(zip(COMPONENTS, found.composition, strict=True))

    assert parts["overhead"] == 2 * 4 + 3
    assert parts["tools"] > 10
    assert parts["han"] > 200
    assert parts["digits"] == 2_000
    assert parts["constant"] == 1
    assert sum(found.composition[:DIGITS]) == found.tokens


def test_of_a_batch_each_prompt_is_one(counter: Counter) -> None:
    found = measured(counter, Api.COMPLETIONS, prompt=["hello world", "敏捷的棕色狐狸"])

    assert found.composition[-1] == 2
    assert sum(found.composition[:DIGITS]) == found.tokens
