"""The server of a replay, as the proxy talks to it; and it may die."""

from collections.abc import Iterable

from proxy.admission.types import LoadSample, PoolFacts
from proxy.simulator.conditions import UNNOTICED_SECONDS, Conditions, facts_of, sample_of
from proxy.simulator.crowd import Sent
from proxy.simulator.engine import Engine
from proxy.simulator.jobs import EngineConfig, EngineEvent, LoadSnapshot, PromptTooLong
from proxy.simulator.prompt import SpanPrompt

# Between a request's id and the end of one of its slices. An abort of the id takes the slices with it.
_SLICE_MARK = "/"


class Backend:
    """One engine. `up`: whether it takes requests."""

    def __init__(self, config: EngineConfig, conditions: Conditions) -> None:
        self.up = True
        self._conditions = conditions
        self._engine = Engine(config)
        self._earlier_retractions = 0

    @property
    def now(self) -> float:
        return self._engine.now

    @property
    def retractions(self) -> int:
        """Of this server and those it replaced."""
        return self._earlier_retractions + self._engine.scheduler.retractions

    def facts(self) -> PoolFacts:
        return facts_of(self._engine.config, cache_report=self._conditions.cache_report)

    def load(self) -> LoadSnapshot:
        return self._engine.load()

    def sample(self) -> LoadSample:
        """The load as a poll reports it."""
        return sample_of(self._engine.load(), shows_ratio=self._conditions.shows_ratio)

    def generated(self) -> dict[str, int]:
        return self._engine.generated()

    def advance(self, to: float) -> Iterable[EngineEvent]:
        """See `Engine.advance`."""
        return self._engine.advance(to)

    def send(self, sent: Sent) -> str:
        """The request itself; what is wrong with it, or nothing."""
        if not self.up:
            return "no server"
        ask = sent.ask
        try:
            self._engine.submit(
                sent.record.rid,
                SpanPrompt(ask.spans),
                output_tokens=ask.output_tokens,
                max_new=ask.max_tokens,
                ignore_eos=ask.ignore_eos,
                output_key=ask.output_key or None,
            )
        except PromptTooLong as error:
            return str(error)
        return ""

    def send_slice(self, sent: Sent, end_tokens: int) -> bool:
        """The first `end_tokens` of its prompt, to be prefilled only; False when there is no server."""
        if self.up:
            self._engine.submit(
                f"{sent.record.rid}{_SLICE_MARK}{end_tokens}",
                SpanPrompt(sent.ask.spans).first(end_tokens),
                output_tokens=0,
                max_new=0,
                delay_seconds=end_tokens * self._conditions.slice_token_seconds,
            )
        return self.up

    def slice_of(self, rid: str) -> tuple[str, int] | None:
        """Whose slice that is, and where it ends; None for a request."""
        owner, mark, end_tokens = rid.partition(_SLICE_MARK)
        return (owner, int(end_tokens)) if mark else None

    def abort(self, rid: str) -> None:
        self._engine.abort(rid)

    def noticed_at(self, sent: Sent, *, proxied: bool) -> float:
        """When it can know that a client left: not before it tokenized the prompt, and by itself late."""
        record = sent.record
        tokenizing = record.prompt_tokens * self._engine.config.tokenize_token_seconds
        reached = (sent.sent_to_engine_at or self.now) + tokenizing
        prompt = proxied or record.first_token_at is not None
        return max(reached, self.now + (0.0 if prompt else UNNOTICED_SECONDS))

    def die(self, config: EngineConfig) -> None:
        """All it held is lost; another will take its place, once it is `up`."""
        self._earlier_retractions = self.retractions
        self._engine = Engine(config, now=self._engine.now)
        self.up = False
