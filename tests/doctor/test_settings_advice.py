"""Which settings doctor recommends, and which it says can never act: rules, without any server."""

from dataclasses import replace

import pytest

from proxy.admission.limits import Limits
from proxy.admission.types import PoolFacts
from proxy.app import limits_of
from proxy.backend_spec import BackendSpec
from proxy.doctor.advice import advice
from proxy.doctor.asking import Answers
from proxy.doctor.capacity import contexts_that_fit, largest_prompt
from proxy.doctor.idle import idle_settings
from proxy.settings import load_settings
from proxy.upstream.discovery import LOAD_SOURCES, Discovery
from proxy.upstream.sglang import RankLoad, ServerInfo
from proxy.upstream.traits import older_than_tried, parse_traits

FACTS = PoolFacts(
    186_624, max_request_tokens=186_618, context_tokens=1_048_576, max_running_requests=64, version="0.5.23"
)


def server(facts: PoolFacts = FACTS, **spec: str) -> Answers:
    info = ServerInfo((facts,), version=facts.version)
    named = BackendSpec(url="http://a", name="a", **spec)  # type: ignore[arg-type]
    return Answers(named, discovery=Discovery(info, LOAD_SOURCES[0]))


def recommended(*servers: Answers, **settings: str) -> dict[str, str]:
    chosen = load_settings({f"PROXY_{name.upper()}": value for name, value in settings.items()})
    found = advice(servers or (server(),), chosen, limits_of(chosen))
    assert all(item.reason for item in found)
    return {item.variable: item.value for item in found}


def idle(*servers: Answers, **settings: str) -> str:
    chosen = load_settings({f"PROXY_{name.upper()}": value for name, value in settings.items()})
    return "\n".join(f.text for f in idle_settings(servers or (server(),), chosen, limits_of(chosen)))


def test_the_storys_server_needs_no_other_settings() -> None:
    assert recommended() == {}
    assert idle() == ""


def test_a_short_is_one_chunk_of_the_server() -> None:
    assert recommended(server(replace(FACTS, chunk_tokens=4096))) == {"PROXY_SHORT_PREFILL_TOKENS": "4096"}
    assert recommended(server(replace(FACTS, chunk_tokens=4096)), short_prefill_tokens="4096") == {}
    larger = server(replace(FACTS, pool_tokens=2_000_000, chunk_tokens=16_384))
    assert recommended(larger) == {"PROXY_SHORT_PREFILL_TOKENS": "16384"}


def test_a_small_pool_gets_smaller_shorts_and_a_larger_share_for_them() -> None:
    small = server(replace(FACTS, pool_tokens=20_000, max_request_tokens=19_994))
    assert recommended(small) == {"PROXY_SHORT_PREFILL_TOKENS": "5000", "PROXY_EXPRESS_SHARE": "0.25"}


def test_several_servers_share_settings_that_suit_the_smallest() -> None:
    small = server(replace(FACTS, pool_tokens=20_000, max_request_tokens=19_994))
    assert recommended(server(), small) == recommended(small)


@pytest.mark.parametrize(("rate", "wanted"), [(50_000, None), (6_900, "70"), (2_000, "210"), (100, None)])
def test_the_promise_covers_two_of_the_largest_prompts_at_the_rate_seen(
    rate: int, wanted: str | None
) -> None:
    busy = server()
    busy.loads = [
        RankLoad(0, 0.0, 0, 0, 0, prefill_tokens_total=rate * 100, prefill_busy_seconds_total=100.0)
    ]
    assert recommended(busy).get("PROXY_MAX_QUEUE_SECONDS") == wanted  # beyond the limit: no setting helps


def test_hundreds_of_servers_are_polled_less_often() -> None:
    servers = [server() for _ in range(300)]
    assert recommended(*servers) == {"PROXY_POLL_SECONDS": "0.75"}


def test_nothing_is_recommended_where_nobody_answered() -> None:
    assert recommended(Answers(BackendSpec("http://a", "a"))) == {}
    assert idle(Answers(BackendSpec("http://a", "a")), max_prompt_tokens="1000000") == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_prompt_tokens": "200000"}, "no pool takes more than 186,618"),
        ({"max_long_contexts": "30"}, "no more than 18 of even the smallest longs fit"),
        ({"short_prefill_tokens": "200000"}, "every prompt is short"),
        ({"output_reserve_cap": "500000"}, "more than the largest pool holds"),
        ({"max_queue_tokens": "999999999"}, "1000 requests, the most that may wait, hold less"),
        ({"max_bypass_seconds": "600"}, "no request waits longer than PROXY_MAX_QUEUE_SECONDS_LIMIT"),
        ({"max_bypass_seconds": "60"}, "acts only for requests that ask for a longer wait"),
        ({"long_tier_tokens": "100000"}, "no server in PROXY_BACKENDS has tier long"),
    ],
)
def test_a_setting_that_can_never_act_is_told_with_the_figure_that_says_so(
    settings: dict[str, str], words: str
) -> None:
    text = idle(**settings)
    assert words in text
    assert text.startswith(f"PROXY_{next(iter(settings)).upper()}=")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_prompt_tokens": "100000"},
        {"max_long_contexts": "2"},
        {"max_queue_tokens": "1000000"},
        {"max_bypass_seconds": "30"},
        {"session_hold_seconds": "20"},
        {"prefill_slice_seconds": "0.5"},
    ],
)
def test_a_setting_that_can_act_is_not_mentioned(settings: dict[str, str]) -> None:
    assert idle(**settings) == ""


def test_without_a_radix_cache_slices_and_holds_never_act() -> None:
    bare = server(replace(FACTS, radix_cache=False))
    text = idle(bare, session_hold_seconds="20", prefill_slice_seconds="0.5")
    assert text.count("no server keeps prefixes") == 2
    assert idle(bare, session_hold_seconds="0") == ""


def test_a_tier_for_longs_needs_the_size_of_a_long() -> None:
    long_tier = server(tier="long")
    assert "PROXY_LONG_TIER_TOKENS is not set" in idle(server(), long_tier)
    assert idle(server(), long_tier, long_tier_tokens="100000") == ""


def test_contexts_fit_as_the_proxy_would_admit_them() -> None:
    assert [contexts_that_fit(FACTS, Limits(), tokens) for tokens in (64_000, 100_000, 180_000, 190_000)] == [
        2,
        1,
        1,
        0,
    ]
    assert contexts_that_fit(FACTS, Limits(express_share=0.0, pool_headroom=0.0), 93_000) == 1
    assert contexts_that_fit(FACTS, Limits(max_long_contexts=1), 64_000) == 1
    assert contexts_that_fit(replace(FACTS, pool_tokens=2_000_000), Limits(), 64_000) == 26


def test_the_largest_prompt_is_the_smallest_of_all_ceilings() -> None:
    assert largest_prompt(FACTS, Limits()) == 186_618
    assert largest_prompt(replace(FACTS, context_tokens=32_768), Limits()) == 32_767
    assert largest_prompt(FACTS, Limits(max_prompt_tokens=50_000)) == 50_000


@pytest.mark.parametrize(
    ("version", "old"),
    [("0.5.17", False), ("0.5.23", False), ("0.5.6.post2", True), ("0.4.9", True), ("1.0.0", False)],
)
def test_versions_older_than_any_tried_are_known(version: str, old: bool) -> None:
    assert older_than_tried(version) is old


@pytest.mark.parametrize("version", ["", "main", "0.5", "0.x.1"])
def test_a_version_that_cannot_be_read_is_not_called_old(version: str) -> None:
    assert not older_than_tried(version)


def test_what_a_server_does_not_say_is_not_known() -> None:
    traits = parse_traits({"internal_states": ["?", {"memory_usage": None}, {"memory_usage": {}}]})
    assert (traits.api_key, traits.admin_key, traits.window_pool_tokens) == (None, None, None)
    assert parse_traits({"api_key": None, "admin_api_key": "x"}).admin_key is True
