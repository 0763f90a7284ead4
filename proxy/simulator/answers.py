"""One request's answer: its outputs in the engine, and the stream or body made of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from proxy.simulator import wire
from proxy.simulator.intake import Api, Rejected, Sequence, Wanted
from proxy.simulator.jobs import DuplicateRid, Ended, EndReason, PromptTooLong
from proxy.simulator.runner import Runner, Ticket
from proxy.simulator.text import Speech

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class _Output:
    """One choice on its way."""

    def __init__(self, sequence: Sequence, ticket: Ticket, speech: Speech) -> None:
        self.sequence = sequence
        self.ticket = ticket
        self.speech = speech
        self.sent = 0
        self.closed = False

    @property
    def ended(self) -> Ended:
        assert self.ticket.ended is not None
        return self.ticket.ended

    def text(self) -> str:
        return self.speech.text(0, self.ticket.generated)


class Answer:
    """Sends all outputs wanted to the engine.

    Raises Rejected for a live id used again. What exceeds the pool is kept as an error for the answer,
    since SGLang's streams learn of it only after their 200.
    """

    def __init__(self, runner: Runner, wanted: Wanted, *, cache_report: bool) -> None:
        self._runner = runner
        self._wanted = wanted
        self._cache_report = cache_report
        self._changed = asyncio.Event()
        self._outputs: list[_Output] = []
        self._too_long = ""
        for sequence in wanted.sequences:
            speech = Speech(f"{sequence.prompt.tokens} {sequence.index} {sequence.rid}")
            try:
                ticket = self._submit(sequence, speech)
            except DuplicateRid:
                raise Rejected(f"Duplicate request ID detected: {sequence.rid}") from None
            except PromptTooLong as error:
                self._too_long = wire.too_long(error.tokens, error.limit)
                break
            self._outputs.append(_Output(sequence, ticket, speech))

    def _submit(self, sequence: Sequence, speech: Speech) -> Ticket:
        wanted = self._wanted
        return self._runner.submit(
            sequence.rid,
            sequence.prompt,
            self._changed,
            output=speech,
            output_tokens=sequence.output_tokens,
            max_new=wanted.max_new,
            ignore_eos=wanted.ignore_eos,
            tokenized=wanted.tokenized,
        )

    # --- whole -----------------------------------------------------------------------------------

    async def whole(self, receive: Receive) -> tuple[int, Mapping[str, Any] | list[Any]]:
        """Status and body, once all is said; a client that leaves meanwhile is noticed late."""
        if self._too_long:
            return 400, self._error_body(self._too_long, "BadRequestError", 400)
        left = asyncio.create_task(_disconnect(receive))
        try:
            while any(output.ticket.ended is None for output in self._outputs) and not left.done():
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait([changed, left], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self._changed.clear()
        finally:
            left.cancel()
            self._let_go()
        if any(output.ticket.ended is None for output in self._outputs):
            return 499, {}
        if any(output.ended.reason is EndReason.QUEUE_FULL for output in self._outputs):
            return 503, wire.flat_error(wire.QUEUE_FULL, "503", 503)
        if self._wanted.api is Api.GENERATE:
            bodies = [self._generated(output) for output in self._outputs]
            return 200, bodies if self._wanted.batch or len(bodies) > 1 else bodies[0]
        texts = [output.text() for output in self._outputs]
        ends = [output.ended for output in self._outputs]
        return 200, wire.completion(self._wanted, self._rid, texts, ends, self._usage())

    def _error_body(self, message: str, kind: str, code: int) -> dict[str, Any]:
        if self._wanted.api is Api.GENERATE:
            return {"error": {"message": message}}
        return wire.flat_error(message, kind, code)

    # --- stream ----------------------------------------------------------------------------------

    async def stream(self) -> AsyncIterator[bytes]:
        """The events of the answer, a token each, as many at a time as there are."""
        if self._too_long and self._wanted.api is not Api.GENERATE:
            yield wire.error_event(self._too_long, "BAD_REQUEST", 400) + wire.DONE
            return
        make = self._generate_events if self._wanted.api is Api.GENERATE else self._chunk_events
        chunks = wire.Chunks(self._wanted, self._rid)
        try:
            while not all(output.closed for output in self._outputs):
                await self._changed.wait()
                self._changed.clear()
                if events := b"".join(make(output, chunks) for output in self._outputs):
                    yield events
            if self._wanted.include_usage and self._wanted.api is not Api.GENERATE:
                yield chunks.usage(self._usage())
            yield wire.DONE
        finally:
            self._let_go()

    def _chunk_events(self, output: _Output, chunks: wire.Chunks) -> bytes:
        ticket, index = output.ticket, output.sequence.index
        if output.closed:
            return b""
        if ticket.ended is not None and ticket.ended.reason is EndReason.QUEUE_FULL:
            output.closed = True
            return wire.error_event(wire.QUEUE_FULL, "SERVICE_UNAVAILABLE", 503)
        events = [chunks.role(index)] if output.sent == 0 and (ticket.generated or ticket.ended) else []
        until = ticket.generated - 1 if ticket.ended is not None else ticket.generated
        for text in output.speech.tokens(output.sent, max(until, output.sent)):
            output.sent += 1
            events.append(chunks.token(index, text, self._usage_so_far(output)))
        if ticket.ended is not None:
            output.closed = True
            last = output.speech.text(output.sent, ticket.generated)
            output.sent = ticket.generated
            reason = wire.finish_reason(ticket.ended)
            events.append(chunks.end(index, reason, last, self._usage_so_far(output)))
        return b"".join(events)

    def _generate_events(self, output: _Output, _: wire.Chunks) -> bytes:
        ticket = output.ticket
        if output.closed or (ticket.generated == output.sent and ticket.ended is None):
            return b""
        output.sent = ticket.generated
        output.closed = ticket.ended is not None
        return wire.event(self._generated(output))

    def _generated(self, output: _Output) -> dict[str, Any]:
        ticket = output.ticket
        full = ticket.ended is not None and ticket.ended.reason is EndReason.QUEUE_FULL
        return wire.generated(
            ticket.rid,
            output.speech,
            ticket.generated,
            prompt_tokens=output.sequence.prompt.tokens,
            cached_tokens=ticket.cached_tokens,
            ended=ticket.ended,
            message=wire.QUEUE_FULL if full else "",
            code=503 if full else None,
        )

    # --- both ------------------------------------------------------------------------------------

    @property
    def _rid(self) -> str:
        return self._wanted.sequences[0].rid

    def _usage(self) -> dict[str, Any]:
        """Of a request that never began: nothing at all, as an aborted one in the queue reports."""
        begun = [output for output in self._outputs if output.ticket.generated or output.ticket.cached_tokens]
        aborted = all(output.ended.reason is EndReason.ABORT for output in self._outputs)
        prompt_tokens = self._wanted.prompt_tokens if begun or not aborted else 0
        completion_tokens = sum(output.ticket.generated for output in self._outputs)
        cached = sum(output.ticket.cached_tokens for output in self._outputs)
        return wire.usage(prompt_tokens, completion_tokens, cached if self._cache_report else None)

    def _usage_so_far(self, output: _Output) -> dict[str, Any] | None:
        if not self._wanted.continuous_usage:
            return None
        return wire.usage(self._wanted.prompt_tokens, output.sent, None)

    def _let_go(self) -> None:
        for output in self._outputs:
            self._runner.client_left(output.ticket)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
