"""Plays one seeded load against a real SGLang, directly and through the proxy, and compares.

    python -m tests.load.compare story outputs      # or: all
    python -m tests.load.compare story --seed 7 --pool 65536 --speedup 8 --repeat 3
    python -m tests.load.compare story --quick --env PROXY_PREFILL_SLICE_SECONDS=0
    python -m tests.load.compare true-speed --rivals   # beside shortest-prefill-first, lpm, priorities

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
from tests.load.figures import Row, Run, all_hold, middle, table
from tests.load.pictures import draw
from tests.load.process import say_at_once
from tests.load.proxy import REPOSITORY
from tests.load.rivals import side_by_side, with_rivals
from tests.load.runs import run_against, run_direct, run_proxied
from tests.load.scenario import STORY_POOL_TOKENS, Engine, Mix, Scenario, Way
from tests.load.scenarios import SCENARIOS
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
    """One scenario on servers of its own; True when all that is required holds."""
    engine = _engine(SCENARIOS[name].engine if name in SCENARIOS else Engine(), chosen)
    folder.mkdir(parents=True)
    print(f"{name}: {_summary(name)}\n  {engine}\n  results: {folder}", flush=True)
    if name in SCENARIOS:
        rows = _play(SCENARIOS[name], engine, folder, chosen)
    else:
        with _server(engine, folder / "sglang.log") as server:
            rows = FAULTS[name](server, engine, folder, say_at_once, 1 if chosen.quick else FAULT_ROUNDS)
    (folder / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if rows:
        print(f"\n{table(rows)}\n", flush=True)
    return all_hold(rows)


def _play(scenario: Scenario, engine: Engine, folder: Path, chosen: argparse.Namespace) -> list[Row]:
    """All its ways as often as wanted; the table is empty where one of them was left out."""
    mix = _mix(engine, chosen)
    say_at_once(f"  {mix}")
    wanted = with_rivals(scenario) if chosen.rivals else scenario
    ways = [way for way in wanted.ways if chosen.only in {None, way.name}]
    stage = _Stage(scenario, mix, folder, chosen)
    for shared, same in _by_engine(ways, engine).items():
        names = "-".join(way.slug for way in same)
        with _server(shared, folder / f"sglang-{names}.log") as server:
            for runs, part in zip(stage.runs, stage.parts, strict=True):
                for way in same:
                    stage.play(server, way, runs, part)
    order = sorted(wanted.ways, key=lambda way: way.proxied)  # the engine's own first
    runs = {way.name: stage.runs[0][way.name] for way in order if way.name in stage.runs[0]}
    if len(runs) > 1:
        draw(runs, folder / "ttft.png", title=f"{scenario.name}: {scenario.summary}")
        say_at_once(f"\n{side_by_side(runs)}\n  picture: {folder / 'ttft.png'}")
    for name, run in runs.items() if chosen.only else ():
        say_at_once(f"  {name}: {run.summary()}")
    if any(way.name not in runs for way in scenario.ways):
        return []
    return [middle(same) for same in zip(*map(scenario.judge, stage.runs), strict=True)]


class _Stage:
    """The runs of one scenario, by way, as often as it is repeated."""

    def __init__(self, scenario: Scenario, mix: Mix, folder: Path, chosen: argparse.Namespace) -> None:
        self.parts = [folder / f"run-{number + 1}" for number in range(chosen.repeat)]
        self.runs: list[dict[str, Run]] = [{} for _ in self.parts]
        self._scenario = scenario
        self._mix = mix
        self._chosen = chosen
        for part, runs in zip(self.parts, self.runs, strict=True):
            part.mkdir()
            if chosen.direct_from:
                runs["direct"] = Run.read(Path(chosen.direct_from))

    def play(self, server: SGLangServer, way: Way, runs: dict[str, Run], part: Path) -> None:
        """Plays one way, unless its run was given."""
        if way.name in runs:
            return
        try:
            workload = self._scenario.workload(way, self._mix, runs)
            settings = dict(self._scenario.settings(runs)) if way.proxied else {}
        except KeyError as missing:
            raise SystemExit(f"{way.name} is set against the run {missing}, which was left out") from None
        title = way.slug
        if not way.proxied:
            run = run_direct(server, replace(workload, obey_retry_after=False), title=title, say=say_at_once)
        elif self._chosen.proxy_url:
            run = run_against(server, self._chosen.proxy_url, workload, title=title, say=say_at_once)
        else:
            settings |= dict(pair.split("=", 1) for pair in self._chosen.env)
            run = run_proxied(
                server,
                workload,
                settings,
                log_path=part / f"{title}.log",
                title=title,
                decisions_path=part / f"{title}-decisions.jsonl" if self._scenario.decisions else None,
                say=say_at_once,
            )
        run.write(part / f"{title}.json")
        runs[way.name] = run


def _by_engine(ways: Sequence[Way], usual: Engine) -> dict[Engine, list[Way]]:
    """The ways that can share a server, in their order."""
    groups: dict[Engine, list[Way]] = {}
    for way in ways:
        groups.setdefault(way.engine(usual), []).append(way)
    return groups


def _server(engine: Engine, log_path: Path) -> SGLangServer:
    return SGLangServer(
        pool=engine.pool,
        pace=engine.pace,
        speedup=engine.speedup,
        policy=engine.policy,
        flags=engine.flags,
        log_path=log_path,
    )


def _mix(engine: Engine, chosen: argparse.Namespace) -> Mix:
    return Mix(
        seed=chosen.seed,
        scale=QUICK_SCALE if chosen.quick else 1.0,
        lengths=chosen.lengths or min(1.0, engine.pool / STORY_POOL_TOKENS),
    )


def _summary(name: str) -> str:
    return SCENARIOS[name].summary if name in SCENARIOS else FAULT_SUMMARIES[name]


def _engine(default: Engine, chosen: argparse.Namespace) -> Engine:
    given = {name: getattr(chosen, name) for name in ("pool", "pace", "speedup", "policy")}
    engine = replace(default, **{name: value for name, value in given.items() if value is not None})
    engine = replace(engine, flags=(*engine.flags, *chosen.flag))
    return replace(engine, pace=None) if engine.pace == "none" else engine


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
    parser.add_argument("--only", metavar="WAY", help="direct, proxied ...: one way alone, without a table")
    parser.add_argument("--rivals", action="store_true", help="the engine's other queue orders, too")
    parser.add_argument("--direct-from", metavar="FILE", help="a direct.json of before instead of a new run")
    parser.add_argument("--proxy-url", help="a proxy that runs already, instead of starting one")
    parser.add_argument("--out", default=str(REPOSITORY / "out"), help="folder for the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
