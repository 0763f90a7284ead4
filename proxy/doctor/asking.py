"""Asking one server everything, within a bound of time and whatever it answers."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from proxy.backend_spec import BackendSpec
from proxy.tokens.selfcheck import SelfCheck, self_check
from proxy.tokens.sizer import Sizer
from proxy.upstream.discovery import ASK_SECONDS, LOAD_SOURCES, Discovery, discover
from proxy.upstream.errors import UpstreamUnreachable
from proxy.upstream.link import Link, reason_of
from proxy.upstream.sglang import (
    ABORT_PATH,
    METRICS_PATH,
    READY_PATH,
    SERVER_INFO_PATHS,
    TOKENIZE_PATH,
    RankLoad,
    load_json,
    parse_metrics,
    parse_server_info,
)
from proxy.upstream.traits import NOBODYS_RID, Traits, parse_traits

Step = Callable[[str], None]
_WORKS = 200


@dataclass(slots=True)
class Answers:
    """All that is known of one server. What was not reached is as it was.

    `unreachable`: nothing came back at all; `refusal`: why the proxy would not send it work.
    `statuses`: of each question by its path, an HTTP status or a word for what went wrong.
    """

    spec: BackendSpec
    unreachable: str = ""
    refusal: str = ""
    discovery: Discovery | None = None
    traits: Traits = field(default_factory=Traits)
    reported_pool_tokens: int | None = None  # by the server, whatever the operator says
    statuses: dict[str, int | str] = field(default_factory=dict)
    ready_seconds: float | None = None
    loads: list[RankLoad] = field(default_factory=list)
    metrics: list[RankLoad] = field(default_factory=list)
    abort_status: int | str = ""
    check: SelfCheck | None = None

    @property
    def key_refused(self) -> bool:
        return any(status in (401, 403) for status in self.statuses.values())

    @property
    def prefill_rate(self) -> float | None:
        """Prefill tokens a second over the server's whole life, None while it has hardly done any."""
        busy = sum(load.prefill_busy_seconds_total or 0.0 for load in self.loads)
        tokens = sum(load.prefill_tokens_total or 0 for load in self.loads)
        return tokens / busy if busy > 1.0 and tokens > 16_384 else None


async def ask(
    spec: BackendSpec,
    client: httpx.AsyncClient,
    sizer: Sizer,
    *,
    connect_seconds: float,
    seconds: float,
    step: Step,
) -> Answers:
    """All questions to one server, one after the other, within `seconds`. Raises nothing.

    `step` hears what is being asked, and "" at the end.
    """
    answers = Answers(spec)
    link = Link(spec, client, connect_seconds=min(connect_seconds, seconds), stall_seconds=seconds)
    questions = _Questions(link, answers, sizer, step)
    try:
        async with asyncio.timeout(seconds):
            await questions.all()
    except TimeoutError:
        late = f"did not answer within {seconds:g} s: {questions.asking}"
        if answers.statuses:
            answers.refusal = answers.refusal or late
        else:
            answers.unreachable = late
    step("")
    return answers


class _Questions:
    def __init__(self, link: Link, answers: Answers, sizer: Sizer, step: Step) -> None:
        self.asking = ""
        self._link = link
        self._answers = answers
        self._sizer = sizer
        self._step = step

    async def all(self) -> None:
        answers = self._answers
        self._now("is it there")
        begun = time.monotonic()
        await self._get(READY_PATH)
        if answers.unreachable:
            return
        answers.ready_seconds = time.monotonic() - begun
        await self._discover()
        await self._about_itself()
        await self._about_its_load()
        await self._about_aborts()
        if answers.discovery is not None and answers.discovery.info.is_generation:
            await self._about_counting()

    async def _discover(self) -> None:
        self._now("what the proxy asks at its start")
        try:
            self._answers.discovery = await discover(self._link, self._answers.spec)
        except UpstreamUnreachable as error:
            self._answers.refusal = error.reason

    async def _about_itself(self) -> None:
        self._now("its arguments")
        for path in SERVER_INFO_PATHS:
            document = load_json(await self._get(path))
            if isinstance(document, dict):
                self._answers.traits = parse_traits(document)
                self._answers.reported_pool_tokens = _reported(document)
                return

    async def _about_its_load(self) -> None:
        self._now("its load")
        answers = self._answers
        for source in LOAD_SOURCES:
            content = await self._get(source.path)
            ranks = source.parse(content)
            if answers.statuses[source.path] == _WORKS and not ranks:
                answers.statuses[source.path] = "says nothing of its load"
            answers.loads = answers.loads or ranks
            if source.path == METRICS_PATH:
                answers.metrics = parse_metrics(content)

    async def _about_aborts(self) -> None:
        self._now("may we abort")
        body = orjson.dumps({"rid": NOBODYS_RID})
        try:
            response = await self._link.post(ABORT_PATH, body, seconds=ASK_SECONDS, admin=True)
        except (httpx.TransportError, TimeoutError) as error:
            self._answers.abort_status = reason_of(error)
        else:
            self._answers.abort_status = response.status_code

    async def _about_counting(self) -> None:
        self._now("how it counts tokens")
        info = self._answers.discovery.info if self._answers.discovery else None
        model = info.models[0] if info and info.models else ""
        try:
            self._answers.check = await self_check(self._sizer, self._count, model)
        except (httpx.TransportError, TimeoutError) as error:
            self._answers.statuses[TOKENIZE_PATH] = reason_of(error)

    async def _count(self, body: dict[str, Any]) -> int | None:
        response = await self._link.post(TOKENIZE_PATH, orjson.dumps(body), seconds=ASK_SECONDS)
        self._answers.statuses[TOKENIZE_PATH] = response.status_code
        document = load_json(response.content) if response.status_code == _WORKS else None
        count = document.get("count") if isinstance(document, dict) else None
        return count if isinstance(count, int) else None

    async def _get(self, path: str) -> bytes:
        """The answer where it is a good one, else nothing; the status is noted."""
        answers = self._answers
        try:
            response = await self._link.get(path, seconds=ASK_SECONDS)
        except (httpx.TransportError, TimeoutError) as error:
            answers.statuses[path] = reason_of(error)
            if path == READY_PATH:
                answers.unreachable = reason_of(error)
            return b""
        answers.statuses[path] = response.status_code
        return response.content if response.status_code == _WORKS else b""

    def _now(self, asking: str) -> None:
        self.asking = asking
        self._step(asking)


def _reported(document: Mapping[str, Any]) -> int | None:
    pools = [facts.pool_tokens for facts in parse_server_info(document).ranks]
    return min(pools) or None
