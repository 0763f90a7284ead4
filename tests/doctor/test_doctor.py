"""The whole command, against the simulator and against a fake server with faults."""

import asyncio
import json
from argparse import ArgumentParser
from io import StringIO
from pathlib import Path

import pytest

from proxy.doctor import examination as examination_module
from proxy.doctor.command import add_arguments, main
from proxy.doctor.data import document
from proxy.doctor.examination import Examination
from proxy.doctor.finding import Level
from proxy.doctor.text import report
from proxy.simulator.children import free_port
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.server import ServerConfig
from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer
from tests.doctor.support import Examine
from tests.fakes import FakeServer, Received, Wire
from tests.simulator.serving import serving
from tests.tokens.exact.families import FAMILIES, trained, written


def said(examination: Examination, level: Level) -> str:
    every = [*examination.idle, *(f for server in examination.servers for f in server.findings)]
    return "\n".join(f"{f.text} -> {f.remedy}" for f in every if f.level is level)


def troubles(examination: Examination) -> str:
    return said(examination, Level.TROUBLE)


def warnings(examination: Examination) -> str:
    return said(examination, Level.WARNING)


async def test_a_simulated_server_is_told_in_full(examined: Examine) -> None:
    async with serving(ServerConfig(EngineConfig())) as url:
        found = await examined(url)
    text = report(found)
    for words in (
        "SGLang 0.5.23+simulator",
        "simulated",
        "186,624 tokens (1 DP rank)",
        "the largest prompt that can run: 186,618",
        "2 of 64K, 1 of 180K",
        "8,192 tokens; page size 1",
        "fcfs, conservativeness 1",
        "radix cache on, cache report on, metrics on",
        "/v1/loads works (used), /get_load 404, /metrics works",
        "no API key is needed; aborts are allowed",
        "1 of 1 servers can take work; troubles: 0",
    ):
        assert words in text
    assert not found.count(Level.TROUBLE)


async def test_a_good_server_needs_nothing(fake: FakeServer, examined: Examine) -> None:
    found = await examined(fake.url)
    assert not found.servers[0].answers.unreachable
    assert (troubles(found), found.advice, found.idle) == ("", [], [])
    assert "4,096 ids" in report(found)


async def test_asking_sends_no_prompt_and_aborts_nobody(fake: FakeServer, examined: Examine) -> None:
    await examined(fake.url)
    assert {request.target for request in fake.posts()} <= {"/v1/tokenize"}
    (rid,) = fake.aborts()
    assert len(rid) == 64  # matched by prefix: it must not be the beginning of anybody's id


async def test_several_servers_are_asked_at_the_same_time_and_one_down_does_not_hide_the_other(
    fake: FakeServer, examined: Examine
) -> None:
    found = await examined(f"http://127.0.0.1:{free_port()}", fake.url)
    down, up = found.servers
    assert "cannot be reached" in troubles(found)
    assert down.answers.discovery is None
    assert up.answers.discovery is not None
    assert "1 of 2 servers can take work; troubles: 1" in report(found)


async def test_a_server_that_does_not_answer_costs_no_more_than_the_time_given(
    fake: FakeServer, examined: Examine
) -> None:
    fake.freeze = asyncio.Event()
    found = await examined(fake.url, seconds=0.3)
    assert "did not answer within 0.3 s: is it there" in troubles(found)
    fake.freeze.set()


async def test_a_server_that_stops_answering_half_way_is_told_with_what_was_asked(
    fake: FakeServer, examined: Examine
) -> None:
    async def silent(request: Received, wire: Wire) -> None:
        await asyncio.sleep(60)

    fake.answer = silent  # POST /v1/tokenize
    found = await examined(fake.url, seconds=1.0)
    assert found.servers[0].answers.discovery is not None
    assert found.servers[0].answers.refusal == "did not answer within 1 s: how it counts tokens"


async def test_what_takes_long_is_told_while_it_does(
    fake: FakeServer, examined: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination_module, "PROGRESS_SECONDS", 0.1)
    fake.freeze = asyncio.Event()
    out = StringIO()
    await examined(fake.url, seconds=0.5, out=out)
    fake.freeze.set()
    assert f"still asking 127.0.0.1:{fake.port}: is it there" in out.getvalue()


async def test_a_key_that_is_refused_or_missing_is_trouble(fake: FakeServer, examined: Examine) -> None:
    fake.key = "right"
    assert "refuses a request without a key (401) -> PROXY_BACKEND_API_KEY" in troubles(
        await examined(fake.url)
    )
    wrong = await examined(fake.url, backend_api_key="wrong")
    assert "refuses the key we show (401)" in troubles(wrong)
    assert not troubles(await examined(fake.url, backend_api_key="right"))


async def test_no_key_is_ever_shown(fake: FakeServer, examined: Examine) -> None:
    fake.key, fake.admin_key = "s3cret-one", "s3cret-two"
    fake.info |= {"api_key": "s3cret-one", "admin_api_key": "s3cret-two"}
    found = await examined(fake.url, backend_api_key="s3cret-one", backend_admin_key="s3cret-two")
    assert not troubles(found)
    assert "s3cret" not in report(found) + json.dumps(document(found))


async def test_a_missing_admin_key_is_trouble_since_nothing_can_be_aborted(
    fake: FakeServer, examined: Examine
) -> None:
    fake.admin_key = "admin"
    assert "does not let us without a key abort requests (401)" in troubles(await examined(fake.url))
    assert not troubles(await examined(fake.url, backend_admin_key="admin"))


async def test_what_is_not_switched_on_is_told_with_the_flag(fake: FakeServer, examined: Examine) -> None:
    fake.info |= {"enable_metrics": False, "enable_cache_report": False}
    fake.missing = {"/metrics"}
    text = warnings(await examined(fake.url))
    assert "-> --enable-metrics" in text
    assert "-> --enable-cache-report" in text
    fake.info |= {"disable_radix_cache": True, "enable_priority_scheduling": True, "max_queued_requests": 8}
    found = await examined(fake.url)
    assert "start it without --disable-radix-cache" in warnings(found)
    assert "drop --enable-priority-scheduling" in said(found, Level.NOTE)
    assert "turns away when 8 wait" in said(found, Level.NOTE)


@pytest.mark.parametrize(
    ("missing", "used", "words"),
    [
        (set(), "/v1/loads", ""),
        ({"/v1/loads"}, "/get_load", "does not show a prefill under way"),
        ({"/v1/loads", "/get_load"}, "/metrics", "only in /metrics"),
        ({"/v1/loads", "/get_load", "/metrics"}, None, "tells its load nowhere"),
    ],
)
async def test_the_load_source_that_works_is_told(
    fake: FakeServer, examined: Examine, missing: set[str], used: str | None, words: str
) -> None:
    fake.missing = missing
    fake.metrics = 'sglang:max_total_num_tokens{tp_rank="0"} 186624.0\n'
    found = await examined(fake.url)
    facts = document(found)["servers"][0]["facts"]
    assert facts["load_source"] == used
    assert words in said(found, Level.WARNING) + said(found, Level.NOTE)
    recommended = {advice.variable for advice in found.advice}
    assert ("PROXY_POLL_SECONDS" in recommended) == (used == "/metrics")


async def test_retractions_so_far_are_told(fake: FakeServer, examined: Examine) -> None:
    fake.metrics = 'sglang:num_retracted_requests_total{tp_rank="0"} 17.0\n'
    assert "retracted running requests 17 times" in said(await examined(fake.url), Level.NOTE)


async def test_ranks_have_pools_of_their_own(fake: FakeServer, examined: Examine) -> None:
    fake.dp_size = 2
    found = await examined(fake.url)
    assert "186,624 + 186,624 tokens (2 DP ranks)" in report(found)
    assert len(document(found)["servers"][0]["facts"]["ranks"]) == 2


async def test_an_override_above_the_servers_own_pool_is_trouble_and_one_below_is_not(
    fake: FakeServer, examined: Examine
) -> None:
    assert "its pool is 186,624 tokens, and we are told 300,000" in troubles(
        await examined(fake.url, pool_tokens="300000")
    )
    lower = await examined(fake.url, pool_tokens="100000")
    assert not troubles(lower)
    assert "of its 186,624 tokens the proxy uses 100,000" in said(lower, Level.NOTE)


async def test_a_disaggregated_server_is_to_be_run_in_shadow(fake: FakeServer, examined: Examine) -> None:
    fake.info["disaggregation_mode"] = "prefill"
    found = await examined(fake.url)
    assert "the prefill half of a disaggregated pair" in warnings(found)
    assert [(a.variable, a.value) for a in found.advice] == [("PROXY_MODE", "shadow")]
    assert not (await examined(fake.url, mode="shadow")).advice


async def test_pools_beside_the_full_one_are_warned_of(fake: FakeServer, examined: Examine) -> None:
    fake.info["internal_states"] = [{"memory_usage": {"token_capacity_swa": 50_000}}]
    fake.info["uses_mamba_radix_cache"] = True
    text = warnings(await examined(fake.url))
    assert "50,000 tokens for sliding-window layers" in text
    assert "state slots (Mamba)" in text


async def test_an_old_server_and_one_that_is_not_sglang_are_told(fake: FakeServer, examined: Examine) -> None:
    fake.info["version"] = "0.4.6.post1"
    assert "SGLang 0.4.6.post1 is older" in warnings(await examined(fake.url))
    fake.missing = {"/server_info", "/get_server_info", "/v1/loads", "/get_load", "/metrics"}
    assert "does not say how large its pool is: set PROXY_POOL_TOKENS" in troubles(await examined(fake.url))
    fake.missing |= {"/model_info", "/get_model_info"}
    assert "does not answer as SGLang does: is the address right?" in troubles(await examined(fake.url))


async def test_a_server_that_is_not_ready_cannot_take_work(fake: FakeServer, examined: Examine) -> None:
    fake.ready = False
    assert "cannot take work: not ready yet" in troubles(await examined(fake.url))


# --- counting ---------------------------------------------------------------------------------


async def test_a_tokenizer_that_counts_as_the_server_does_is_confirmed_and_another_is_trouble(
    fake: FakeServer, examined: Examine, tmp_path: Path
) -> None:
    same, other = (written(tmp_path / name, trained(FAMILIES[name])).directory for name in ("qwen", "llama"))
    servers = Sizer(tokenizer_path=same)
    await servers.load()

    async def tokenize(request: Received, wire: Wire) -> None:
        api = Api.CHAT if "messages" in request.json() else Api.COMPLETIONS
        sized = await servers.size(api, request.body)
        await wire.json({"tokens": [], "count": sized.raw_tokens, "max_model_len": 1_048_576})

    fake.answer = tokenize
    right = await examined(fake.url, tokenizer_path=str(same))
    assert not troubles(right)
    assert "all 10 probes are counted as the server counts them" in report(right)
    wrong = await examined(fake.url, tokenizer_path=str(other))
    assert "the tokenizer directory is not this server's" in troubles(wrong)
    servers.close()


async def test_a_tokenizer_directory_that_cannot_be_used_is_trouble(
    fake: FakeServer, examined: Examine, tmp_path: Path
) -> None:
    async def tokenize(request: Received, wire: Wire) -> None:
        await wire.json({"count": 5})

    fake.answer = tokenize
    found = await examined(fake.url, tokenizer_path=str(tmp_path))
    assert "there is no tokenizer.json in the directory" in troubles(found)


async def test_the_servers_own_tokenizer_is_recommended_where_it_is_at_hand(
    fake: FakeServer, examined: Examine, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    fake.info["tokenizer_path"] = str(tmp_path)
    (advice,) = (await examined(fake.url)).advice
    assert (advice.variable, advice.value) == ("PROXY_TOKENIZER_PATH", str(tmp_path))


# --- the command ------------------------------------------------------------------------------


async def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Runs it in a thread of its own, as it starts a loop of its own."""
    parser = ArgumentParser()
    add_arguments(parser)
    status = await asyncio.to_thread(main, parser.parse_args(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


async def test_the_exit_status_is_1_on_trouble_only(
    fake: FakeServer,
    one_vocabulary: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROXY_BACKENDS", fake.url)
    status, out, _ = await command(capsys)
    assert (status, "1 of 1 servers can take work" in out) == (0, True)
    fake.key = "k"
    status, out, _ = await command(capsys, "--json")
    assert status == 1
    told = json.loads(out)
    assert told["troubles"] == 1
    assert told["servers"][0]["statuses"]["/v1/loads"] == 401


async def test_wrong_settings_end_it_before_it_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROXY_POLL_SECONDS", "never")
    status, out, err = await command(capsys)
    assert (status, out) == (2, "")
    assert err.startswith("doctor: PROXY_POLL_SECONDS='never'")
    monkeypatch.delenv("PROXY_POLL_SECONDS")
    assert (await command(capsys, "--timeout", "0"))[0] == 2


async def test_a_misspelt_variable_is_warned_of(
    fake: FakeServer,
    one_vocabulary: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROXY_BACKENDS", fake.url)
    monkeypatch.setenv("PROXY_EXPRES_SHARE", "0.2")
    _, _, err = await command(capsys)
    assert "PROXY_EXPRESS_SHARE" in err
