"""The runs of a plan: the traffic under each policy, without the proxy, and without each limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.plan.policies import Policy
from proxy.plan.questions import Answer, Evidence, answer, questions
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.records import Run
from proxy.simulator.virtual import replay
from proxy.simulator.watched import Seen, Watched
from proxy.simulator.without import first_difference
from proxy.simulator.workload import Workload

AFTER_SECONDS = 3600.0  # how long after the last arrival a run may take to finish
Step = Callable[[str, float], None]  # hears what is being replayed, and how far it is


@dataclass(frozen=True, slots=True)
class Side:
    """One run. `seen` None: without the proxy. `same`: decided exactly as the first policy did."""

    name: str
    run: Run
    policy: Policy | None = None
    seen: Seen | None = None
    same: bool = False
    answers: tuple[Answer, ...] = ()


@dataclass(slots=True)
class Plan:
    """What is replayed on what; `sides` fill as it runs."""

    workload: Workload
    engine: EngineConfig
    retries: int = 0
    step: Step = lambda what, now: None
    sides: list[Side] = field(default_factory=list)

    def run_direct(self) -> None:
        """Without the proxy: clients reach the server in the order in which they come."""
        self.step("without the proxy", 0.0)
        run = replay(self.workload, self.engine, conditions=self._conditions(None))
        self.sides.append(Side("direct", run))

    def run(self, policy: Policy, *, ask: bool = True) -> None:
        """Under a policy; `ask` every one of its limits whether it could have acted."""
        watched = self._watched(policy, policy.limits, f"with {policy.name}")
        run = replay(
            self._traffic(policy.settings.max_queue_seconds),
            self.engine,
            watched,
            conditions=self._conditions(policy),
            watch=watched.levels,
        )
        side = Side(policy.name, run, policy, watched.seen)
        answers = tuple(self._ask(policy, side)) if ask else ()
        self.sides.append(replace(side, same=self._as_the_first(side), answers=answers))

    def _ask(self, policy: Policy, side: Side) -> Sequence[Answer]:
        assert side.seen is not None
        pool_tokens = policy.settings.pool_tokens or self.engine.pool_tokens
        evidence = Evidence(side.run, side.seen, policy.limits, pool_tokens)
        answers = []
        for question in questions(policy.limits):
            first = None
            if question.open(evidence):
                lifted = question.lifted(policy.limits)
                first = first_difference(
                    self._traffic(lifted.max_queue_seconds),
                    self.engine,
                    self._watched(policy, lifted, f"without {question.variable}"),
                    self._conditions(policy),
                    side.seen.decisions,
                )
            answers.append(answer(question, evidence, first))
        return answers

    def _as_the_first(self, side: Side) -> bool:
        first = next((other.seen for other in self.sides if other.seen is not None), None)
        return first is not None and side.seen is not None and first.decisions == side.seen.decisions

    def _traffic(self, wait_limit_seconds: float) -> Workload:
        return self.workload.with_wait_limit(wait_limit_seconds).with_retries(self.retries)

    def _watched(self, policy: Policy, limits: Limits, what: str) -> Watched:
        return Watched(
            Controller(limits),
            pool_tokens=policy.settings.pool_tokens,
            on_step=lambda now: self.step(what, now),
        )

    def _conditions(self, policy: Policy | None) -> Conditions:
        last = max((client.starts_at for client in self.workload.clients), default=0.0)
        poll_seconds = policy.settings.poll_seconds if policy else Conditions().poll_seconds
        return Conditions(poll_seconds=poll_seconds, horizon_seconds=last + AFTER_SECONDS)
