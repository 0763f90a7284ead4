"""Takes a request in: its body, counted and found fit to be forwarded, or the answer that says why not."""

import asyncio
from dataclasses import dataclass, replace

from proxy.admission.types import Reason
from proxy.api import answers
from proxy.api.answers import Answer
from proxy.api.asgi import BodyTooLarge, Receive, read_body
from proxy.api.bounds import check_model, check_sequences
from proxy.api.headers import Headers
from proxy.api.keys import Tenant
from proxy.api.room import NoRoom, Share
from proxy.api.services import Services
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sized import Sized
from proxy.upstream.body import screen
from proxy.upstream.errors import BodyRefused

#: Steering fields that the proxy itself carries out, by API.
HONOURED: dict[Api, tuple[str, ...]] = {Api.RESPONSES: ("background",)}
SCREEN_INLINE_BYTES = 262_144  # 2 ms at worst, 0.1 ms for usual text


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that may ask for a place. `overrides`: fields of its body that ours must replace.

    `pinned_pool`: where the response is that it goes on from; its tokens are in `sized`.
    """

    body: bytes
    sized: Sized
    overrides: tuple[str, ...]
    pinned_pool: str = ""


class NotTaken(Exception):
    """It ends here, with `reply`; `reason` where admission is why."""

    def __init__(self, reply: Answer, reason: Reason | None = None) -> None:
        super().__init__(f"answered {reply.status}")
        self.reply = reply
        self.reason = reason


async def take_in(
    services: Services, api: Api, tenant: Tenant, headers: Headers, receive: Receive, share: Share
) -> Taken:
    """Read, count and check one body, which `share` keeps count of. Raises NotTaken and ClientGone."""
    try:
        taken = await _read(services, api, headers, receive, share)
    except NoRoom:
        raise NotTaken(answers.no_room(api), Reason.QUEUE_FULL) from None
    except BodyTooLarge as error:
        raise NotTaken(answers.body_too_large(api, error.limit_bytes)) from None
    except TimeoutError:
        raise NotTaken(answers.body_too_slow(api)) from None
    except (BadRequest, BodyRefused) as error:
        raise NotTaken(answers.bad_request(api, error.message, error.param)) from None
    return _with_history(services, api, tenant, taken)


async def _read(services: Services, api: Api, headers: Headers, receive: Receive, share: Share) -> Taken:
    body = await read_body({"headers": headers}, receive, services.settings.max_body_bytes, share)
    sized = await services.sizer.size(api, body)
    check_model(sized.shape)
    check_sequences(sized.shape)
    _check_ids(api, sized, services)
    honoured = HONOURED.get(api, ())
    large = len(body) > SCREEN_INLINE_BYTES
    overrides = await asyncio.to_thread(screen, body, honoured) if large else screen(body, honoured)
    return Taken(body, sized, overrides)


def _with_history(services: Services, api: Api, tenant: Tenant, taken: Taken) -> Taken:
    """With the tokens of the response that it goes on from, and where that is."""
    history = taken.sized.shape.history
    if history is None:
        return taken
    kept = services.responses.find(tenant.name, history)
    line = services.gate.controller.lines.get(kept.pool) if kept is not None else None
    if kept is None or line is None or line.pool.leaving:
        raise NotTaken(answers.no_response(api, "previous_response_id", gone=kept is not None))
    return replace(taken, sized=kept.before(taken.sized), pinned_pool=kept.pool)


def _check_ids(api: Api, sized: Sized, services: Services) -> None:
    """An id outside the vocabulary kills the whole server process."""
    if api is Api.CHAT and "input_ids" in sized.shape.fields:
        raise BadRequest("input_ids is not taken beside messages; use /generate", "input_ids")
    largest = sized.shape.largest_id
    if largest is None:
        return
    lines = services.gate.controller.lines.values()
    own = services.sizer.vocabulary_size
    vocabularies = [own] if own is not None else []
    vocabularies += [v for line in lines if (v := line.pool.facts.vocab_tokens) is not None]
    if vocabularies and largest >= min(vocabularies):
        raise BadRequest(
            f"token id {largest} is outside the vocabulary of {min(vocabularies)} tokens", "prompt"
        )
