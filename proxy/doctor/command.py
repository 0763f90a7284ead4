"""`sglang-admission-proxy doctor`: its options, and running it."""

import argparse
import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Iterator

from proxy.doctor.data import document
from proxy.doctor.examination import examine
from proxy.doctor.finding import Level
from proxy.doctor.text import report
from proxy.settings import SettingsError, load_settings, pending_variables, unknown_variables

DESCRIPTION = """\
Asks each server in PROXY_BACKENDS what it is, checks that the proxy could use it, and says what is wrong,
what is missing and which SGLang flag turns it on, and which settings would suit better. It sends no prompt
and changes nothing. The exit status is 1 when something does not work, 2 for wrong settings, else 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every option of the command to `parser`."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="for each server (%(default)s)"
    )


def main(args: argparse.Namespace) -> int:
    """Runs it; returns the exit status."""
    try:
        settings = load_settings()
    except SettingsError as error:
        sys.stderr.write(f"doctor: {error}\n")
        return 2
    if not args.timeout > 0:
        sys.stderr.write(f"doctor: --timeout {args.timeout:g}: must be above 0\n")
        return 2
    for warning in (*unknown_variables(), *pending_variables()):
        sys.stderr.write(f"doctor: {warning}\n")
    with _quiet():
        examination = asyncio.run(examine(settings, seconds=args.timeout, progress=sys.stderr))
    if args.json:
        sys.stdout.write(json.dumps(document(examination), indent=2) + "\n")
    else:
        sys.stdout.write(report(examination))
    return 1 if examination.count(Level.TROUBLE) else 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without log lines: what they would say is in the report."""
    logger = logging.getLogger("proxy")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
