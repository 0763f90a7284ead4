"""Feeds a controller events by hand, and keeps the ledgers honest after each of them."""

from collections.abc import Iterable
from itertools import count

from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Load,
    LoadSample,
    PoolFacts,
    PoolUp,
    Progress,
    Refuse,
    Request,
    Segment,
    Slice,
    Tick,
    Tokenize,
)
from tests.scenarios.policies import Make

POOL_TOKENS = 186_624
POOLS_TOKENS = (65_536, POOL_TOKENS, 1_000_000)
POOL = "p"
TICK_SECONDS = 0.25


def facts_of(pool_tokens: int, max_running_requests: int | None = None) -> PoolFacts:
    """A plain server with that many tokens."""
    return PoolFacts(
        pool_tokens,
        max_request_tokens=pool_tokens - 6,
        context_tokens=4_000_000,
        max_running_requests=max_running_requests,
    )


class Hand:
    """One controller with one pool on a clock that only `wait` moves.

    `sent` and `refused` hold every decision by request id; `slices` what is being prefilled in parts.
    """

    def __init__(
        self,
        make: Make,
        pool_tokens: int = POOL_TOKENS,
        *,
        limits: Limits | None = None,
        max_running_requests: int | None = None,
    ) -> None:
        self.controller = make(limits or Limits())
        self.now = 0.0
        self.sent: dict[str, Dispatch] = {}
        self.refused: dict[str, Refuse] = {}
        self.slices: list[Slice] = []
        self.ids_wanted: list[str] = []
        self._numbers = count(1)
        self.step(PoolUp(POOL, facts_of(pool_tokens, max_running_requests)))

    @property
    def line(self) -> Line:
        return self.controller.lines[POOL]

    @property
    def pool(self) -> Pool:
        return self.line.pool

    def step(self, event: Event) -> list[Action]:
        """What the controller decides about `event`, sorted into what was sent, refused and sliced."""
        actions = self.controller.step(self.now, event)
        for action in actions:
            match action:
                case Dispatch():
                    assert action.rid not in self.sent, f"{action.rid} was sent twice"
                    self.sent[action.rid] = action
                case Refuse():
                    assert action.rid not in self.sent, f"{action.rid} was refused after it was sent"
                    self.refused[action.rid] = action
                case Slice():
                    self.slices.append(action)
                case Tokenize():
                    self.ids_wanted.append(action.rid)
        self._check_ledgers()
        return actions

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick every quarter of a second as in the live proxy."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + TICK_SECONDS)
            self.step(Tick())

    def arrive(
        self,
        prompt_tokens: int,
        output_tokens: int | None,
        *,
        name: str = "r",
        tenant: str = "default",
        wait_limit_seconds: float = 600.0,
        sequences: int = 1,
        segments: tuple[Segment, ...] = (),
        sliceable: bool = False,
        ignore_eos: bool | None = None,
        session: str = "",
    ) -> str:
        """A request comes; its output is known beforehand unless it is None. Returns its id."""
        rid = f"{name} {next(self._numbers)}"
        fixed = output_tokens is not None if ignore_eos is None else ignore_eos
        request = Request(
            rid,
            prompt_tokens,
            output_tokens,
            sequences=sequences,
            tenant=tenant,
            wait_limit_seconds=wait_limit_seconds,
            segments=segments,
            ignore_eos=fixed,
            sliceable=sliceable,
            session=session,
        )
        self.step(Arrival(request))
        return rid

    def started(self, *rids: str) -> None:
        """Their first tokens come."""
        for rid in rids:
            self.step(FirstToken(rid))

    def progress(self, rids: Iterable[str], generated_tokens: int) -> None:
        self.step(Progress(dict.fromkeys(rids, generated_tokens)))

    def finish(self, *rids: str, tokens: int | None = None) -> None:
        """They end by themselves."""
        for rid in rids:
            self.step(Finished(rid, None, tokens))

    def run(self, prompt_tokens: int, output_tokens: int | None, **kwargs: object) -> str:
        """A request comes, is sent at once and gets its first token. Returns its id."""
        rid = self.arrive(prompt_tokens, output_tokens, **kwargs)  # type: ignore[arg-type]
        assert rid in self.sent, f"{rid} does not start"
        self.started(rid)
        return rid

    def poll(
        self, used_tokens: int, *, waiting_uncached_tokens: int = 0, waiting: int = 0, at: float | None = None
    ) -> None:
        """The server says how many tokens are in use."""
        at = self.now if at is None else at
        sample = LoadSample(at, used_tokens, len(self.pool.jobs), waiting, waiting_uncached_tokens)
        self.step(Load(POOL, sample))

    def _check_ledgers(self) -> None:
        for line in self.controller.lines.values():
            pool = line.pool
            ledgers = {
                "C": pool.committed_tokens,
                "W": pool.backlog_tokens,
                "E": pool.engine_tokens - pool.held_tokens,
                "S": pool.running_slots,
                "foreign": pool.foreign_tokens,
                "queued": line.waiting_tokens,
            }
            negative = {name: tokens for name, tokens in ledgers.items() if tokens < 0}
            assert not negative, f"negative ledgers: {negative}"
            if not pool.jobs:
                kept = {name: ledgers[name] for name in "CWES" if ledgers[name]}
                assert not kept, f"charges without a request: {kept}"
