"""A load as the simulator takes it: the same requests of the same clients, with names for texts."""

from proxy.simulator import workload as simulator
from tests.load.workload import Ask, Workload


def simulated(workload: Workload, name: str) -> simulator.Workload:
    """Raises ValueError for what virtual clients cannot do: to wait for each other, to leave together."""
    if workload.concurrency is not None or workload.seconds is not None:
        raise ValueError("virtual clients know no concurrency and no end of the load")
    clients = tuple(
        simulator.Client(
            name=str(number),
            turns=tuple(
                simulator.Turn(_ask(ask), client.think_seconds if turn else 0.0)
                for turn, ask in enumerate(client.asks)
            ),
            starts_at=client.start_seconds,
        )
        for number, client in enumerate(workload.clients)
    )
    return simulator.Workload(name, clients)


def _ask(ask: Ask) -> simulator.Ask:
    spans: list[tuple[str, int]] = []
    for turn in ask.said:
        spans.append((f"question {turn.text_seed}", turn.prompt_tokens))
        spans.append((f"answer {turn.text_seed}", turn.answer_tokens))
    own = ask.prompt_tokens - sum(tokens for _, tokens in spans)
    return simulator.Ask(
        ask.kind,
        (*spans, (f"question {ask.text_seed}", own)),
        ask.output_tokens,
        max_tokens=ask.max_tokens,
        min_tokens=ask.min_tokens,
        ignore_eos=not ask.ends_by_itself,
        output_key=f"said to {ask.text_seed}",  # no later prompt repeats it: answers are made up beforehand
        tenant=ask.tenant or "default",
        session=ask.session,
    )
