"""Twenty agents before a pool for three of them: their contexts stay for a while, and then give way."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from proxy.admission import forecast
from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.residency import Conversations
from proxy.admission.types import Action, Request
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.mixes import agents
from proxy.simulator.pace import TWO_CORES, pace_of
from proxy.simulator.records import Outcome, Run, quantile
from proxy.simulator.virtual import replay
from tests.scenarios.policies import Make, named

SECONDS = 300.0
MACHINE = EngineConfig(pace=pace_of("rtx6000-tp2").with_overhead(*TWO_CORES))
CONDITIONS = replace(Conditions(), horizon_seconds=1.05 * SECONDS)  # by then everybody has had a turn
TELLING_SECONDS = 20.0


class Noting(Controller):
    """Keeps what was predicted for each request when it came."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.predicted: dict[str, float] = {}

    def _refuse_hopeless(self, now: float, rid: str, actions: list[Action]) -> None:
        super()._refuse_hopeless(now, rid, actions)
        if rid in self.jobs:
            self.predicted[rid] = self.jobs[rid].predicted_wait_seconds


class NothingHeld(Noting):
    """Each turn is a request like any other."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, session_hold_seconds=0.0))


class _NoFirstTurns(Conversations):
    def goes_on(self, request: Request) -> bool:
        return bool(request.session)

    def hold_seconds(self, conversation: object, prefill_seconds: float) -> float:
        return super().hold_seconds(conversation, prefill_seconds) if conversation.turns > 1 else 0.0  # type: ignore[attr-defined, arg-type]


class UnnamedTwice(Noting):
    """What has no name is held from its second turn on, whoever came back before."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.conversations = self.router._conversations = _NoFirstTurns()


class StaysOneTurn(Noting):
    """Forecasts as if a context left with the turn that runs."""

    def _refuse_hopeless(self, now: float, rid: str, actions: list[Action]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forecast, "quantum_seconds", lambda _: 0.0)
            super()._refuse_hopeless(now, rid, actions)


def serve(make: Make, seed: int, *, keyed: bool) -> tuple[Run, Controller]:
    controller = make(Limits())
    return replay(agents(20, seed=seed, keyed=keyed), MACHINE, controller, conditions=CONDITIONS), controller


def done(run: Run) -> int:
    return sum(1 for record in run.records if record.ended_at is not None and record.ended_at <= SECONDS)


def check_turns(make: Make, seed: int, *, keyed: bool) -> None:
    """Twice what first come, first served does, and nobody is refused or forgotten."""
    run, _ = serve(make, seed, keyed=keyed)
    first_come = replay(agents(20, seed=seed), MACHINE, conditions=CONDITIONS)
    assert not run.count(Outcome.REFUSED), "somebody is refused"
    assert done(run) >= 2 * done(first_come), f"{done(run)} turns against {done(first_come)}: too few"
    served = {record.client for record in run.records if record.ended_at is not None}
    assert len(served) == 20, "somebody is forgotten"


def check_predicted(make: Make, seed: int) -> None:
    """A newcomer is told how long those before it will stay, not how long their turns take."""
    run, controller = serve(make, seed, keyed=True)
    assert isinstance(controller, Noting)
    errors = [
        abs(wait - controller.predicted[record.rid]) / wait
        for record in run.records
        if record.dispatched_at is not None
        and (wait := record.dispatched_at - record.sent_at) > TELLING_SECONDS
    ]
    assert len(errors) >= 12
    assert quantile(errors, 0.5) <= 0.15, "the waits are mispredicted"
    assert max(errors) <= 0.5, "a wait is mispredicted by half"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("keyed", [True, False], ids=["named", "unnamed"])
def test_agents_do_twice_as_much_as_first_come_first_served(seed: int, keyed: bool) -> None:
    check_turns(Noting, seed, keyed=keyed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_agents_are_told_how_long_they_will_wait(seed: int) -> None:
    check_predicted(Noting, seed)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_turns, seed=1, keyed=True), NothingHeld, "too few"),
        (partial(check_turns, seed=1, keyed=False), UnnamedTwice, "too few"),
        (partial(check_predicted, seed=1), StaysOneTurn, "mispredicted"),
    ],
    ids=named,
)
def test_the_scenarios_of_agents_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
