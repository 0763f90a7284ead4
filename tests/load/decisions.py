"""The proxy's decision log, as far as verdicts need it."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Decision:
    """One request sent or refused. `waited_seconds` counts from when its prompt was counted; the
    prediction is that of its arrival.
    """

    dispatched: bool
    tenant: str
    lane: str
    prompt_tokens: int
    waited_seconds: float
    predicted_wait_seconds: float | None
    reason: str | None = None


def read_decisions(path: Path) -> list[Decision]:
    """All of a log that its proxy has closed. Raises OSError where there is none."""
    events = map(json.loads, path.read_text().splitlines())
    return [
        Decision(
            dispatched=event["event"] == "dispatch",
            tenant=event["tenant"],
            lane=event["lane"],
            prompt_tokens=event["prompt_tokens"],
            waited_seconds=event["waited_s"],
            predicted_wait_seconds=event["predicted_wait_s"],
            reason=event.get("reason"),
        )
        for event in events
        if event["event"] in {"dispatch", "refuse"}
    ]
