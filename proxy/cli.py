"""The command line: `sglang-admission-proxy serve`, `simulator`, `demo`, `doctor`, `plan`."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from proxy.settings import (
    Settings,
    SettingsError,
    load_settings,
    pending_variables,
    unknown_variables,
)
from proxy.settings_sections import PENDING, SECTIONS
from proxy.settings_text import help_text
from proxy.telemetry import logs
from proxy.telemetry.metrics import package_version

DESCRIPTION = """\
Admission control in front of SGLang: counts each prompt, keeps a ledger of the KV-cache tokens
that are committed, and queues, refuses or routes long contexts before they starve everybody else.
Point your OpenAI base URL at it instead of at SGLang.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for trouble at run time, 2 for wrong settings."""
    options = _parser(argv).parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _parser(argv: Sequence[str] | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang-admission-proxy", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=package_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser(
        "serve",
        help="run the proxy; everything comes from environment variables",
        description="Run the proxy. Everything comes from these environment variables:",
        epilog=help_text(SECTIONS, PENDING),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serving.set_defaults(run=_serve)
    simulator = commands.add_parser("simulator", help="run a simulated SGLang, to point things at")
    demo = commands.add_parser(
        "demo", help="replay the 186,624-token story, directly and through the proxy, side by side"
    )
    doctor = commands.add_parser(
        "doctor", help="ask the servers what they are, what is missing there, and which settings suit them"
    )
    plan = commands.add_parser("plan", help="replay traffic in virtual time against given limits")
    chosen = next((word for word in (sys.argv[1:] if argv is None else argv) if word[0] != "-"), "")
    if chosen == "simulator":
        from proxy.simulator import cli_options

        cli_options.add_arguments(simulator)
        simulator.set_defaults(run=cli_options.run)
    elif chosen == "demo":
        from proxy.simulator import demo as play

        play.add_arguments(demo)
        demo.set_defaults(run=play.main)
    elif chosen == "doctor":
        from proxy.doctor import command as examine

        examine.add_arguments(doctor)
        doctor.set_defaults(run=examine.main)
    elif chosen == "plan":
        from proxy.plan import command as planning

        planning.add_arguments(plan)
        plan.set_defaults(run=planning.main)
    return parser


def _serve(_: argparse.Namespace) -> int:
    try:
        settings = load_settings()
    except SettingsError as error:
        print(f"sglang-admission-proxy: {error}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level, settings.log_format)
    for warning in (*unknown_variables(), *pending_variables()):
        logging.getLogger("proxy").warning("%s", warning)
    return _run(settings)


def _run(settings: Settings) -> int:
    from proxy.serve import run  # late: it imports the servers, which `--help` does not need

    try:
        run(settings)
    except SettingsError as error:  # what only reading a file shows
        print(f"sglang-admission-proxy: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sglang-admission-proxy: {error}", file=sys.stderr)
        return 1
    except SystemExit:  # uvicorn could not bind; it has said so in the log
        return 1
    return 0
