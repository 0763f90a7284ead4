"""`sglang-admission-proxy plan`: its options, and running it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.plan.data import document
from proxy.plan.figures import TARGET_SECONDS, Grouping, lanes_of, parse_targets
from proxy.plan.picture import picture
from proxy.plan.policies import Policy, policies
from proxy.plan.progress import Progress
from proxy.plan.runs import Plan
from proxy.plan.text import report
from proxy.settings import unknown_variables
from proxy.simulator import mix_text
from proxy.simulator.cli_options import add_engine_arguments, engine_of
from proxy.simulator.traces import read_trace
from proxy.simulator.workload import Workload

DESCRIPTION = """\
Replays traffic in virtual time against given limits, and says what each lane would have got and which
limits decided anything. Minutes of traffic take seconds; nothing is sent anywhere. Limits are those of the
PROXY_* variables and of --set. One pool is simulated: for several servers, give one's share of the traffic.
"""
EPILOG = f"""\
traffic in words:
{mix_text.__doc__.partition(chr(10))[2] if mix_text.__doc__ else ""}
examples:
  sglang-admission-proxy plan --mix story --direct
  sglang-admission-proxy plan --mix short:8/s:150-450:150 --mix long:6x2:64000:500 --mix giant@8:180000:200
  sglang-admission-proxy plan --trace decisions.jsonl --set MAX_QUEUE_SECONDS=20 --compare EXPRESS_SHARE=0.2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option of the command to `parser`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--mix",
        action="append",
        metavar="MIX",
        help=f"traffic in words (below), or {', '.join(mix_text.BUILT_IN)}; may be repeated (story)",
    )
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="recorded traffic: a decision log, JSON Lines or CSV"
    )
    parser.add_argument(
        "--seconds", type=float, help="of arrivals at a rate (60), or of the trace (all of it)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the mix (%(default)s)")
    parser.add_argument(
        "--trace-unit", choices=("auto", "s", "ms"), default="auto", help="of its times (auto)"
    )
    parser.add_argument("--load", type=float, default=1.0, help="trace: arrivals this many times as fast (1)")
    parser.add_argument("--model", default="", help="trace: only requests of this model")
    parser.add_argument(
        "--retries", type=int, default=0, help="how often the refused come back (%(default)s)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a limit, PROXY_ may be left out"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="run these limits as well, with this changed (several: A=1;B=2); may be repeated",
    )
    parser.add_argument("--direct", action="store_true", help="run without the proxy as well")
    targets = ",".join(f"{lane}={seconds:g}" for lane, seconds in TARGET_SECONDS.items())
    parser.add_argument(
        "--target", default="", metavar="LANE=SECONDS", help=f"first token in time ({targets})"
    )
    parser.add_argument("--by", choices=("lane", "kind", "tenant"), default="lane", help="grouping (lane)")
    parser.add_argument("--no-questions", action="store_true", help="do not ask each limit if it could act")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_engine_arguments(parser)


@dataclass(frozen=True, slots=True)
class _Traffic:
    workload: Workload
    notes: tuple[str, ...] = ()


def main(args: argparse.Namespace) -> int:
    """Runs it; the exit status is 0, 2 for what cannot be read."""
    try:
        traffic = _traffic(args)
        tried = policies(args.set, args.compare, os.environ)
        targets = parse_targets(args.target)
        plan = Plan(traffic.workload, engine_of(args), max(0, args.retries), Progress(sys.stderr).step)
    except OSError as error:
        return _wrong(f"{error.filename}: {error.strerror}")
    except ValueError as error:  # of settings, mix, trace or options: one line each
        return _wrong(str(error))
    for warning in unknown_variables():
        sys.stderr.write(f"plan: {warning}\n")
    if args.direct:
        plan.run_direct()
    for policy in tried:
        plan.run(policy, ask=not args.no_questions and policy is tried[0])
    base = next(side for side in plan.sides if side.policy is tried[0])
    lanes = lanes_of(base.run, tried[0].limits.short_prefill_tokens)
    grouping = Grouping(args.by, lanes, targets)
    if args.json:
        sys.stdout.write(json.dumps(document(plan, grouping, traffic.notes), indent=2) + "\n")
    else:
        sys.stdout.write(_heading(args, plan, traffic, tried) + "\n\n" + report(plan, grouping))
    return _draw(args.picture, plan, grouping) if args.picture is not None else 0


def _wrong(text: str) -> int:
    sys.stderr.write(f"plan: {text}\n")
    return 2


def _traffic(args: argparse.Namespace) -> _Traffic:
    if args.seconds is not None and not args.seconds > 0:
        raise ValueError(f"--seconds {args.seconds:g}: must be above 0")
    if args.trace is None:
        seconds = 60.0 if args.seconds is None else args.seconds
        return _Traffic(mix_text.workload_of(args.mix or ["story"], seconds=seconds, seed=args.seed))
    if not args.load > 0:
        raise ValueError(f"--load {args.load:g}: must be above 0")
    trace = read_trace(
        args.trace, unit=args.trace_unit, model=args.model, seconds=args.seconds, load=args.load
    )
    return _Traffic(trace.workload, trace.notes)


def _heading(args: argparse.Namespace, plan: Plan, traffic: _Traffic, tried: Sequence[Policy]) -> str:
    engine = plan.engine
    speed = f" at {args.speedup:g}x its speed" if args.speedup != 1 else ""
    lines = [
        f"Traffic: {traffic.workload.name} ({traffic.workload.requests} requests)",
        *(f"  {note}" for note in traffic.notes),
        f"Server: one pool of {engine.pool_tokens:,} tokens, {args.pace}{speed}, {engine.policy.value}",
    ]
    for policy in tried:
        changes = ", ".join(f"{name}={value}" for name, value in policy.changes.items())
        lines.append(f"{policy.name}: {changes or 'the limits of the environment'}")
    return "\n".join(lines)


def _draw(path: Path, plan: Plan, grouping: Grouping) -> int:
    title = f"{plan.workload.name}: one pool of {plan.engine.pool_tokens:,} tokens"
    try:
        drawn = picture(plan, grouping, path, title=title)
    except (OSError, ValueError) as error:
        return _wrong(f"--picture {path}: {error}")
    hint = "matplotlib is not installed (pip install 'sglang-admission-proxy[demo]')"
    sys.stderr.write(f"Picture: {path}\n" if drawn else f"No picture: {hint}.\n")
    return 0
