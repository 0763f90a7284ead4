"""/v1/completions and /v1/embeddings."""

from typing import Any

from proxy.tokens import fields
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import cache_scope, media_count, media_tokens, read_prompts
from proxy.tokens.shape import Api, BadRequest, Prompt, Reading, Shape, Unit

COMPLETIONS_MAX_TOKENS = 16  # what /v1/completions generates when the request does not say


def read_completions(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompts of a completion request. `best_of` and `suffix` are parsed by SGLang and
    not used; `echo` repeats the prompt in the answer and costs no tokens."""
    if body.get("prompt") is None:
        raise BadRequest("prompt is required", "prompt")
    items, largest = read_prompts(body["prompt"], "prompt")
    options = fields.mapping(body, "stream_options")
    fields.boolean(body, "echo")
    fields.mapping(body, "response_format")
    max_tokens = fields.integer(body, "max_tokens", least=0)
    shape = Shape(
        api=Api.COMPLETIONS,
        model=fields.string(body, "model") or "",
        stream=fields.boolean(body, "stream"),
        wants_usage=fields.boolean(options, "include_usage", "stream_options.include_usage"),
        continuous_usage=fields.boolean(
            options, "continuous_usage_stats", "stream_options.continuous_usage_stats"
        ),
        max_tokens=COMPLETIONS_MAX_TOKENS if max_tokens is None else max_tokens,
        min_tokens=fields.integer(body, "min_tokens", least=0) or 0,
        ignore_eos=fields.boolean(body, "ignore_eos"),
        sequences=(fields.integer(body, "n", least=1) or 1) * len(items),
        batch=len(items),
        largest_id=largest,
        session=fields.label(body, "prompt_cache_key", "session_id"),
        user=fields.label(body, "user"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt(items))


def read_embeddings(body: dict[str, Any], rules: MediaRules, api: Api = Api.EMBEDDINGS) -> Reading:
    """Shape and inputs of an embedding request; it generates nothing."""
    given = body.get("input")
    if given is None:
        raise BadRequest("input is required", "input")
    largest: int | None = None
    if isinstance(given, dict):
        given = [given]
    if isinstance(given, list) and given and isinstance(given[0], dict):
        items = [_multimodal(item, index, rules) for index, item in enumerate(given)]
    else:
        items, largest = read_prompts(given, "input")
    shape = Shape(
        api=api,
        model=fields.string(body, "model") or "",
        max_tokens=0,
        sequences=len(items),
        batch=len(items),
        largest_id=largest,
        media=media_count(items),
        media_tokens=media_tokens(items),
        user=fields.label(body, "user"),
        cache_scope=cache_scope(body),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt(items))


def _multimodal(item: object, index: int, rules: MediaRules) -> list[Unit]:
    if not isinstance(item, dict):
        raise fields.wrong_type(item, "an object", f"input[{index}]")
    unit = Unit("text")
    text = fields.string(item, "text", f"input[{index}].text")
    if text:
        unit.texts.append(text)
    media = [rules.image(item["image"])] if item.get("image") else []
    if item.get("video"):
        media.append(rules.video(item["video"]))
    unit.media = media or None
    return [unit]
