"""The simulated SGLang as an HTTP server: the engine in real time behind SGLang's paths."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.simulator import facts
from proxy.simulator.answers import Answer
from proxy.simulator.intake import Api, Lengths, Rejected, read
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.runner import TICK_SECONDS, Runner
from proxy.simulator.text import tokenize, tokenize_chat
from proxy.simulator.wire import flat_error

Handler = Callable[[Request], Awaitable[Response]]
#: The paths that answer with tokens.
GENERATING = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/generate": Api.GENERATE,
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the server is beside its engine."""

    engine: EngineConfig
    model: str = "simulated"
    cache_report: bool = True
    lengths: Lengths = field(default_factory=Lengths)
    tick_seconds: float = TICK_SECONDS


def create_app(config: ServerConfig) -> Starlette:
    """The ASGI app; its engine starts and ends with the app's lifespan."""
    server = _Server(config)
    return Starlette(
        routes=server.routes(), lifespan=server.lifespan, exception_handlers={404: _not_simulated}
    )


class _Server:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._runner = Runner(config.engine, tick_seconds=config.tick_seconds)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._runner.run())
        yield
        task.cancel()
        await asyncio.wait([task])

    def routes(self) -> list[Route]:
        posts: dict[str, Handler] = {
            **{path: self._asking(api) for path, api in GENERATING.items()},
            "/abort_request": self._abort,
            "/v1/tokenize": self._tokenize,
            "/tokenize": self._tokenize,
            "/flush_cache": self._flush_cache,
        }
        gets: dict[str, Handler] = {
            "/v1/loads": self._loads,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/get_model_info": self._model_info,
            "/model_info": self._model_info,
            "/v1/models": self._models,
            "/v1/models/{model:path}": self._one_model,
            "/metrics": self._metrics,
            "/health": _empty,
            "/health_generate": _empty,
            "/ready": _empty,
            "/ping": _empty,
        }
        return [
            *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, handler, methods=["GET"]) for path, handler in gets.items()),
        ]

    # --- tokens ----------------------------------------------------------------------------------

    def _asking(self, api: Api) -> Handler:
        async def handle(request: Request) -> Response:
            return await self._ask(api, request)

        return handle

    async def _ask(self, api: Api, request: Request) -> Response:
        config = self._config
        try:
            body = await _body(request)
            wanted = read(
                api,
                body,
                model=config.model,
                context_tokens=config.engine.context_tokens,
                lengths=config.lengths,
            )
            answer = Answer(self._runner, wanted, cache_report=config.cache_report)
        except Rejected as error:
            return _rejection(api, error)
        if wanted.stream:
            return StreamingResponse(answer.stream(), media_type="text/event-stream")
        status, value = await answer.whole(request.receive)
        return _json(value, status)

    async def _abort(self, request: Request) -> Response:
        body = await _body(request)
        if body.get("abort_all"):
            self._runner.abort("")
        elif body.get("rid"):
            self._runner.abort(str(body["rid"]))
        return Response()

    async def _tokenize(self, request: Request) -> Response:
        try:
            body = await _body(request)
            messages = body.get("messages")
            ids = (
                tokenize_chat(messages, body.get("tools"))
                if isinstance(messages, list)
                else tokenize(str(body.get("prompt") or ""))
            )
        except Rejected as error:
            return _rejection(Api.CHAT, error)
        context = self._config.engine.context_tokens
        return _json({"tokens": ids.tolist(), "count": len(ids), "max_model_len": context})

    async def _flush_cache(self, _: Request) -> Response:
        flushed = self._runner.flush_cache()
        return PlainTextResponse("Cache flushed.\n" if flushed else "", 200 if flushed else 400)

    # --- what it says of itself ------------------------------------------------------------------

    async def _loads(self, request: Request) -> Response:
        load, age = self._runner.load()
        core = request.query_params.get("include", "all") == "core"
        value = facts.loads(self._config.engine, load, age, core=core)
        if request.query_params.get("dp_rank", "0") != "0":
            value["loads"] = []
        return _json(value)

    async def _server_info(self, _: Request) -> Response:
        config = self._config
        return _json(facts.server_info(config.engine, config.model, cache_report=config.cache_report))

    async def _model_info(self, _: Request) -> Response:
        return _json(facts.model_info(self._config.model))

    async def _models(self, _: Request) -> Response:
        card = facts.model_card(self._config.engine, self._config.model)
        return _json({"object": "list", "data": [card]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name == self._config.model:
            return _json(facts.model_card(self._config.engine, name))
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return _json({"error": error}, 404)

    async def _metrics(self, _: Request) -> Response:
        load, _age = self._runner.load()
        return PlainTextResponse(facts.metrics(self._config.engine, load, self._config.model))


async def _empty(_: Request) -> Response:
    return Response()


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object sent. Raises Rejected."""
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        message = f"1 validation error: JSON decode error: {error}"
        raise Rejected(message, kind="Bad Request") from None
    if not isinstance(value, dict):
        raise Rejected("1 validation error: Input should be a valid dictionary", kind="Bad Request")
    return value


async def _not_simulated(request: Request, _: Exception) -> Response:
    path = request.url.path
    return _json({"detail": f"Not Found: {path} is not simulated; {', '.join(GENERATING)} are"}, 404)


def _rejection(api: Api, error: Rejected) -> Response:
    if api is Api.GENERATE:
        return _json({"error": {"message": error.message}}, 400)
    return _json(flat_error(error.message, error.kind, 400), 400)


def _json(value: Mapping[str, Any] | list[Any], status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
