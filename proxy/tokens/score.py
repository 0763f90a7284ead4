"""/v1/score, /v1/rerank and /v1/classify: prompts that are read and answered without generating.

In the first two, one query stands before (or after) each of many items: the engine runs them as a batch of
whole prompts, so the query is counted once for each. It is tokenized here once only, or a small body
of many items would be hours of work.
"""

from typing import Any

from proxy.tokens import fields
from proxy.tokens.completions import read_embeddings
from proxy.tokens.content import add_content
from proxy.tokens.media import MediaRules
from proxy.tokens.prompts import largest_id, media_count, media_tokens
from proxy.tokens.shape import Api, BadRequest, Prompt, Reading, Shape, Unit

# The question that a reranker's template asks around each pair; none reports usage to learn it from.
_PAIR_TOKENS = 80
# They replace tokens by vectors of the client's own: one of the wrong size ends the server.
_VECTORS = ("query_embed_overrides", "item_embed_overrides")


def read_score(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompts of a scoring request: texts, or token ids throughout."""
    for name in _VECTORS:
        if body.get(name) is not None:
            raise BadRequest(f"{name} is not supported through this proxy", name)
    if fields.boolean(body, "return_pooled_hidden_states"):
        name = "return_pooled_hidden_states"
        raise BadRequest(f"{name} is not supported through this proxy", name)
    query, items = body.get("query"), body.get("items")
    if items is None:
        raise BadRequest("items is required", "items")
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list):
        raise fields.wrong_type(items, "a string, an array of strings, or one of arrays of ids", "items")
    if isinstance(query, list) or (query is None and items and isinstance(items[0], list)):
        units, largest = _ids(query, items)
    else:
        units, largest = _texts(fields.string(body, "query"), items), None
    return _reading(Api.SCORE, body, [[units[0]], *([unit] for unit in units[1:])], largest)


def read_rerank(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and prompts of a rerank request: the query with each of the documents."""
    documents = fields.array(body, "documents")
    if not documents:
        raise BadRequest("documents must not be empty", "documents")
    if not body.get("query"):
        raise BadRequest("query must not be empty", "query")
    query = Unit("query", [], _PAIR_TOKENS)
    add_content(query, body["query"], rules, "query")
    instruct = fields.string(body, "instruct")
    if instruct:
        query.texts.append(instruct)
    units = [query]
    for index, document in enumerate(documents):
        units.append(Unit("document"))
        add_content(units[-1], document, rules, f"documents[{index}]")
    return _reading(Api.RERANK, body, [[unit] for unit in units], None)


def read_classify(body: dict[str, Any], rules: MediaRules) -> Reading:
    """Shape and inputs of a classification request: those of an embedding request."""
    return read_embeddings(body, rules, Api.CLASSIFY)


def _reading(api: Api, body: dict[str, Any], parts: list[list[Unit]], largest: int | None) -> Reading:
    """`parts`: the query, then the items."""
    items = max(1, len(parts) - 1)
    shape = Shape(
        api=api,
        model=fields.string(body, "model") or "",
        max_tokens=0,
        sequences=items,
        batch=items,
        largest_id=largest,
        media=media_count(parts[:1]) * items + media_count(parts[1:]),
        media_tokens=media_tokens(parts[:1]) * items + media_tokens(parts[1:]),
        fields=frozenset(body),
    )
    return Reading(shape, Prompt(parts, repeats=items))


def _texts(query: str | None, items: list[Any]) -> list[Unit]:
    if not all(isinstance(item, str) for item in items):
        raise BadRequest("items must all be strings where query is one, or is left out", "items")
    return [Unit("query", [query or ""]), *(Unit("text", [item]) for item in items)]


def _ids(query: list[Any] | None, items: list[Any]) -> tuple[list[Unit], int]:
    largest = largest_id(query, "query") if query else 0
    for index, item in enumerate(items):
        if item:
            largest = max(largest, largest_id(item, f"items[{index}]"))
        elif not isinstance(item, list):
            raise BadRequest("items must all be arrays of token ids where query is one", f"items[{index}]")
    return [Unit("query", ids=query or []), *(Unit("ids", ids=item) for item in items)], largest
