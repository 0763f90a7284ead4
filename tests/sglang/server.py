"""A real SGLang server on this machine, as a context manager.

    with SGLangServer(pace="h200-8b", speedup=4) as server:
        ... server.base_url, server.log_path, server.kill9(), server.restart() ...

    python -m tests.sglang.server --pace h200-8b --port 30000     # by hand, until Ctrl-C

Stock SGLang from the package registry: true HTTP server, tokenizer, scheduler, radix cache and KV
pool, with a tiny random model behind them (see shim/). Page size 1, one rank, no GPU graphs, no
speculative decoding, no hierarchical cache.
"""

import argparse
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.load.process import Say, ServerFailed, ServerProcess, free_port
from tests.load.workload import Vocabulary
from tests.sglang import install

MODEL_NAME = "tiny"
STORY_POOL_TOKENS = 186_624
CHUNK_TOKENS = 8_192  # prefilled in one step, of one request or of several
START_SECONDS = 240.0
FLUSH_SECONDS = 30.0
FLUSH_RETRY_SECONDS = 0.2
SHIM = Path(__file__).resolve().parent / "shim"


class SGLangServer(ServerProcess):
    """`pace` and `speedup`: see shim/pacing.py. `flags` are SGLang's own and win over those set here."""

    def __init__(
        self,
        *,
        pool: int = STORY_POOL_TOKENS,
        context: int = 1_048_576,
        max_running: int = 64,
        pace: str | None = None,
        speedup: float = 1.0,
        policy: str = "fcfs",
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        log_path: Path | None = None,
        installation: install.Installation | None = None,
        say: Say | None = None,
    ) -> None:
        made = installation or install.ensure(say)
        chosen = port or free_port()
        self.pool = pool
        self.vocabulary = Vocabulary.of_model(made.model)
        self.tokenizer_path = made.model
        super().__init__(
            "sglang",
            [
                *(made.python, "-m", "sglang.launch_server"),
                *("--model-path", made.model, "--load-format", "dummy", "--served-model-name", MODEL_NAME),
                *("--host", "127.0.0.1", "--port", str(chosen)),
                *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
                *("--dtype", "bfloat16", "--disable-cuda-graph", "--disable-overlap-schedule"),
                *("--max-total-tokens", str(pool), "--context-length", str(context)),
                *("--max-running-requests", str(max_running), "--schedule-policy", policy),
                *("--chunked-prefill-size", str(CHUNK_TOKENS), "--max-prefill-tokens", str(CHUNK_TOKENS)),
                *("--enable-metrics", "--enable-cache-report", "--sleep-on-idle"),
                *("--log-level-http", "warning"),
                *flags,
            ],
            port=chosen,
            env={**_environment(pace, speedup), **(env or {})},
            log_path=log_path or install.cache_dir() / "logs" / f"sglang-{chosen}.log",
            # Not /health: it answers with a generated token, a second per question.
            ready_path="/ready",
            ready_seconds=START_SECONDS,
            cwd=made.model,
            say=say,
        )

    def flush_cache(self) -> None:
        """Forgets all prefixes, once idle. Raises ServerFailed when requests keep it from doing so."""
        deadline = time.monotonic() + FLUSH_SECONDS
        request = urllib.request.Request(self.base_url + "/flush_cache", method="POST", data=b"")
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except urllib.error.HTTPError as refused:
                refused.close()
                if time.monotonic() > deadline:
                    raise ServerFailed("the cache could not be flushed: requests still run") from refused
            time.sleep(FLUSH_RETRY_SECONDS)


def _environment(pace: str | None, speedup: float) -> dict[str, str]:
    one_thread = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # more are slower for so small a model
    return {
        "PYTHONPATH": str(SHIM),
        "PYTHONUNBUFFERED": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_PACE": pace or "",
        "SGLANG_CPU_SPEEDUP": str(speedup),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **dict.fromkeys(one_thread, "1"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A real SGLang on this CPU. Unknown options go to SGLang.")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--pool", type=int, default=STORY_POOL_TOKENS, help="KV pool in tokens")
    parser.add_argument("--pace", help="h200-8b, rtx6000-tp2 or four numbers; default: as fast as it goes")
    parser.add_argument("--speedup", type=float, default=1.0, help="divides the paced times")
    parser.add_argument("--policy", default="fcfs", help="SGLang's --schedule-policy")
    chosen, flags = parser.parse_known_args(arguments)
    server = SGLangServer(
        port=chosen.port,
        pool=chosen.pool,
        pace=chosen.pace,
        speedup=chosen.speedup,
        policy=chosen.policy,
        flags=flags,
    )
    with server:
        print(f"  model {MODEL_NAME}, log {server.log_path}; Ctrl-C ends it", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
