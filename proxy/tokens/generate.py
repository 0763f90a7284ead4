"""/generate, SGLang's own endpoint."""

from typing import Any

from proxy.tokens import fields
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import cache_scope, media_count, media_tokens, read_prompts
from proxy.tokens.shape import Api, BadRequest, Media, Prompt, Reading, Shape, Unit

GENERATE_MAX_TOKENS = 128  # SGLang's default of `max_new_tokens`


def read_generate(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompts of a native request: `text` or `input_ids` (or `input_embeds`), one or a
    batch, with one `sampling_params` for all or one for each.

    Where the items of a batch differ, the largest `max_new_tokens` speaks for all.
    """
    items, largest = _items(body)
    _add_media(body, items, rules)
    sampling = _sampling(body)
    limits = [_limit(params) for params in sampling]
    known = [limit for limit in limits if limit is not None]
    choices = [fields.integer(params, "n", least=1, param="sampling_params.n") or 1 for params in sampling]
    sequences = sum(choices) if len(choices) == len(items) else max(choices) * len(items)
    shape = Shape(
        api=Api.GENERATE,
        model=fields.string(body, "model") or "",
        stream=fields.boolean(body, "stream"),
        max_tokens=max(known) if len(known) == len(limits) else None,
        min_tokens=max(_least(params) for params in sampling),
        ignore_eos=any(fields.boolean(p, "ignore_eos", "sampling_params.ignore_eos") for p in sampling),
        sequences=sequences,
        batch=len(items),
        largest_id=largest,
        media=media_count(items),
        media_tokens=media_tokens(items),
        session=fields.label(body, "session_id"),
        user=fields.label(body, "user"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt(items))


def _items(body: dict[str, Any]) -> tuple[list[list[Unit]], int | None]:
    given = [name for name in ("text", "input_ids", "input_embeds") if body.get(name) is not None]
    if len(given) != 1:
        raise BadRequest("exactly one of text, input_ids and input_embeds is required", "text")
    name = given[0]
    if name != "input_embeds":
        return read_prompts(body[name], name)
    rows = body[name]
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list) or not rows[0]:
        raise BadRequest("input_embeds must be an array of vectors, or a batch of such arrays", name)
    batch = rows if isinstance(rows[0][0], list) else [rows]
    return [[Unit("embeds", overhead_tokens=len(item))] for item in batch if isinstance(item, list)], None


def _add_media(body: dict[str, Any], items: list[list[Unit]], rules: MediaRules) -> None:
    """`image_data` and its like: one medium, a list for one prompt, or a list of lists for a batch."""
    for name, charge in (
        ("image_data", rules.image),
        ("video_data", rules.video),
        ("audio_data", rules.audio),
    ):
        value = body.get(name)
        if value is None:
            continue
        entries = value if isinstance(value, list) else [value]
        for index, entry in enumerate(entries):
            units = items[index] if len(items) > 1 and index < len(items) else items[0]
            sources = entry if isinstance(entry, list) else [entry]
            media: list[Media] = units[-1].media or []
            media.extend(charge(_source(source)) for source in sources if source is not None)
            units[-1].media = media or None


def _source(entry: object) -> object:
    return entry.get("url") if isinstance(entry, dict) else entry


def _sampling(body: dict[str, Any]) -> list[dict[str, Any]]:
    value = body.get("sampling_params")
    if value is None:
        return [{}]
    entries = value if isinstance(value, list) else [value]
    for entry in entries:
        if not isinstance(entry, dict):
            raise fields.wrong_type(entry, "an object", "sampling_params")
    return entries or [{}]


def _limit(params: dict[str, Any]) -> int | None:
    if "max_new_tokens" not in params:
        return GENERATE_MAX_TOKENS
    return fields.integer(params, "max_new_tokens", least=0, param="sampling_params.max_new_tokens")


def _least(params: dict[str, Any]) -> int:
    return fields.integer(params, "min_new_tokens", least=0, param="sampling_params.min_new_tokens") or 0
