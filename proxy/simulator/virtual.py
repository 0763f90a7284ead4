"""A workload, an admission controller and the engine on one virtual clock.

The controller is any object with `step(now, event) -> actions`; without one the clients reach the
engine directly, in the order in which they come.
"""

from collections.abc import Callable, Mapping
from functools import partial

from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Finished,
    FirstToken,
    Gone,
    Load,
    PoolDown,
    PoolUp,
    Progress,
    Refuse,
    Request,
    Requeue,
    Slice,
    Sliceable,
    SliceDone,
    Tick,
    Tokenize,
)
from proxy.simulator.backend import Backend
from proxy.simulator.conditions import Conditions, Restart
from proxy.simulator.crowd import Agenda, Crowd, Sent
from proxy.simulator.desk import Controller, Desk
from proxy.simulator.jobs import Ended, EndReason, EngineConfig, EngineEvent, Started
from proxy.simulator.records import Outcome, Run, Sample
from proxy.simulator.workload import Workload


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
        self._conditions = conditions
        self._watch = watch
        self._backend = Backend(config, conditions)
        self._agenda = Agenda()
        self._crowd = Crowd(workload, self._agenda, self)
        self._live: dict[str, Sent] = {}
        self._samples: list[Sample] = []
        self._desk = Desk(controller, self._agenda, self._act)
        for restart in conditions.restarts:
            self._agenda.at(restart.at, partial(self._crash, restart))

    def run(self) -> Run:
        """The loop: what the engine did first, then what the world does at that moment."""
        self._desk.tell(PoolUp(self._conditions.pool, self._backend.facts()))
        self._agenda.at(0.0, self._poll)
        while not self._over():
            events = self._backend.advance(self._agenda.next_at)
            self._agenda.now = self._backend.now
            for event in events:
                self._heard(event)
            self._agenda.run_due(self._backend.now)
        return Run(self._crowd.records, self._samples, self._backend.retractions)

    def _over(self) -> bool:
        if self._agenda.now > self._conditions.horizon_seconds:
            return True
        return self._crowd.unfinished_clients == 0 and not self._live

    # --- clients ---------------------------------------------------------------------------------

    def arrived(self, sent: Sent) -> None:
        """A client's request reaches the controller, or the engine when there is none."""
        self._live[sent.record.rid] = sent
        if self._desk.decides_on(sent):
            self._desk.tell(Arrival(self._request(sent)))
        else:
            self._submit(sent)

    def hung_up(self, sent: Sent) -> None:
        """The proxy aborts what reached the scheduler; a bare SGLang notices late."""
        rid, proxied = sent.record.rid, self._desk.decides_on(sent)
        reached = sent.at_engine or sent.slices > 0
        if reached:
            self._agenda.at(self._backend.noticed_at(sent, proxied=proxied), partial(self._abort, rid))
        else:
            del self._live[rid]
        if proxied:
            self._desk.tell(Gone(rid, reached_engine=reached))

    def _abort(self, rid: str) -> None:
        if rid in self._live:
            self._backend.abort(rid)

    def _request(self, sent: Sent) -> Request:
        ask = sent.ask
        long = ask.prompt_tokens > self._backend.facts().chunk_tokens
        return Request(
            rid=sent.record.rid,
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.max_tokens,
            tenant=ask.tenant,
            wait_limit_seconds=ask.wait_limit_seconds,
            segments=ask.segments(),
            ignore_eos=ask.ignore_eos,
            min_tokens=ask.min_tokens,
            sliceable=self._conditions.sliceable and long,
            session=ask.session,
        )

    def _ids_known(self, sent: Sent) -> None:
        if sent.record.rid in self._live:
            self._desk.tell(Sliceable(sent.record.rid, sent.ask.prompt_tokens))

    # --- the controller --------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        sent = self._live[action.rid]
        match action:
            case Dispatch():
                sent.record.lane, sent.record.rule = action.lane.value, action.rule
                self._submit(sent)
            case Tokenize():
                seconds = sent.ask.prompt_tokens * self._conditions.ids_token_seconds
                self._agenda.after(seconds, partial(self._ids_known, sent))
            case Slice():
                self._slice(sent, action.end_tokens)
            case Refuse():
                sent.record.lane = action.lane.value
                sent.record.predicted_wait_seconds = action.predicted_wait_seconds
                del self._live[action.rid]
                self._crowd.refused(sent, action.reason.value, action.retry_after_seconds)

    def _poll(self) -> None:
        """What the proxy sees of the server's load, and the tick."""
        now, load, conditions = self._agenda.now, self._backend.load(), self._conditions
        held = sum(sent.record.dispatched_at is None for sent in self._live.values())
        extra = self._watch() if self._watch is not None else {}
        self._samples.append(Sample(now, load.used_tokens, load.running, load.waiting, held, extra))
        self._agenda.after(conditions.poll_seconds, self._poll)
        if self._backend.up:
            generated = self._backend.generated()
            self._desk.tell(Progress({rid: n for rid, n in generated.items() if self._streams(rid)}))
            if not any(start <= now < end for start, end in conditions.blind):
                self._desk.tell(Load(conditions.pool, self._backend.sample()))
        self._desk.tell(Tick())

    def _streams(self, rid: str) -> bool:
        sent = self._live[rid]
        return not sent.gone and not sent.client.direct

    # --- the engine ------------------------------------------------------------------------------

    def _submit(self, sent: Sent) -> None:
        now, record = self._agenda.now, sent.record
        record.dispatched_at = now if record.dispatched_at is None else record.dispatched_at
        sent.sent_to_engine_at = now
        wrong = self._backend.send(sent)
        if wrong:
            self._let_go(sent, Outcome.FAILED, wrong)
        else:
            sent.at_engine = True

    def _slice(self, sent: Sent, end_tokens: int) -> None:
        now, record = self._agenda.now, sent.record
        record.dispatched_at = now if record.dispatched_at is None else record.dispatched_at
        record.slices += 1
        if self._backend.send_slice(sent, end_tokens):
            sent.slices += 1
        else:
            self._agenda.after(0.0, partial(self._desk.tell, SliceDone(record.rid, end_tokens, None)))

    def _heard(self, event: EngineEvent) -> None:
        part = self._backend.slice_of(event.rid)
        if part is not None:
            if isinstance(event, Ended):
                self._sliced(*part, event)
            return
        sent = self._live[event.rid]
        record = sent.record
        if isinstance(event, Started):
            record.cached_tokens = event.cached_tokens
            if not sent.gone:
                record.first_token_at = event.at
            if self._streams(event.rid):
                report = self._conditions.cache_report
                self._desk.tell(FirstToken(event.rid, event.cached_tokens if report else None))
        elif isinstance(event, Ended):
            self._left_engine(sent, event)
        else:
            record.retractions += 1

    def _sliced(self, rid: str, end_tokens: int, event: Ended) -> None:
        sent = self._live[rid]
        sent.slices -= 1
        if sent.gone and not sent.at_engine and sent.slices == 0:
            del self._live[rid]
        done = event.reason in (EndReason.STOP, EndReason.LENGTH)
        self._desk.tell(SliceDone(rid, end_tokens, event.cached_tokens if done else None))

    def _left_engine(self, sent: Sent, event: Ended) -> None:
        sent.record.completion_tokens = event.completion_tokens
        if event.reason is EndReason.QUEUE_FULL and self._desk.decides_on(sent):
            sent.at_engine = False
            self._desk.tell(Requeue(event.rid))
        elif event.reason is EndReason.QUEUE_FULL:
            del self._live[event.rid]
            self._crowd.refused(sent, "queue_full", None)
        elif event.reason in (EndReason.STOP, EndReason.LENGTH):
            self._let_go(sent, Outcome.DONE, event.reason.value, event)
        else:
            self._let_go(sent, Outcome.FAILED, event.reason.value, event)

    def _let_go(self, sent: Sent, outcome: Outcome, reason: str, event: Ended | None = None) -> None:
        """The engine does not hold it any more, or never did."""
        rid, sent.record.reason = sent.record.rid, reason
        del self._live[rid]
        self._crowd.ended(sent, outcome)
        if self._desk.decides_on(sent):
            counts = (event.prompt_tokens, event.completion_tokens) if event else (None, None)
            self._desk.tell(Finished(rid, counts[0], counts[1], completed=outcome is Outcome.DONE))

    def _crash(self, restart: Restart) -> None:
        """The server dies with all it held; another with an empty pool takes its place."""
        self._backend.die(restart.config)
        for sent in [sent for sent in self._live.values() if sent.at_engine or sent.slices]:
            self._let_go(sent, Outcome.FAILED, "server died")
        self._desk.tell(PoolDown(self._conditions.pool))
        self._agenda.after(restart.down_seconds, self._back)

    def _back(self) -> None:
        self._backend.up = True
        self._desk.tell(PoolUp(self._conditions.pool, self._backend.facts()))
