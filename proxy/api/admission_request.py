"""From a sized body to what admission is asked: the request's size, its conversation, how it may be cut."""

from proxy.admission.types import Request
from proxy.api.bounds import bounded
from proxy.api.headers import Headers, first
from proxy.api.keys import Tenant
from proxy.tokens.shape import Api
from proxy.tokens.sized import Sized

LONGEST_SESSION = 128
SESSION_HEADERS = (b"x-session-id", b"x-smg-routing-key")
SLICED_APIS = (Api.CHAT, Api.COMPLETIONS)  # those whose bodies the server tokenizes on request


def admission_request(
    rid: str,
    api: Api,
    sized: Sized,
    tenant: Tenant,
    headers: Headers,
    *,
    wait_limit_seconds: float,
    short_prefill_tokens: int,
    pinned_pool: str = "",
) -> Request:
    """What the gate needs to know of one request; never its text."""
    shape = sized.shape
    tokens = max(1, sized.prompt_tokens)
    return Request(
        rid=rid,
        prompt_tokens=tokens,
        max_tokens=None if shape.max_tokens is None else bounded(shape.max_tokens),
        sequences=shape.sequences,
        model=shape.model,
        tenant=tenant.name,
        weight=tenant.weight,
        limits=tenant.limits,
        wait_limit_seconds=wait_limit_seconds,
        segments=sized.segments if shape.batch == 1 else (),
        ignore_eos=shape.ignore_eos,
        min_tokens=bounded(shape.min_tokens),
        sliceable=_sliceable(api, sized, short_prefill_tokens),
        session=_session(headers, sized),
        uncertainty=max(0.0, 1.0 - sized.least_tokens / tokens),
        pinned_pool=pinned_pool,
    )


def _session(headers: Headers, sized: Sized) -> str:
    """The conversation's name, where the client gives one."""
    for name in SESSION_HEADERS:
        value = first(headers, name)
        if value:
            return value.decode("latin-1")[:LONGEST_SESSION]
    return (sized.shape.session or "")[:LONGEST_SESSION]


def _sliceable(api: Api, sized: Sized, short_prefill_tokens: int) -> bool:
    """One text prompt that nothing but its ids keys in the server's cache."""
    shape = sized.shape
    return (
        api in SLICED_APIS
        and sized.prompt_tokens > short_prefill_tokens
        and shape.sequences == 1
        and shape.media == 0
        and not shape.has_ids
        and not shape.cache_scope
    )
