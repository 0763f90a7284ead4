"""`plan`: from its options to text, JSON and picture. Virtual time: all of it runs in a second or two."""

import json
import sys
from argparse import ArgumentParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from proxy.app import limits_of
from proxy.cli import main as cli
from proxy.plan.command import add_arguments, main
from proxy.plan.figures import Grouping, asked, lanes_of, parse_targets
from proxy.plan.policies import policies
from proxy.plan.progress import Progress
from proxy.plan.questions import QUESTIONS
from proxy.plan.text import NEVER
from proxy.settings import Settings, SettingsError
from proxy.settings_text import variable
from proxy.simulator.records import Outcome, Record, Run

SMALL = ("--mix", "short:2/s:150-450:150", "--mix", "long:3x1:64000:200", "--seconds", "20")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in tuple(os.environ):
        if name.startswith("PROXY_"):
            monkeypatch.delenv(name)


def run(*words: str) -> int:
    parser = ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(words))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(*words) == 0
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(said(capsys, "--json", *words))
    return document


def limit(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(x for x in document["runs"][0]["limits"] if x["variable"] == name)
    return found


def group(document: dict[str, Any], run_name: str, name: str) -> dict[str, Any]:
    side = next(x for x in document["runs"] if x["name"] == run_name)
    found: dict[str, Any] = next(x for x in side["groups"] if x["group"] == name)
    return found


def test_the_command_line_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["plan", "--no-questions", *SMALL]) == 0
    assert "Traffic: short:2/s:150-450:150, long:3x1:64000:200" in capsys.readouterr().out


def test_its_help_explains_how_to_describe_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli(["plan", "--help"])
    out = capsys.readouterr().out
    assert "NAME[@START]:[HOW:]PROMPT:OUTPUT[:OPTIONS]" in out
    assert "--compare EXPRESS_SHARE=0.2" in out


def test_every_lane_is_told_with_and_without_the_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, "--direct", "--no-questions", *SMALL)
    direct, proxied = group(document, "direct", "short"), group(document, "proxy", "short")
    assert direct["offered"] == proxied["offered"] > 20
    assert proxied["ttft_p99_seconds"] < direct["ttft_p99_seconds"] / 4
    assert proxied["goodput"] == 1.0 > direct["goodput"]
    assert group(document, "proxy", "long")["offered"] == 3
    text = said(capsys, "--direct", "--no-questions", *SMALL)
    assert "100.0% within 1 s" in text
    assert "peak use of the pool" in text


def test_a_limit_that_never_acted_is_said_plainly_not_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, *SMALL)
    for name in ("PROXY_MAX_QUEUE_REQUESTS", "PROXY_MAX_QUEUE_SECONDS", "PROXY_OUTPUT_RESERVE_CAP"):
        assert (limit(document, name)["acted"], limit(document, name)["first"]) == (False, None)
    text = said(capsys, *SMALL)
    at = text.index("PROXY_MAX_QUEUE_REQUESTS=1000")
    assert NEVER in text[at : at + 80]
    assert "not set" in text


def test_a_limit_that_acted_is_told_with_the_first_request_it_touched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = told(capsys, "--set", "max_long_contexts=1", *SMALL)
    found = limit(document, "PROXY_MAX_LONG_CONTEXTS")
    assert found["acted"]
    assert found["first"]["rid"].startswith("r")
    assert document["runs"][0]["held_requests"]["long_contexts"] >= 1
    assert document["runs"][0]["set"] == {"PROXY_MAX_LONG_CONTEXTS": "1"}
    text = said(capsys, "--set", "max_long_contexts=1", *SMALL)
    assert "long contexts resident at once: " in text


def test_a_promise_that_is_too_short_refuses_and_costs_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, "--set", "max_queue_seconds=2", *SMALL)
    longs = group(document, "proxy", "long")
    assert longs["refusals"] >= 1
    assert longs["goodput"] < 1.0
    assert limit(document, "PROXY_MAX_QUEUE_SECONDS")["acted"]
    assert document["runs"][0]["refusals"]["would_miss_deadline"] >= 1


def test_a_queue_that_is_too_small_is_found_full(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, "--set", "max_queue_requests=1", "--mix", "long:5x1:100000:200")
    assert document["runs"][0]["refusals"]["queue_full"] >= 1
    assert limit(document, "PROXY_MAX_QUEUE_REQUESTS")["acted"]
    assert not limit(document, "PROXY_MAX_QUEUE_TOKENS")["acted"]


def test_refused_clients_may_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--set", "max_queue_requests=1", "--no-questions", "--mix", "long:5x1:100000:200")
    once = group(told(capsys, *words), "proxy", "long")
    again = group(told(capsys, "--retries", "5", *words), "proxy", "long")
    assert once["offered"] == again["offered"] == 5
    assert once["in_time"] < again["in_time"]


def test_a_prompt_that_no_pool_takes_counts_as_long_though_it_never_got_a_lane(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = told(capsys, "--set", "max_prompt_tokens=50000", "--no-questions", *SMALL)
    assert group(document, "proxy", "long")["refusals"] == 3
    assert group(document, "proxy", "short")["refusals"] == 0


def test_policies_are_compared_over_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--no-questions", "--compare", "MAX_LONG_CONTEXTS=1", "--compare", "max_queue_requests=999")
    document = told(capsys, *words, *SMALL)
    names = [side["name"] for side in document["runs"]]
    assert names == ["proxy", "MAX_LONG_CONTEXTS=1", "MAX_QUEUE_REQUESTS=999"]
    assert [side["same_as_first"] for side in document["runs"]] == [False, False, True]
    assert "MAX_QUEUE_REQUESTS=999: every decision is the same as under proxy" in said(capsys, *words, *SMALL)


def test_several_changes_make_one_policy_when_they_stand_together() -> None:
    first, second = policies(
        ["pool_headroom=0.05"], ["express_share=0.2; PROXY_MAX_LONG_CONTEXTS=2"], {"PROXY_MODE": "shadow"}
    )
    assert (first.limits.pool_headroom, first.limits.express_share) == (0.05, 0.1)
    assert (second.limits.express_share, second.limits.max_long_contexts) == (0.2, 2)
    assert second.limits.pool_headroom == 0.05
    assert second.name == "EXPRESS_SHARE=0.2; MAX_LONG_CONTEXTS=2"
    assert first.limits.mode == second.limits.mode == "enforce"


def test_an_empty_value_unsets_what_the_environment_sets() -> None:
    (policy,) = policies(["max_long_contexts="], [], {"PROXY_MAX_LONG_CONTEXTS": "3"})
    assert policy.limits.max_long_contexts is None


def test_limits_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROXY_MAX_LONG_CONTEXTS", "1")
    monkeypatch.setenv("PROXY_POOL_TOKENS", "100000")
    document = told(capsys, *SMALL)
    assert limit(document, "PROXY_MAX_LONG_CONTEXTS")["value"] == "1"
    assert document["runs"][0]["peak_committed_tokens"] < 100_000


def test_a_recorded_trace_is_replayed_and_its_assumptions_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "moon.jsonl"
    lines = [{"timestamp": 500 * n, "input_length": 900 * n, "output_length": 30} for n in range(1, 9)]
    path.write_text("\n".join(map(json.dumps, lines)))
    text = said(capsys, "--trace", str(path), "--no-questions", "--by", "kind")
    assert "8 requests in 4 s" in text
    assert "milliseconds" in text
    assert "to 1K" in text


def test_groups_may_be_kinds_and_tenants(capsys: pytest.CaptureFixture[str]) -> None:
    mix = ("--mix", "a:2/s:100:20:tenant=x", "--mix", "b:1x1:20000:20:tenant=y", "--seconds", "5")
    kinds = told(capsys, "--by", "kind", "--no-questions", *mix)
    assert [x["group"] for x in kinds["runs"][0]["groups"]] == ["a", "b"]
    tenants = told(capsys, "--by", "tenant", "--no-questions", *mix)
    assert [x["group"] for x in tenants["runs"][0]["groups"]] == ["x", "y"]


def test_a_picture_is_drawn_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "plan.png"
    assert run("--no-questions", "--direct", "--picture", str(path), *SMALL) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Picture: {path}" in capsys.readouterr().err


def test_without_matplotlib_there_is_a_word_instead_of_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("--no-questions", "--picture", str(tmp_path / "plan.png"), *SMALL) == 0
    assert "matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--mix", "x"), "mix 'x'"),
        (("--set", "express_shar=1"), "the nearest is PROXY_EXPRESS_SHARE"),
        (("--set", "express_share"), "NAME=VALUE"),
        (("--compare", "max_queue_seconds=-1"), "PROXY_MAX_QUEUE_SECONDS='-1'"),
        (("--trace", "/nowhere/at/all"), "/nowhere/at/all: No such file"),
        (("--target", "medium=1"), "LANE=SECONDS"),
        (("--pace", "slow"), "pace 'slow'"),
        (("--pool-tokens", "0"), "--pool-tokens 0"),
        (("--seconds", "0"), "--seconds 0"),
        (("--load", "0", "--trace", "x"), "--load 0"),
        (("--no-questions", "--picture", "x.nothing", *SMALL), "--picture x.nothing"),
    ],
)
def test_what_cannot_be_run_ends_with_one_line_and_status_2(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("plan: ")
    assert why in error


def test_a_misspelt_variable_of_the_environment_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROXY_EXPRES_SHARE", "0.2")
    assert run("--no-questions", "--mix", "a:9:9") == 0
    assert "PROXY_EXPRESS_SHARE" in capsys.readouterr().err


def test_no_line_is_wider_than_a_terminal_but_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--direct", *SMALL)
    assert max(map(len, text.splitlines())) <= 110


def test_every_setting_that_reaches_the_limits_can_be_asked_about() -> None:
    asked_about = {question.setting for question in QUESTIONS}
    plain = Settings()
    changed = {"mode"}  # not a limit
    for name, field in Settings.model_fields.items():
        value = getattr(plain, name)
        if field.annotation in (int, float) or value is None:
            other = 7 if value is None else value + 1 if isinstance(value, int) else value * 0.9
            if limits_of(plain.model_copy(update={name: other})) != limits_of(plain):
                changed.add(name)
    assert changed - {"mode"} <= asked_about, f"add a question for {changed - asked_about}"
    assert {variable(name) for name in asked_about} <= {variable(name) for name in Settings.model_fields}


def test_a_wrong_setting_is_an_error_of_settings() -> None:
    with pytest.raises(SettingsError, match="nearest"):
        policies(["nothing=1"], [], {})


# --- figures ----------------------------------------------------------------------------------


def record(client: str, sent_at: float, outcome: Outcome, **fields: Any) -> Record:
    known: dict[str, Any] = {"rid": f"{client} {sent_at}", "kind": "k", "prompt_tokens": 100, "lane": "short"}
    return Record(client=client, sent_at=sent_at, outcome=outcome, **{**known, "asked_at": sent_at, **fields})


def test_goodput_counts_over_all_that_was_offered() -> None:
    records = [
        record("a", 0.0, Outcome.DONE, first_token_at=0.5),
        record("b", 0.0, Outcome.DONE, first_token_at=1.5),  # too late
        record("c", 0.0, Outcome.REFUSED),
        record("d", 0.0, Outcome.UNFINISHED, first_token_at=0.5),
        record("e", 0.0, Outcome.FAILED, first_token_at=0.5),
    ]
    run = Run(records)
    (figures,) = Grouping("lane", lanes_of(run, 8192), parse_targets("")).figures(run)
    assert (figures.offered, figures.in_time, figures.goodput) == (5, 1, 0.2)
    assert (figures.refusals, figures.failed, figures.unfinished) == (1, 1, 1)


def test_a_retried_request_is_one_request_whose_time_counts_from_the_first_try() -> None:
    records = [
        record("a", 0.0, Outcome.REFUSED),
        record("a", 5.0, Outcome.DONE, attempt=1, asked_at=0.0, first_token_at=5.5),
        record("a", 9.0, Outcome.DONE, first_token_at=9.5),
    ]
    first, second = asked(records)
    assert (first.key, len(first.attempts), first.ttft_seconds) == (("a", 0), 2, 5.5)
    assert (second.key, second.ttft_seconds) == (("a", 1), 0.5)


def test_targets_are_given_per_lane() -> None:
    assert parse_targets("giant=90,short=0.5") == {"short": 0.5, "long": 30.0, "giant": 90.0}


def test_progress_is_told_only_when_it_takes_long() -> None:
    out, now = StringIO(), [0.0]
    progress = Progress(out, clock=lambda: now[0])
    for second in range(10):
        now[0] = second * 0.5
        progress.step("with proxy", 0.0)
    assert out.getvalue().count("plan: replaying with proxy") == 2
