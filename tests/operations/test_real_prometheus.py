"""A real Prometheus scrapes the metrics, and every panel and recording rule returns data."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from proxy.admission.types import Lane, Reason
from proxy.telemetry.metrics import CONTENT_TYPE, Metrics, Outcome, Phase
from proxy.telemetry.snapshot import PoolSnapshot, QueueSnapshot, StateSnapshot
from tests.operations.test_dashboards import expressions

POOLS = tuple(
    PoolSnapshot(
        backend="box",
        dp_rank=rank,
        up=True,
        pool_tokens=186_624,
        ceiling_tokens=181_025,
        committed_tokens={Lane.SHORT: 9000, Lane.LONG: 64_000},
        server_used_tokens=70_000,
        load_age_seconds=0.1,
        prefill_rate_tokens_per_second=6850.0,
    )
    for rank in (0, 1)
)
PROBES = {"a": {"equal": 10, "different": 0, "estimated": 0, "unanswered": 0}}
QUEUE = QueueSnapshot(model="m", lane=Lane.LONG, requests=2, tokens=128_000, head_age_seconds=3.0)


def traffic(metrics: Metrics) -> None:
    """One of everything that can happen."""
    for outcome in Outcome:
        metrics.request_done(
            Lane.SHORT,
            outcome,
            wait_seconds=0.1,
            ttft_seconds=0.2,
            prompt_tokens=300,
            completion_tokens=9,
            tenant="t",
        )
    metrics.refused(Reason.WOULD_MISS_DEADLINE)
    metrics.backfill("express")
    metrics.disconnect(Phase.QUEUED)
    metrics.abort()
    metrics.prefill_slice_missed()
    metrics.token_ratio(1.01)
    metrics.reserved_minus_actual(100)
    metrics.reserved_minus_actual(-100)
    metrics.wait_prediction_error(1.0)
    metrics.wait_prediction_error(-1.0)
    metrics.loop_lag(0.001)


@pytest.fixture
def target() -> Iterator[int]:
    """The port of a server that shows metrics and gets traffic with every scrape."""
    metrics = Metrics(
        lambda: StateSnapshot(pools=POOLS, queues=(QUEUE,), open_requests=3, tokenizer_probes=PROBES)
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            traffic(metrics)
            body = metrics.render()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_address[1]


@pytest.fixture
def ask(prometheus: str, target: int, tmp_path: Path) -> Iterator[Any]:
    """Runs Prometheus on `target` and gives a function from PromQL to its result."""
    rules = Path(__file__).parents[2] / "deploy" / "prometheus" / "recording.yml"
    config = (
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{json.dumps(str(rules))}]\n"
        "scrape_configs:\n  - job_name: sglang-admission-proxy\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
    )
    (tmp_path / "prometheus.yml").write_text(config)
    port = free_port()
    command = [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def query(expression: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=5) as answer:
            return list(json.load(answer)["data"]["result"])

    yield query
    process.terminate()
    process.wait(10)
    log.close()


def wait_for_scrapes(ask: Any) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if ask("sglang_proxy:refused:ratio5m"):  # needs two scrapes and a rule evaluation
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    pytest.fail("Prometheus did not scrape within 30 s")


def test_every_panel_and_recording_rule_returns_data(ask: Any) -> None:
    wait_for_scrapes(ask)
    filled = [
        e.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$backend", ".*")
        for e in expressions()
    ]
    rules = (Path(__file__).parents[2] / "deploy" / "prometheus" / "recording.yml").read_text()
    recorded = [line.split("record: ")[1] for line in rules.splitlines() if "record: " in line]
    empty = [expression for expression in filled + recorded if not ask(expression)]
    assert empty == []
