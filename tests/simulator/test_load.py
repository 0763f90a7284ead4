"""The load client against the simulated server, and the reports made of what it measured."""

import argparse
import asyncio
import io
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.simulator import cli_options
from proxy.simulator.children import StartFailed, free_port, running
from proxy.simulator.dialogue import body_of
from proxy.simulator.load import Load, Target, tokens_per_word
from proxy.simulator.mixes import agents, shorts
from proxy.simulator.records import Outcome, Record, Run
from proxy.simulator.report import Side, picture, ratio, seconds, table
from proxy.simulator.screen import Screen, view_of
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Client, Turn, Workload, fixed
from tests.simulator.serving import FAST, serving_app


def one(tokens: int = 500, output: int = 10, retries: int = 0, **changes: object) -> Workload:
    ask = replace(fixed("one", "one", tokens, output), **changes)  # type: ignore[arg-type]
    return Workload("one", (Client("one", (Turn(ask),), retries=retries),))


async def drive(workload: Workload, url: str) -> Run:
    return await Load(workload, Target(url)).drive()


# --- the load client --------------------------------------------------------------------------


async def test_prompts_are_as_long_as_asked_and_everything_is_recorded(url: str) -> None:
    (record,) = (await drive(one(5000, 20), url)).records
    assert (record.outcome, record.status, record.completion_tokens) == (Outcome.DONE, 200, 20)
    assert record.ttft_seconds is not None
    assert record.ttft_seconds > 0.05
    assert record.ended_at is not None
    assert record.ended_at > record.ttft_seconds
    async with httpx.AsyncClient(base_url=url) as http:
        load = (await http.get("/v1/loads")).json()["loads"][0]
    assert load["total_prefill_uncached_tokens"] == 5000


async def test_what_an_agent_was_answered_is_in_its_next_turn_and_cached(url: str) -> None:
    workload = agents(1, turns=3, first_tokens=3000, turn_tokens=100, output_tokens=50, think_seconds=0.01)
    first, second, third = (await drive(workload, url)).records
    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert second.cached_tokens > 3000
    assert third.cached_tokens is not None
    assert third.cached_tokens > second.cached_tokens + 100


async def test_the_load_measures_what_the_virtual_clock_says(url: str) -> None:
    workload = shorts(20, 2, prompt_tokens=(500, 3000), output_tokens=40)
    measured, computed = await drive(workload, url), replay(workload, FAST)
    assert measured.count(Outcome.DONE) == len(computed.records)
    assert measured.of("short").mean_seconds == pytest.approx(computed.of("short").mean_seconds, abs=0.03)


async def test_a_client_that_gives_up_is_not_a_failure(url: str) -> None:
    (record,) = (await drive(one(output=19_000, leaves_after_seconds=0.3), url)).records
    assert record.outcome is Outcome.LEFT


async def test_an_error_in_a_stream_is_a_failure_with_its_message(url: str) -> None:
    (record,) = (await drive(one(25_000), url)).records
    assert record.outcome is Outcome.FAILED
    assert "exceeds the maximum allowed length" in record.reason
    assert record.ttft_seconds is None


async def test_nobody_there_is_a_failure() -> None:
    (record,) = (await drive(one(), f"http://127.0.0.1:{free_port()}")).records
    assert (record.outcome, "ConnectError" in record.reason) == (Outcome.FAILED, True)


async def test_refusals_are_obeyed_and_headers_recorded() -> None:
    answers = 0

    async def handle(_: Request) -> Response:
        nonlocal answers
        answers += 1
        if answers == 1:
            headers = {"retry-after": "1", "x-admission-reason": "would_miss_deadline"}
            return JSONResponse({"error": {"message": "later", "predicted_wait_s": 12.5}}, 429, headers)

        async def stream() -> object:
            yield b": waiting\n\n"
            yield b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'

        headers = {"x-admission-lane": "short", "x-admission-wait-ms": "250", "x-request-id": "abc"}
        return StreamingResponse(stream(), headers=headers)  # type: ignore[arg-type]

    app = Starlette(routes=[Route("/v1/chat/completions", handle, methods=["POST"])])
    async with serving_app(app) as url:
        refused, served = (await drive(one(retries=1), url)).records
    assert (refused.outcome, refused.status, refused.reason) == (
        Outcome.REFUSED,
        429,
        "would_miss_deadline",
    )
    assert (refused.predicted_wait_seconds, refused.retry_after_seconds) == (12.5, 1.0)
    assert (served.outcome, served.lane, served.rid) == (Outcome.DONE, "short", "abc")
    assert served.wait_seconds == pytest.approx(0.25)
    assert served.sent_at - refused.sent_at >= 1.0
    assert served.asked_at == refused.asked_at


async def test_a_stream_cut_short_is_a_failure() -> None:
    async def handle(_: Request) -> Response:
        return Response(b'data: {"choices":[]}\n\n', media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", handle, methods=["POST"])])
    async with serving_app(app) as url:
        (record,) = (await drive(one(), url)).records
    assert (record.outcome, record.reason) == (Outcome.FAILED, "the stream ended early")


async def test_the_servers_tokenizer_is_measured_once(url: str) -> None:
    assert await tokens_per_word(Target(url)) == 1.0
    halved = body_of(one(1004).clients[0].turns[0].ask, model="m", said={}, tokens_per_word=2.0)
    assert len(halved["messages"][0]["content"].split()) == 500


# --- reports ----------------------------------------------------------------------------------


def measured() -> Run:
    run = Run()
    for number, (kind, tokens, ttft) in enumerate(
        [("short", 300, 0.5), ("short", 200, 1.5), ("64K", 64_000, 20.0), ("short", 300, None)]
    ):
        first = None if ttft is None else number + ttft
        ended = None if ttft is None else number + ttft + 1
        outcome = Outcome.UNFINISHED if ttft is None else Outcome.DONE
        run.records.append(
            Record(
                "r", kind, "c", float(number), tokens, first_token_at=first, ended_at=ended, outcome=outcome
            )
        )
    return run


def test_a_table_has_both_sides_of_every_kind_and_what_became_of_all() -> None:
    faster = measured()
    for record in faster.records:
        if record.first_token_at is not None:
            record.first_token_at = record.sent_at + 0.05
    text = table(Side("direct", measured()), Side("proxied", faster))
    short, proxied = (line.split() for line in text.splitlines()[3:5])
    assert short == ["short", "direct", "0.50", "1.50", "1.00", "3", "0", "0"]
    assert proxied == ["proxied", "0.05", "0.05", "0.05", "3", "0", "0", "10x", "faster"]
    assert "direct: 3 requests done in 23.0 s, 1 unfinished" in text


def test_a_run_cut_short_counts_the_waiting_as_long_as_they_waited() -> None:
    run = measured()
    assert run.of("short").longest_seconds == 1.5
    assert run.cut_at(103.0).of("short").longest_seconds == 100.0
    assert run.cut_at(103.0).wall_seconds == run.wall_seconds


def test_ratios_are_said_in_words() -> None:
    assert ratio(36.0, 0.12) == "300x faster"
    assert ratio(1.0, 1.25) == "1.25x slower"
    assert ratio(float("nan"), 1.0) == ratio(0.0, 1.0) == "-"
    assert (seconds(0.123), seconds(12.34), seconds(float("nan"))) == ("0.12", "12.3", "-")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "out" / "demo.png"
    assert picture(Side("direct", measured()), Side("proxied", measured()), path, title="t")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "demo.png"
    assert not picture(Side("direct", measured()), Side("proxied", measured()), path, title="t")
    assert not path.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_screen_redraws_in_place_on_a_terminal_and_says_a_line_elsewhere() -> None:
    view = view_of("direct", measured(), 4.0, short="short", total=9, pool_share=0.5, engine_waiting=7)
    terminal, plain = Terminal(), io.StringIO()
    for out in (terminal, plain):
        clock = iter((0.0, 0.0, 1.0, 6.0, 6.0))
        screen = Screen(out, clock=lambda clock=clock: next(clock))  # type: ignore[misc]
        for _ in range(3):
            screen.show(4.0, [view])
    assert terminal.getvalue().count("\x1b[7A") == 2
    assert "queued in the engine 7" in terminal.getvalue()
    assert len(plain.getvalue().splitlines()) == 2
    assert "\x1b" not in plain.getvalue()


def test_a_view_counts_who_waits_as_long_as_they_have_waited() -> None:
    view = view_of("d", measured(), 103.0, short="short", total=4, pool_share=0, engine_waiting=0)
    assert (view.waiting, view.done, view.contexts, view.finished) == (1, 3, 0, False)
    assert view.recent_seconds == 100.0


# --- starting servers -------------------------------------------------------------------------


def arguments(*extra: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli_options.add_arguments(parser)
    return parser.parse_args(extra)


def test_options_describe_a_server() -> None:
    config = cli_options.config_of(
        arguments(
            "--pool-tokens", "9000", "--policy", "lpm", "--no-radix-cache", "--speedup", "2", "--seed", "3"
        )
    )
    assert (config.engine.pool_tokens, config.engine.policy, config.engine.radix_cache) == (
        9000,
        "lpm",
        False,
    )
    assert config.lengths.seed == 3
    with pytest.raises(SystemExit, match="rtx6000-tp2"):
        cli_options.run(arguments("--pace", "warp"))


async def test_it_says_where_it_listens_or_that_it_cannot() -> None:
    async def started(port: int) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "proxy.simulator", "--port", str(port))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)

    port = free_port()
    first = await started(port)
    assert first.stdout is not None
    said = await first.stdout.readline()
    assert said.decode() == f"a simulated SGLang, 186,624 KV tokens: http://127.0.0.1:{port}\n"
    second = await started(port)
    _, errors = await second.communicate()
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: choose another --port" in errors.decode()
    first.terminate()
    await first.communicate()


async def test_a_server_of_its_own_process_comes_up_and_goes() -> None:
    port = free_port()
    command = ["-m", "proxy.simulator", "--port", str(port)]
    async with running("a simulator", command, f"http://127.0.0.1:{port}/ready") as pid:
        (record,) = (await drive(one(), f"http://127.0.0.1:{port}")).records
        assert record.outcome is Outcome.DONE
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_that_does_not_come_up_leaves_its_last_words() -> None:
    command = ["-c", "raise SystemExit('no such luck')"]
    with pytest.raises(StartFailed, match="no such luck"):
        async with running("nothing", command, f"http://127.0.0.1:{free_port()}/ready"):
            pass


DEMO = """
import argparse, sys
from proxy.simulator import demo
parser = argparse.ArgumentParser()
demo.add_arguments(parser)
sys.exit(demo.main(parser.parse_args()))
"""


async def test_the_demo_obeys_ctrl_c_with_a_table_and_a_picture_of_what_it_has(tmp_path: Path) -> None:
    options = ("--seconds", "5", "--speedup", "20", "--out", str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", DEMO, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = b""
    while b"waiting" not in said:
        line = await process.stdout.readline()
        assert line, said.decode()
        said += line
    await asyncio.sleep(1.5)
    process.send_signal(signal.SIGINT)
    rest, _ = await process.communicate()
    assert process.returncode == 130
    assert b"Interrupted. So far" in rest
    assert b"Time to first token" in rest
    assert (tmp_path / "demo.png").exists()
