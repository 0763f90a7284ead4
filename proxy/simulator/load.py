"""A workload over real sockets: sends it to a base URL and records what its clients see."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import orjson

from proxy.simulator.crowd import LONGEST_RETRY_SECONDS, RETRY_SECONDS
from proxy.simulator.dialogue import body_of
from proxy.simulator.records import Outcome, Record, Run
from proxy.simulator.text import words
from proxy.simulator.workload import Ask, Client, Workload

# SGLang closes idle connections after 5 s; a request on one that just closes fails.
KEEPALIVE_SECONDS = 3.0
CONNECT_SECONDS = 10.0
SAMPLE_WORDS = 400
_REFUSED = (429, 503)


@dataclass(slots=True)
class Target:
    """Where a load goes, and under which name it is known there. `headers` go with every request."""

    base_url: str
    model: str = "simulated"
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens_per_word: float = 1.0


class Load:
    """One load on one target. `run` fills while `drive` runs, so it can be shown meanwhile."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self.run = Run()
        self.started_at = 0.0
        self._workload = workload
        self._target = target
        self._said: dict[str, str] = {}
        self._http = httpx.AsyncClient(
            base_url=target.base_url,
            headers=dict(target.headers),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_SECONDS),
            trust_env=False,
        )

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    async def drive(self) -> Run:
        """Until every client has ended. Cancelled, it leaves in `run` what there was."""
        self.started_at = time.monotonic()
        async with self._http, asyncio.TaskGroup() as tasks:
            for client in self._workload.clients:
                tasks.create_task(self._live(client))
        return self.run

    async def _live(self, client: Client) -> None:
        await asyncio.sleep(max(0.0, client.starts_at - self.now))
        for turn in client.turns:
            await asyncio.sleep(turn.pause_seconds)
            asked_at = self.now
            for attempt in range(client.retries + 1):
                record = self._record(client, turn.ask, attempt, asked_at)
                await self._send(turn.ask, record)
                if record.outcome is not Outcome.REFUSED or attempt == client.retries:
                    break
                pause = record.retry_after_seconds
                await asyncio.sleep(min(RETRY_SECONDS if pause is None else pause, LONGEST_RETRY_SECONDS))
            if record.outcome is Outcome.LEFT:
                return

    def _record(self, client: Client, ask: Ask, attempt: int, asked_at: float) -> Record:
        record = Record(
            rid="",
            kind=ask.kind,
            client=client.name,
            sent_at=self.now,
            prompt_tokens=ask.prompt_tokens,
            tenant=ask.tenant,
            attempt=attempt,
            asked_at=asked_at,
        )
        self.run.records.append(record)
        return record

    async def _send(self, ask: Ask, record: Record) -> None:
        """One request, to its end; whatever happens is in the record."""
        try:
            async with asyncio.timeout(ask.leaves_after_seconds):
                await self._exchange(ask, record)
        except TimeoutError:
            record.outcome = Outcome.LEFT
        except httpx.HTTPError as error:
            record.outcome, record.reason = Outcome.FAILED, repr(error)
        record.ended_at = self.now

    async def _exchange(self, ask: Ask, record: Record) -> None:
        target = self._target
        body = body_of(ask, model=target.model, said=self._said, tokens_per_word=target.tokens_per_word)
        headers = {"content-type": "application/json"}
        if ask.session:
            headers["x-session-id"] = ask.session.replace(" ", "-")
        content = orjson.dumps(body)
        async with self._http.stream(
            "POST", "/v1/chat/completions", content=content, headers=headers
        ) as answer:
            _note_headers(record, answer)
            if answer.status_code != httpx.codes.OK:
                _note_refusal(record, await answer.aread())
                return
            pieces = []
            async for piece in answer.aiter_raw():
                if record.first_token_at is None and b"data: {" in piece:
                    record.first_token_at = self.now
                pieces.append(piece)
        self._note_end(ask, record, b"".join(pieces))

    def _note_end(self, ask: Ask, record: Record, stream: bytes) -> None:
        events = [
            orjson.loads(line[6:])
            for line in stream.split(b"\n")
            if line.startswith(b"data: {") and (ask.session or b'"usage":{' in line or b'"error"' in line)
        ]
        failed = next((event["error"] for event in events if "error" in event), None)
        if failed is not None or not stream.rstrip().endswith(b"data: [DONE]"):
            record.outcome = Outcome.FAILED
            record.reason = str(failed["message"]) if failed else "the stream ended early"
            record.first_token_at = None
            return
        record.outcome = Outcome.DONE
        usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
        if usage is not None:
            record.completion_tokens = usage["completion_tokens"]
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if ask.session:
            deltas = (choice["delta"] for event in events for choice in event["choices"])
            self._said[ask.output_key] = "".join(delta.get("content") or "" for delta in deltas)


async def tokens_per_word(target: Target) -> float:
    """How many tokens the server's tokenizer makes of a word of `text.words`, asked once."""
    text = words("sample", SAMPLE_WORDS)
    async with httpx.AsyncClient(base_url=target.base_url, headers=dict(target.headers)) as http:
        answer = await http.post("/v1/tokenize", json={"model": target.model, "prompt": text})
        answer.raise_for_status()
    return float(answer.json()["count"]) / SAMPLE_WORDS


def _note_headers(record: Record, answer: httpx.Response) -> None:
    record.status = answer.status_code
    record.lane = answer.headers.get("x-admission-lane", "")
    record.rid = answer.headers.get("x-request-id", "")
    record.reason = answer.headers.get("x-admission-reason", "")
    waited = answer.headers.get("x-admission-wait-ms")
    if waited is not None:
        record.dispatched_at = record.sent_at + float(waited) / 1000
    retry_after = answer.headers.get("retry-after")
    record.retry_after_seconds = None if retry_after is None else float(retry_after)


def _note_refusal(record: Record, body: bytes) -> None:
    record.outcome = Outcome.REFUSED if record.status in _REFUSED else Outcome.FAILED
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    if not isinstance(value, dict):
        return
    details = {**value, **nested} if isinstance(nested := value.get("error"), dict) else value
    record.reason = record.reason or str(details.get("message", ""))
    if (predicted := details.get("predicted_wait_s")) is not None:
        record.predicted_wait_seconds = float(predicted)
