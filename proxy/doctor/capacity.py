"""How many long contexts fit at once, found by admitting them until one has to wait."""

from itertools import count

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import Arrival, Dispatch, FirstToken, PoolFacts, PoolUp, Request

USUAL_OUTPUT_TOKENS = 500  # of each, beside its prompt
_POOL = "doctor"


def contexts_that_fit(facts: PoolFacts, limits: Limits, prompt_tokens: int) -> int:
    """Prompts of that size, each with its own text, that the proxy lets into one pool together."""
    controller = Controller(limits)
    controller.step(0.0, PoolUp(_POOL, facts))
    for number in count():
        now = float(number)
        request = Request(
            rid=str(number),
            prompt_tokens=prompt_tokens,
            max_tokens=USUAL_OUTPUT_TOKENS,
            ignore_eos=True,
            wait_limit_seconds=1e9,
        )
        actions = controller.step(now, Arrival(request))
        if not any(isinstance(action, Dispatch) and action.rid == request.rid for action in actions):
            return number
        controller.step(now, FirstToken(request.rid))
    raise AssertionError("unreachable")


def largest_prompt(facts: PoolFacts, limits: Limits) -> int:
    """The longest prompt that one pool can ever take: the pool's, the context's or the operator's limit."""
    controller = Controller(limits)
    controller.step(0.0, PoolUp(_POOL, facts))
    most = controller.lines[_POOL].pool.max_prompt_tokens
    return min(most, limits.max_prompt_tokens or most)
