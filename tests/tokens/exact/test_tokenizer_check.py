import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest

from proxy.api import state
from proxy.api.tokenizer_check import TokenizerCheck
from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.sglang import ServerInfo
from tests.tokens.exact.families import Model
from tests.tokens.loaded import exact_sizer


class Server:
    """A backend whose /v1/tokenize counts with a tokenizer of its own; `more` is added to each count."""

    def __init__(
        self, sizer: Sizer, model: Model, *, more: int = 0, status: int = 200, answer: object = None
    ) -> None:
        self.name = "box"
        self.link = self
        self.info = ServerInfo(ranks=(), models=("m",), tokenizer_path="google/gemma-3-4b-it")
        self.asked = 0
        self._sizer, self._model, self._more, self._status = sizer, model, more, status
        self._answer = answer

    async def post(self, path: str, body: bytes, *, seconds: float) -> httpx.Response:
        self.asked += 1
        document = orjson.loads(body)
        if "prompt" in document:
            count = len(self._model.reference.encode(document["prompt"]).ids)
        else:
            count = len(await self._sizer.ids(Api.CHAT, body) or ())
        return httpx.Response(self._status, json=self._answer or {"count": count + self._more, "tokens": []})


@pytest.fixture
async def sizer(model: Model) -> AsyncIterator[Sizer]:
    async with exact_sizer(model.directory) as sizer:
        yield sizer


async def checked(sizer: Sizer, server: Any) -> TokenizerCheck:
    check = TokenizerCheck(sizer, lambda pool: cast("Backend", server))
    check.counter_ready()
    check.pool_up("box")
    for _ in range(200):
        await asyncio.sleep(0.005)
        if check.verdicts:
            break
    check.close()
    return check


async def test_a_right_directory_is_confirmed(sizer: Sizer, model: Model) -> None:
    check = await checked(sizer, Server(sizer, model))

    assert check.verdicts["box"].results == {"equal": 10, "different": 0, "estimated": 0, "unanswered": 0}
    assert state.counting(sizer, check.verdicts)["self_check"] == {
        "box": {
            "wrong": False,
            "verdict": "all 10 probes are counted as the server counts them",
            "results": check.verdicts["box"].results,
            "different": [],
        }
    }


async def test_a_wrong_directory_is_named_everywhere(
    sizer: Sizer, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    check = await checked(sizer, Server(sizer, model, more=1))

    shown = state.counting(sizer, check.verdicts)["self_check"]["box"]
    assert shown["wrong"]
    assert shown["results"]["different"] == 10
    assert shown["different"][0]["probe"] == "English"
    assert shown["different"][0]["server"] == shown["different"][0]["ours"] + 1
    assert orjson.loads(orjson.dumps(shown)) == shown
    assert [r.levelno for r in caplog.records if "not this server's" in r.message] == [logging.WARNING]


@pytest.mark.parametrize(("status", "answer"), [(404, None), (200, [1]), (200, {"count": "9"})])
async def test_a_server_that_cannot_tokenize_leaves_the_probes_unanswered(
    status: int, answer: object, sizer: Sizer, model: Model
) -> None:
    check = await checked(sizer, Server(sizer, model, status=status, answer=answer))
    assert check.verdicts["box"].results["unanswered"] == 10


async def test_a_directory_that_cannot_be_used_is_no_match_either(model: Model, tmp_path: Path) -> None:
    sizer = Sizer(tokenizer_path=tmp_path)
    await sizer.load()
    check = await checked(sizer, Server(sizer, model))
    sizer.close()

    results = check.verdicts["box"].results
    assert (results["equal"], results["different"], results["estimated"]) == (0, 0, 10)


async def test_without_a_directory_nothing_is_asked_but_the_models_are_known(model: Model) -> None:
    sizer = Sizer()
    server = Server(sizer, model)
    check = TokenizerCheck(sizer, lambda pool: cast("Backend", server))
    check.counter_ready()
    check.pool_up("box")
    await asyncio.sleep(0.02)

    assert server.asked == 0
    assert sizer.stats().image_families == {"m": "gemma3"}
    sizer.close()
