"""The proxy as users run it: `python -m proxy serve`, configured by its environment."""

import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.load.process import Say, ServerProcess, free_port

REPOSITORY = Path(__file__).resolve().parents[2]
LEDGER = ("committed_tokens", "held_tokens", "queue_requests", "queue_tokens", "resident_contexts")
METRIC_LINE = re.compile(r"^(sglang_proxy_\w+?)(\{.*\})? ([^ ]+)$", re.MULTILINE)


class ProxyServer(ServerProcess):
    """Points at the given backends; `settings` are the `PROXY_*` variables of this run."""

    def __init__(
        self,
        backends: str,
        settings: Mapping[str, str] | None = None,
        *,
        log_path: Path,
        port: int | None = None,
        say: Say | None = None,
        cwd: Path = REPOSITORY,
    ) -> None:
        """`cwd`: the checkout that it is started from."""
        chosen = port or free_port()
        inherited = {name: "" for name in os.environ if name.startswith("PROXY_")}
        super().__init__(
            "proxy",
            [sys.executable, "-m", "proxy", "serve"],
            port=chosen,
            env={"PROXY_BACKENDS": backends, "PROXY_PORT": str(chosen), **(settings or {})},
            log_path=log_path,
            ready_path="/ready",
            ready_seconds=60,
            cwd=cwd,
            say=say,
        )
        for name in inherited:  # a developer's own settings must not colour a measurement
            if name not in (settings or {}) and name not in {"PROXY_BACKENDS", "PROXY_PORT"}:
                self._env.pop(name)

    def metrics(self) -> dict[str, float]:
        """Each metric's value, summed over its labels (buckets and creation times left out)."""
        with urllib.request.urlopen(self.base_url + "/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum_metrics(text)

    def ledger(self) -> dict[str, float]:
        """What must be exactly zero when nothing is under way."""
        found = self.metrics()
        return {name: found.get(f"sglang_proxy_{name}", 0.0) for name in LEDGER}

    def settled_ledger(self, seconds: float) -> dict[str, float]:
        """The ledger once it is zero, or as it stands after that many seconds."""
        deadline = time.monotonic() + seconds
        while any(self.ledger().values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.ledger()

    def cpu_seconds_by_name(self) -> dict[str, float]:
        return {self.name: self.cpu_seconds()}


def sum_metrics(text: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, _, value in METRIC_LINE.findall(text):
        if not name.endswith(("_bucket", "_created")):
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
