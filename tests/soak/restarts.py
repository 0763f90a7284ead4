"""The server killed and restarted under load, again and again: does traffic resume, and is anything lost?

    python -m tests.soak.restarts --times 10
    python -m tests.soak.restarts --times 2 --simulated

Clients that are refused come again when they were told to. A request is lost when it failed although
the server never had it: it was waiting in the proxy when the server died, or came after that.
Exit code 0 when every required figure holds, else 1.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.load.client import ask
from tests.load.figures import Row, all_hold, inform, require, table
from tests.load.outcome import Outcome
from tests.load.process import Say, say_at_once
from tests.load.proxy import ProxyServer
from tests.load.scenario import STORY_POOL_TOKENS
from tests.load.workload import Ask
from tests.soak.engines import Engine, engine, options
from tests.soak.guests import Party
from tests.soak.outages import Outage, outage

LOAD_SECONDS = 4.0  # before each kill
RESUME_SECONDS = 2.0
END_SECONDS = 180.0
SETTLE_SECONDS = 30.0
LONG_SHARE = 0.45  # of the pool: of three that come together one waits
KILL_SLACK_SECONDS = 0.25  # until a proxy that waits for the CPU has read that connections are gone


def restarts(
    server: Engine, times: int, folder: Path, say: Say, load_seconds: float = LOAD_SECONDS
) -> list[Row]:
    """Plays it with the started server; gives the table."""
    log = folder / "decisions.jsonl"
    settings = {"PROXY_MAX_QUEUE_SECONDS": "600", "PROXY_DECISION_LOG": str(log)}
    with ProxyServer(server.base_url, settings, log_path=folder / "proxy.log", say=say) as proxy:
        party = Party(server, proxy.port, random.Random(1))
        found = asyncio.run(_play(party, times, load_seconds, say))
        ledger = proxy.settled_ledger(SETTLE_SECONDS)
    decisions = [json.loads(line) for line in log.read_text().splitlines()]
    return _table(party, found, ledger, decisions)


async def _play(party: Party, times: int, load_seconds: float, say: Say) -> list[Outage]:
    guests = [asyncio.create_task(_shorts(party)), *(asyncio.create_task(_longs(party)) for _ in range(3))]
    found = []
    for _ in range(times):
        await asyncio.sleep(load_seconds)
        found.append(await outage(party, 0.0, say))
        say(f"  traffic again {found[-1].resumed_seconds:.2f} s after readiness: {party.tally}")
    await asyncio.sleep(load_seconds)
    party.over.set()
    async with asyncio.timeout(END_SECONDS):
        await asyncio.gather(*guests)
    return found


async def _shorts(party: Party) -> None:
    async with asyncio.TaskGroup() as tasks:
        while await party.pause(0.3):
            tasks.create_task(_until_answered(party, "short", party.dice.randint(50, 800), 40))


async def _longs(party: Party) -> None:
    while await party.pause(0.5):
        await _until_answered(party, "long", round(LONG_SHARE * party.engine.pool), 100)


async def _until_answered(party: Party, kind: str, prompt_tokens: int, max_tokens: int) -> None:
    """Asks, and asks again when it was told to."""
    wanted = Ask(kind, prompt_tokens, max_tokens, party.dice.getrandbits(48))
    body = wanted.body(party.engine.vocabulary, party.engine.model)
    while True:
        outcome = Outcome.of(wanted, started_at=time.monotonic())
        await ask(f"http://127.0.0.1:{party.port}", body, outcome)
        party.tally.note(outcome, left=False)
        if not outcome.refused:
            return
        await asyncio.sleep(float(outcome.headers["retry-after"]))


def lost(decisions: Sequence[dict[str, Any]], killed_at: Sequence[float]) -> list[str]:
    """What failed and was not in the server's hands when that died; and what waited and was turned away."""
    found = []
    for line in decisions:
        if line["event"] == "finish" and not line["completed"]:
            ended, sent = line["at"], line["dispatched_at"]
            before = [at for at in killed_at if at <= ended]
            if not before or sent is None or sent > before[-1] + KILL_SLACK_SECONDS:
                found.append(f"{line['rid']} failed, sent {sent}, ended {ended}")
        elif line["event"] == "refuse" and line["waited_s"] > 0.5:
            found.append(f"{line['rid']} was refused after {line['waited_s']:.1f} s: {line['reason']}")
    return found


def waiting(decisions: Sequence[dict[str, Any]], outages: Sequence[Outage]) -> int:
    """How many had come, and not been sent, when the server died."""
    sent = {line["rid"]: line for line in decisions if line["event"] == "dispatch"}
    return sum(line["arrived_at"] < seen.killed_at < line["at"] for line in sent.values() for seen in outages)


def resumed_seconds(decisions: Sequence[dict[str, Any]], seen: Outage) -> float:
    """From the server's readiness to the first token of any request; 0 where that came before we knew."""
    tokens = [line["first_token_at"] for line in decisions if line["event"] == "finish"]
    first = min(at for at in tokens if at is not None and at > seen.killed_at + KILL_SLACK_SECONDS)
    return max(0.0, float(first) - seen.ready_at)


def _table(
    party: Party, outages: Sequence[Outage], ledger: dict[str, float], decisions: Sequence[dict[str, Any]]
) -> list[Row]:
    slowest = max(resumed_seconds(decisions, seen) for seen in outages)
    lost_ones = lost(decisions, [seen.killed_at for seen in outages])
    tally = party.tally
    return [
        inform("restarts", "", str(len(outages))),
        *(inform(f"  {end}", "", f"{count:,}") for end, count in tally.ends.most_common()),
        require("unanswered", "", str(len(tally.unanswered)), "0", not tally.unanswered),
        inform("waited for the server while it was dead", "", str(waiting(decisions, outages))),
        require("lost though the server never had them", "", ", ".join(lost_ones) or "0", "0", not lost_ones),
        require(
            "traffic after readiness, at worst",
            "",
            f"{slowest:.2f} s",
            f"<= {RESUME_SECONDS:g} s",
            slowest <= RESUME_SECONDS,
        ),
        require("ledger at rest", "", str(sum(ledger.values())), "0", not any(ledger.values())),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises what a broken server or install raises."""
    parser = options("tests.soak.restarts", __doc__)
    parser.add_argument("--times", type=int, default=10)
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.out) / f"restarts-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    server = engine(
        simulated=chosen.simulated,
        pool=STORY_POOL_TOKENS,
        speedup=chosen.speedup,
        folder=folder,
        say=say_at_once,
    )
    with server:
        rows = restarts(server, chosen.times, folder, say_at_once)
    print(f"\n{table(rows)}\n\nlogs: {folder}", flush=True)
    return 0 if all_hold(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
