"""Tells streaming clients that wait, and asked for it, how they stand: `x-admission-progress: 1`.

After a second of waiting a 200 goes ahead of the answer, and then a comment whenever the position
changes, at least every five seconds, never more than one a second. What a comment says is worked
out when it is due: with many who wait each hears less often, so that all together cost the same.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson

from proxy.admission.job import Job, State
from proxy.api.gate import Gate
from proxy.api.headers import Headers, first
from proxy.api.outgoing import Outgoing
from proxy.api.ticket import Decision, Ticket
from proxy.tokens.shape import Api

HEADER = b"x-admission-progress"
FIRST_SECONDS = 1.0  # who goes sooner gets the backend's own head, or a refusal with its own status
EVERY_SECONDS = 5.0
LEAST_SECONDS = 1.0
MOST_A_SECOND = 100  # looks at the queue, all clients together: each may cost a forecast


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request is. `position` counts those of its lane before it; None: it does not queue."""

    state: str  # "queued", "prefilling"
    position: int | None = None


def wanted(headers: Headers) -> bool:
    """Does this client want to be told?"""
    return first(headers, HEADER) == b"1"


def event(api: Api, standing: Standing, eta_seconds: float | None) -> bytes:
    """What no client takes for a part of the answer: Anthropic's `ping`, elsewhere a comment.

    `eta_seconds`: until it is sent, then until its first token; None: unknown.
    """
    figures: dict[str, int | float] = {}
    if standing.position is not None:
        figures["position"] = standing.position
    if eta_seconds is not None:
        figures["eta_seconds"] = round(eta_seconds, 1)
    if api is Api.MESSAGES:
        data = orjson.dumps({"type": "ping", "state": standing.state, **figures})
        return b"event: ping\ndata: " + data + b"\n\n"
    words = [standing.state, *(f"{name}={value}" for name, value in figures.items())]
    return f": {' '.join(words)}\n\n".encode()


class Progress:
    """All clients that are being told."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._clients = 0

    @property
    def interval_seconds(self) -> float:
        """How often each client's standing is looked at."""
        return max(LEAST_SECONDS, self._clients / MOST_A_SECOND)

    @asynccontextmanager
    async def told(self, ticket: Ticket, out: Outgoing) -> AsyncIterator[None]:
        """Tell the client while the block waits: for a decision or, after one, for the first token.

        Writing has a task of its own: a client that does not read delays nobody's decision.
        """
        task = asyncio.create_task(self._tell(ticket, ticket.decision, out))
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def _tell(self, ticket: Ticket, decision: Decision | None, out: Outgoing) -> None:
        said: Standing | None = None
        said_at = -math.inf
        await asyncio.sleep(FIRST_SECONDS)
        while ticket.decision is decision:  # else its own answer follows at once
            now = self._gate.clock()
            job = self._gate.controller.jobs.get(ticket.request.rid)
            if job is None:
                return  # its pool was taken away under it
            standing = self._standing(job)
            if standing != said or now - said_at >= EVERY_SECONDS:
                said, said_at = standing, now
                if not out.committed:
                    await out.commit(job.lane)
                await out.chunk(event(out.api, standing, self._eta_seconds(job, now)))
            await asyncio.sleep(self.interval_seconds)

    def _standing(self, job: Job) -> Standing:
        if job.state is not State.QUEUED:
            return Standing("prefilling")
        line = self._gate.controller.lines.get(job.pool)
        return Standing("queued", None if line is None else line.position(job))

    def _eta_seconds(self, job: Job, now: float) -> float | None:
        if job.state is not State.QUEUED:
            return max(0.0, job.dispatched_at + job.predicted_prefill_seconds - now)
        line = self._gate.controller.lines.get(job.pool)
        return None if line is None else line.predicted_wait(job, now)
