"""Plays one seeded load against a real SGLang, directly and through the proxy, and compares.

    python -m tests.load.compare story outputs      # or: all
    python -m tests.load.compare story --seed 7 --pool 65536 --speedup 8 --repeat 3
    python -m tests.load.compare story --quick --env PROXY_PREFILL_SLICE_SECONDS=0

Exit code 0 when every required figure holds, else 1. All that was measured is kept as JSON under out/.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.load.crash import crash
from tests.load.departures import departures
from tests.load.figures import Row, Run, middle, table
from tests.load.proxy import REPOSITORY
from tests.load.runs import run_against, run_direct, run_proxied
from tests.load.scenarios import SCENARIOS, STORY_POOL_TOKENS, Engine, Mix, Scenario
from tests.sglang.server import SGLangServer

QUICK_SCALE = 0.5
FAULT_ROUNDS = 3
FAULTS = {"disconnects": departures, "kill9": crash}
FAULT_SUMMARIES = {
    "disconnects": "clients that leave while queued, prefilling, streaming, and right after sending 180K",
    "kill9": "the engine is killed in the middle of everything, and restarted",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises what a broken server or install raises."""
    chosen = _parser().parse_args(arguments)
    names = [*SCENARIOS, *FAULTS] if "all" in chosen.scenario else chosen.scenario
    folder = Path(chosen.out) / f"{'-'.join(names[:3])}-{time.strftime('%Y%m%d-%H%M%S')}"
    verdicts = {name: _run(name, folder / name, chosen) for name in names}
    if len(names) > 1:
        print("\n".join(f"{'ok' if ok else 'FAIL':4} {name}" for name, ok in verdicts.items()), flush=True)
    return 0 if all(verdicts.values()) else 1


def _run(name: str, folder: Path, chosen: argparse.Namespace) -> bool:
    """One scenario on a server of its own; True when all that is required holds."""
    scenario = SCENARIOS.get(name)
    engine = _engine(scenario.engine if scenario else Engine(), chosen)
    folder.mkdir(parents=True)
    print(f"{name}: {_summary(name)}\n  {engine}\n  results: {folder}", flush=True)
    server = SGLangServer(
        pool=engine.pool,
        pace=engine.pace,
        speedup=engine.speedup,
        policy=engine.policy,
        flags=[*engine.flags, *chosen.flag],
        log_path=folder / "sglang.log",
    )
    with server:
        if scenario is None:
            rows = FAULTS[name](server, engine, folder, _say, 1 if chosen.quick else FAULT_ROUNDS)
        else:
            mix = _mix(engine, chosen)
            _say(f"  {mix}")
            parts = [folder / f"run-{number + 1}" for number in range(chosen.repeat)]
            tables = [_play_both(scenario, mix, server, part, chosen) for part in parts]
            rows = [middle(same) for same in zip(*tables, strict=True)]
    (folder / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if rows:
        print(f"\n{table(rows)}\n", flush=True)
    return all(row.ok is not False for row in rows)


def _mix(engine: Engine, chosen: argparse.Namespace) -> Mix:
    return Mix(
        seed=chosen.seed,
        scale=QUICK_SCALE if chosen.quick else 1.0,
        lengths=chosen.lengths or min(1.0, engine.pool / STORY_POOL_TOKENS),
    )


def _summary(name: str) -> str:
    return SCENARIOS[name].summary if name in SCENARIOS else FAULT_SUMMARIES[name]


def _play_both(
    scenario: Scenario, mix: Mix, server: SGLangServer, folder: Path, chosen: argparse.Namespace
) -> list[Row]:
    """Direct first, since some promises are set against it; the table is empty where one was left out."""
    folder.mkdir()
    workload = scenario.build(mix)
    direct = proxied = None
    if chosen.direct_from:
        direct = Run.read(Path(chosen.direct_from))
    elif chosen.only != "proxied":
        direct = run_direct(server, replace(workload, obey_retry_after=False), say=_say)
        direct.write(folder / "direct.json")
    if chosen.proxy_url:
        proxied = run_against(server, chosen.proxy_url, workload, title="proxied", say=_say)
    elif chosen.only != "direct":
        settings = dict(scenario.settings(direct)) if direct else {}
        settings |= dict(pair.split("=", 1) for pair in chosen.env)
        proxied = run_proxied(server, workload, settings, log_path=folder / "proxy.log", say=_say)
    if proxied:
        proxied.write(folder / "proxied.json")
    for run in (direct, proxied):
        if run and not (direct and proxied):
            _say(f"  {run.summary()}")
    return scenario.judge(direct, proxied) if direct and proxied else []


def _engine(default: Engine, chosen: argparse.Namespace) -> Engine:
    given = {name: getattr(chosen, name) for name in ("pool", "pace", "speedup", "policy")}
    engine = replace(default, **{name: value for name, value in given.items() if value is not None})
    return replace(engine, pace=None) if engine.pace == "none" else engine


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    known = [*SCENARIOS, *FAULTS]
    names = "\n".join(f"  {name:12} {_summary(name)}" for name in known)
    parser = argparse.ArgumentParser(
        prog="python -m tests.load.compare",
        description=f"{__doc__}\nscenarios:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="+", choices=[*known, "all"], metavar="SCENARIO")
    parser.add_argument("--quick", action="store_true", help=f"the load at {QUICK_SCALE} of its size")
    parser.add_argument("--seed", type=int, default=1, help="draws arrivals, lengths and texts")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the table shows the medians")
    parser.add_argument("--lengths", type=float, help="multiplies the long prompts; default: to fit the pool")
    parser.add_argument("--pool", type=int, help="KV pool in tokens")
    parser.add_argument("--pace", help="h200-8b, rtx6000-tp2, four numbers, or none")
    parser.add_argument("--speedup", type=float, help="divides the paced times")
    parser.add_argument("--policy", help="SGLang's --schedule-policy")
    parser.add_argument(
        "--flag", action="append", default=[], metavar="FLAG", help="for SGLang: --flag=--enable-x"
    )
    parser.add_argument("--env", action="append", default=[], metavar="PROXY_X=Y", help="for the proxy")
    parser.add_argument("--only", choices=("direct", "proxied"), help="one of the two, without a table")
    parser.add_argument("--direct-from", metavar="FILE", help="a direct.json of before instead of a new run")
    parser.add_argument("--proxy-url", help="a proxy that runs already, instead of starting one")
    parser.add_argument("--out", default=str(REPOSITORY / "out"), help="folder for the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
