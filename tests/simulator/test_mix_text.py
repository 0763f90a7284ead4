from statistics import fmean, pstdev

import pytest

from proxy.simulator.mix_text import MixError, workload_of
from proxy.simulator.workload import Ask, Workload


def made(*texts: str, seconds: float = 60.0, seed: int = 1) -> Workload:
    return workload_of(texts, seconds=seconds, seed=seed)


def asks(workload: Workload) -> list[Ask]:
    return [turn.ask for client in workload.clients for turn in client.turns]


def test_arrivals_at_a_rate_go_on_until_the_mix_ends() -> None:
    workload = made("short:8/s:150-450:150", seconds=100.0)
    assert workload.requests == pytest.approx(800, rel=0.15)
    assert all(0 < client.starts_at < 100 for client in workload.clients)
    lengths = [ask.prompt_tokens for ask in asks(workload)]
    assert min(lengths) >= 150
    assert max(lengths) <= 450
    assert fmean(lengths) == pytest.approx(300, rel=0.05)


def test_clients_send_one_request_after_the_other() -> None:
    workload = made("long:6x2:64000:500")
    assert (len(workload.clients), workload.requests) == (6, 12)
    assert {(ask.prompt_tokens, ask.output_tokens, ask.max_tokens) for ask in asks(workload)} == {
        (64_000, 500, 500)
    }


def test_all_prompts_of_a_mix_differ() -> None:
    keys = [ask.spans[0][0] for ask in asks(made("long:6x2:64000:500", "other:6x2:64000:500"))]
    assert len(set(keys)) == 24


def test_a_single_request_comes_at_its_second() -> None:
    (client,) = made("giant@8:180K:200").clients
    assert client.starts_at == 8.0
    assert client.turns[0].ask.prompt_tokens == 180_000


def test_a_start_delays_arrivals_and_clients() -> None:
    workload = made("late@30:5/s:100:10", "later@40:2x1:1000:10")
    assert min(client.starts_at for client in workload.clients) > 30
    assert [client.starts_at for client in workload.clients[-2:]] == [40.0, 40.05]


def test_an_output_that_ends_by_itself_tells_nobody_its_length() -> None:
    drawn = asks(made("chat:50/s:100:~150"))
    assert {(ask.max_tokens, ask.min_tokens, ask.ignore_eos) for ask in drawn} == {(None, 0, False)}
    assert fmean(ask.output_tokens for ask in drawn) == pytest.approx(150, rel=0.1)
    assert pstdev(ask.output_tokens for ask in drawn) > 50
    capped = asks(made("chat:50/s:100:~150/200"))
    assert {ask.max_tokens for ask in capped} == {200}
    assert max(ask.output_tokens for ask in capped) == 200


def test_a_conversation_repeats_all_that_was_said_and_grows() -> None:
    (client,) = made("agent:1x3:48K:300:grow=900,think=3,tenant=acme").clients
    turns = client.turns
    assert [turn.ask.prompt_tokens for turn in turns] == [48_000, 49_200, 50_400]
    assert turns[1].ask.spans[:1] == turns[0].ask.spans
    assert turns[1].ask.spans[1] == (turns[0].ask.output_key, 300)
    assert turns[0].pause_seconds == 0.0
    assert turns[1].pause_seconds == pytest.approx(3.0, rel=0.2)
    assert {turn.ask.tenant for turn in turns} == {"acme"}


def test_built_in_mixes_have_names_and_go_with_others() -> None:
    assert {ask.kind for ask in asks(made("story", "extra:1/s:10:10"))} == {"short", "64K", "180K", "extra"}
    assert made("agents").requests == 240


def test_the_same_seed_gives_the_same_traffic_and_another_seed_another() -> None:
    text = "short:8/s:150-450:~150"
    assert made(text) == made(text)
    assert made(text) != made(text, seed=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "NAME"),
        ("nothing", "story, agents"),
        ("short:8/s:150", "PROMPT:OUTPUT"),
        ("short:x/s:150:10", "a rate"),
        ("short:0/s:150:10", "above 0"),
        ("long:0x3:150:10", "nobody"),
        ("a:0:10", "no number of tokens"),
        ("a:9-3:10", "the first is larger"),
        ("a:9:10/20", "ends by itself"),
        ("a@-3:9:10", "past"),
        ("a@nan:9:10", "not seconds"),
        ("a:9:10:colour=red", "tenant=..., think=..., grow=..."),
        ("a:1/s:9:10:think=3", "for clients"),
    ],
)
def test_a_description_that_cannot_be_read_is_named_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(MixError) as error:
        made(text)
    assert why in str(error.value)
    assert repr(text) in str(error.value)


def test_two_parts_of_one_name_would_share_their_prompts_and_are_refused() -> None:
    with pytest.raises(MixError, match="'a'"):
        made("a:9:9", "a:99:9")


def test_a_mix_without_a_request_is_refused() -> None:
    with pytest.raises(MixError, match="no request arrives within 1 s"):
        made("rare:0.001/s:9:9", seconds=1.0)
    with pytest.raises(MixError, match="no traffic"):
        made()
