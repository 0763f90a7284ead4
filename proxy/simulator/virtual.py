"""A workload, an admission controller and the engine on one virtual clock.

The controller is any object with `step(now, event) -> actions`; without one the clients reach the
engine directly, in the order in which they come.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Gone,
    Load,
    PoolDown,
    PoolFacts,
    PoolUp,
    Progress,
    Request,
    Requeue,
    Tick,
)
from proxy.simulator.conditions import Conditions, Restart, facts_of, sample_of
from proxy.simulator.crowd import Agenda, Crowd, Sent
from proxy.simulator.engine import Engine
from proxy.simulator.jobs import Ended, EndReason, EngineConfig, EngineEvent, PromptTooLong, Started
from proxy.simulator.prompt import SpanPrompt
from proxy.simulator.records import Outcome, Run, Sample
from proxy.simulator.workload import Ask, Workload

# SGLang notices late that a client left before its first token: 2.6 to 7 s, measured. A stream shows at once.
UNNOTICED_SECONDS = 3.0


class Controller(Protocol):
    """What decides. See `proxy.admission.types` for what goes in and out."""

    def step(self, now: float, event: Event) -> Sequence[Action]:
        """Take in what happened at `now`; returns what is to be done at once."""
        ...


def replay(
    workload: Workload,
    config: EngineConfig | None = None,
    controller: Controller | None = None,
    *,
    conditions: Conditions | None = None,
    watch: Callable[[], Mapping[str, float]] | None = None,
) -> Run:
    """Run `workload` to its end. `watch` is read at every poll and kept in the samples."""
    return _Replay(workload, config or EngineConfig(), controller, conditions or Conditions(), watch).run()


class _Replay:
    def __init__(
        self,
        workload: Workload,
        config: EngineConfig,
        controller: Controller | None,
        conditions: Conditions,
        watch: Callable[[], Mapping[str, float]] | None,
    ) -> None:
        self._controller = controller
        self._conditions = conditions
        self._watch = watch
        self._engine = Engine(config)
        self._up = True
        self._agenda = Agenda()
        self._crowd = Crowd(workload, self._agenda, self)
        self._live: dict[str, Sent] = {}
        self._samples: list[Sample] = []
        self._retractions = 0
        for restart in conditions.restarts:
            self._agenda.at(restart.at, partial(self._crash, restart))

    def run(self) -> Run:
        """The loop: what the engine did first, then what the world does at that moment."""
        self._tell(PoolUp(self._conditions.pool, self._facts()))
        self._agenda.at(0.0, self._poll)
        while not self._over():
            events = self._engine.advance(self._agenda.next_at)
            self._agenda.now = self._engine.now
            for event in events:
                self._heard(event)
            self._agenda.run_due(self._engine.now)
        self._retractions += self._engine.scheduler.retractions
        return Run(self._crowd.records, self._samples, self._retractions)

    def _over(self) -> bool:
        if self._agenda.now > self._conditions.horizon_seconds:
            return True
        return self._crowd.unfinished_clients == 0 and not self._live

    def _facts(self) -> PoolFacts:
        return facts_of(self._engine.config, cache_report=self._conditions.cache_report)

    # --- between clients and controller ----------------------------------------------------------

    def arrived(self, sent: Sent) -> None:
        """A client's request reaches the controller, or the engine when there is none."""
        self._live[sent.record.rid] = sent
        if self._decides_on(sent):
            self._tell(Arrival(_request(sent.record.rid, sent.ask)))
        else:
            self._submit(sent)

    def hung_up(self, sent: Sent) -> None:
        """The proxy aborts what reached the scheduler; a bare SGLang notices late."""
        record = sent.record
        if not sent.at_engine:
            del self._live[record.rid]
        else:
            tokenizing = record.prompt_tokens * self._engine.config.tokenize_token_seconds
            reached = (record.dispatched_at or 0.0) + tokenizing
            streaming = record.first_token_at is not None
            noticed = self._agenda.now + (0.0 if streaming or self._decides_on(sent) else UNNOTICED_SECONDS)
            self._agenda.at(max(noticed, reached), partial(self._abort, record.rid))
        if self._decides_on(sent):
            self._tell(Gone(record.rid, reached_engine=sent.at_engine))

    def _abort(self, rid: str) -> None:
        if rid in self._live:
            self._engine.abort(rid)

    def _decides_on(self, sent: Sent) -> bool:
        return self._controller is not None and not sent.client.direct

    def _tell(self, event: Event) -> None:
        if self._controller is None:
            return
        for action in self._controller.step(self._agenda.now, event):
            sent = self._live[action.rid]
            sent.record.lane = action.lane.value
            if isinstance(action, Dispatch):
                sent.record.rule = action.rule
                self._submit(sent)
            else:
                sent.record.predicted_wait_seconds = action.predicted_wait_seconds
                del self._live[action.rid]
                self._crowd.refused(sent, action.reason.value, action.retry_after_seconds)

    def _poll(self) -> None:
        """What the proxy sees of the server's load, and the tick."""
        now, load, conditions = self._agenda.now, self._engine.load(), self._conditions
        held = sum(not sent.at_engine for sent in self._live.values())
        extra = self._watch() if self._watch is not None else {}
        self._samples.append(Sample(now, load.used_tokens, load.running, load.waiting, held, extra))
        self._agenda.after(conditions.poll_seconds, self._poll)
        if self._up:
            generated = self._engine.generated()
            self._tell(Progress({rid: n for rid, n in generated.items() if self._streams(rid)}))
            if not any(start <= now < end for start, end in conditions.blind):
                self._tell(Load(conditions.pool, sample_of(load, shows_ratio=conditions.shows_ratio)))
        self._tell(Tick())

    def _streams(self, rid: str) -> bool:
        sent = self._live[rid]
        return not sent.gone and not sent.client.direct

    # --- the engine ------------------------------------------------------------------------------

    def _submit(self, sent: Sent) -> None:
        ask, record = sent.ask, sent.record
        record.dispatched_at = self._agenda.now
        if not self._up:
            self._let_go(sent, Outcome.FAILED, "no server")
            return
        sent.at_engine = True
        try:
            self._engine.submit(
                record.rid,
                SpanPrompt([*ask.spans]),
                output_tokens=ask.output_tokens,
                max_new=ask.max_tokens,
                ignore_eos=ask.ignore_eos,
                output_key=ask.output_key or None,
            )
        except PromptTooLong as error:
            self._let_go(sent, Outcome.FAILED, str(error))

    def _heard(self, event: EngineEvent) -> None:
        sent = self._live[event.rid]
        record = sent.record
        if isinstance(event, Started):
            record.cached_tokens = event.cached_tokens
            if not sent.gone:
                record.first_token_at = event.at
            if self._streams(event.rid):
                report = self._conditions.cache_report
                self._tell(FirstToken(event.rid, event.cached_tokens if report else None))
        elif isinstance(event, Ended):
            self._left_engine(sent, event)
        else:
            record.retractions += 1

    def _left_engine(self, sent: Sent, event: Ended) -> None:
        sent.record.completion_tokens = event.completion_tokens
        if event.reason is EndReason.QUEUE_FULL and self._decides_on(sent):
            sent.at_engine = False
            self._tell(Requeue(event.rid))
        elif event.reason is EndReason.QUEUE_FULL:
            del self._live[event.rid]
            self._crowd.refused(sent, "queue_full", None)
        elif event.reason in (EndReason.STOP, EndReason.LENGTH):
            self._let_go(sent, Outcome.DONE, event.reason.value, event)
        else:
            self._let_go(sent, Outcome.FAILED, event.reason.value, event)

    def _let_go(self, sent: Sent, outcome: Outcome, reason: str, event: Ended | None = None) -> None:
        """The engine does not hold it any more, or never did."""
        rid = sent.record.rid
        del self._live[rid]
        sent.record.reason = reason
        self._crowd.ended(sent, outcome)
        if self._decides_on(sent):
            prompt_tokens = event.prompt_tokens if event else None
            completion_tokens = event.completion_tokens if event else None
            self._tell(Finished(rid, prompt_tokens, completion_tokens, outcome is Outcome.DONE))

    def _crash(self, restart: Restart) -> None:
        """The server dies with all it held; another with an empty pool takes its place."""
        self._up = False
        self._retractions += self._engine.scheduler.retractions
        self._engine = Engine(restart.config, now=self._engine.now)
        for sent in [sent for sent in self._live.values() if sent.at_engine]:
            self._let_go(sent, Outcome.FAILED, "server died")
        self._tell(PoolDown(self._conditions.pool))
        self._agenda.after(restart.down_seconds, self._back)

    def _back(self) -> None:
        self._up = True
        self._tell(PoolUp(self._conditions.pool, self._facts()))


def _request(rid: str, ask: Ask) -> Request:
    return Request(
        rid=rid,
        prompt_tokens=ask.prompt_tokens,
        max_tokens=ask.max_tokens,
        tenant=ask.tenant,
        wait_limit_seconds=ask.wait_limit_seconds,
        segments=ask.segments(),
        ignore_eos=ask.ignore_eos,
        min_tokens=ask.min_tokens,
    )
