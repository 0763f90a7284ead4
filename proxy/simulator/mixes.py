"""The workloads themselves. Every random draw comes from the seed given."""

import math
import random
from dataclasses import replace

from proxy.simulator.workload import Ask, Client, Turn, Workload, ending_by_eos, fixed

STORY_POOL_TOKENS = 186_624


def shorts(
    rate: float,
    seconds: float,
    *,
    seed: int = 1,
    prompt_tokens: tuple[int, int] = (150, 450),
    output_tokens: int = 150,
    kind: str = "short",
    tenant: str = "default",
    starts_at: float = 0.0,
) -> Workload:
    """Short chats that arrive as a Poisson process of `rate` a second."""
    rng = random.Random(f"{kind} {seed}")
    clients: list[Client] = []
    at = rng.expovariate(rate)
    while at < seconds:
        name = f"{kind} {seed} {len(clients)}"
        ask = replace(fixed(kind, name, rng.randint(*prompt_tokens), output_tokens), tenant=tenant)
        clients.append(Client(name, (Turn(ask),), starts_at + at))
        at += rng.expovariate(rate)
    return Workload(f"{kind} {rate:g}/s for {seconds:g} s", tuple(clients))


def longs(
    clients: int,
    each: int,
    *,
    prompt_tokens: int = 64_000,
    output_tokens: int = 500,
    kind: str = "64K",
    tenant: str = "default",
    starts_at: float = 0.0,
    stagger_seconds: float = 0.05,
) -> Workload:
    """`clients` that each send `each` long prompts one after the other; all prompts differ."""
    made = []
    for number in range(clients):
        name = f"{kind} {number}"
        asks = [fixed(kind, f"{name} {turn}", prompt_tokens, output_tokens) for turn in range(each)]
        turns = tuple(Turn(replace(ask, tenant=tenant)) for ask in asks)
        made.append(Client(name, turns, starts_at + number * stagger_seconds))
    return Workload(f"{clients} x {each} {kind}", tuple(made))


def giant(
    at: float, *, prompt_tokens: int = 180_000, output_tokens: int = 200, kind: str = "180K"
) -> Workload:
    """One request that nearly fills the pool."""
    ask = fixed(kind, f"{kind} at {at:g}", prompt_tokens, output_tokens)
    return Workload(f"one {kind} at {at:g} s", (Client(kind, (Turn(ask),), at),))


def story(
    *,
    seed: int = 1,
    rate: float = 8.0,
    seconds: float = 45.0,
    clients: int = 6,
    each: int = 2,
    giant_at: float = 8.0,
) -> Workload:
    """The mixed load this project starts from: shorts, 64K contexts, one 180K; pool 186,624 tokens."""
    mixed = shorts(rate, seconds, seed=seed) + longs(clients, each) + giant(giant_at)
    return replace(mixed, name="story")


def true_speed_story(*, seed: int = 1) -> Workload:
    """The same story at the speed of the machine itself: 2 shorts a second for 90 s."""
    return story(seed=seed, rate=2.0, seconds=90.0, clients=6, each=3, giant_at=30.0)


def ending_by_themselves(
    workload: Workload, *, seed: int = 1, kinds: frozenset[str] = frozenset({"short"})
) -> Workload:
    """The same requests of those kinds without `max_tokens`: lengths are log-normal around what they were."""
    rng = random.Random(f"eos {seed}")

    def change(ask: Ask) -> Ask:
        if ask.kind not in kinds:
            return ask
        drawn = rng.lognormvariate(math.log(ask.output_tokens) - 0.125, 0.5)
        key, tokens = ask.spans[0]
        return replace(
            ending_by_eos(ask.kind, key, tokens, max(1, round(drawn))), tenant=ask.tenant, spans=ask.spans
        )

    return replace(workload.map(change), name=f"{workload.name}, ending by EOS")


def generous_limits(
    requests: int = 12,
    *,
    seed: int = 1,
    prompt_tokens: int = 12_000,
    max_tokens: int = 8192,
    outputs: tuple[int, int] = (100, 6000),
) -> Workload:
    """Requests that allow far more output than they use: what overcommits a pool and makes it retract."""
    rng = random.Random(f"generous {seed}")
    clients = []
    for number in range(requests):
        name = f"12K {number}"
        ask = ending_by_eos("12K", name, prompt_tokens, rng.randint(*outputs), max_tokens)
        clients.append(Client(name, (Turn(ask),), 0.05 * number))
    return Workload(f"{requests} x 12K, max_tokens {max_tokens}", tuple(clients))


def agents(
    count: int,
    *,
    turns: int = 12,
    first_tokens: int = 48_000,
    turn_tokens: int = 900,
    output_tokens: int = 300,
    think_seconds: float = 3.0,
    seed: int = 1,
    keyed: bool = True,
    kind: str = "agent",
) -> Workload:
    """Conversations: a long first turn, then short ones that repeat everything said before.

    Think times vary by a fifth; `keyed` agents name their session.
    """
    rng = random.Random(f"{kind} {seed}")
    clients = []
    for number in range(count):
        name = f"{kind} {number}"
        said: tuple[tuple[str, int], ...] = ((f"{name} context", first_tokens),)
        made = []
        for turn in range(turns):
            if turn:
                said = (*said, (f"{name} answer {turn - 1}", output_tokens), (f"{name} {turn}", turn_tokens))
            ask = Ask(
                "first turn" if turn == 0 else "turn",
                said,
                output_tokens,
                max_tokens=output_tokens,
                ignore_eos=True,
                output_key=f"{name} answer {turn}",
                session=name if keyed else "",
            )
            made.append(Turn(ask, think_seconds * rng.uniform(0.8, 1.2) if turn else 0.0))
        clients.append(Client(name, tuple(made), 0.2 * number))
    return Workload(f"{count} agents", tuple(clients))
