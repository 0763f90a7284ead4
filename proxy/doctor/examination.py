"""All servers asked at the same time, and what follows for the settings they share."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from proxy.admission.limits import Limits, Mode
from proxy.app import limits_of
from proxy.doctor.advice import advice
from proxy.doctor.asking import Answers, ask
from proxy.doctor.finding import Advice, Finding, Level
from proxy.doctor.idle import idle_settings
from proxy.doctor.servers import findings
from proxy.settings import Settings
from proxy.tokens.sizer import Sizer
from proxy.upstream.client import make_client

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Examined:
    """One server, and what there is to say about it."""

    answers: Answers
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Examination:
    """All of it. `idle` are settings that could never act, `advice` those that would suit better."""

    servers: list[Examined]
    limits: Limits
    idle: list[Finding]
    advice: list[Advice]

    def count(self, level: Level) -> int:
        """How many findings are that serious."""
        every = [*self.idle, *(finding for server in self.servers for finding in server.findings)]
        return sum(finding.level is level for finding in every)


async def examine(settings: Settings, *, seconds: float, progress: TextIO) -> Examination:
    """Asks each server for at most `seconds`; says on `progress` every two seconds what it waits for."""
    asking: dict[str, str] = {}
    template = settings.chat_template
    sizer = Sizer(
        tokenizer_path=settings.tokenizer_path, chat_template=None if template is None else Path(template)
    )
    client = make_client(connect_seconds=settings.connect_seconds)
    try:
        async with _telling(asking, progress):
            asking["tokenizer"] = "being loaded"
            await sizer.load()
            del asking["tokenizer"]
            answers = await asyncio.gather(
                *(
                    ask(
                        spec,
                        client,
                        sizer,
                        connect_seconds=settings.connect_seconds,
                        seconds=seconds,
                        step=_noted(asking, spec.name),
                    )
                    for spec in settings.backend_specs()
                )
            )
    finally:
        await client.aclose()
        sizer.close()
    # whatever the mode: what would fit is a question about enforcing
    limits = replace(limits_of(settings), mode=Mode.ENFORCE)
    return Examination(
        servers=[Examined(server, findings(server, settings)) for server in answers],
        limits=limits,
        idle=idle_settings(answers, settings, limits),
        advice=advice(answers, settings, limits),
    )


def _noted(asking: dict[str, str], name: str) -> Callable[[str], None]:
    def step(what: str) -> None:
        if what:
            asking[name] = what
        else:
            asking.pop(name, None)

    return step


@contextlib.asynccontextmanager
async def _telling(asking: Mapping[str, str], out: TextIO) -> AsyncIterator[None]:
    """While the block runs: a line now and then of what is being waited for."""
    task = asyncio.create_task(_tell(asking, out))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _tell(asking: Mapping[str, str], out: TextIO) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        waiting = "; ".join(f"{name}: {what}" for name, what in asking.items())
        out.write(f"doctor: {time.monotonic() - begun:.0f} s, still asking {waiting}\n")
        out.flush()
