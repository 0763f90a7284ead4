"""What a server says of a response it keeps, and what it does not say."""

import json

import httpx
import pytest

from proxy.backend_spec import BackendSpec
from proxy.upstream.call import Usage
from proxy.upstream.kept_response import Look, Standing, look, read_look
from proxy.upstream.link import Link


def answer(**fields: object) -> bytes:
    return json.dumps({"id": "resp_1", **fields}).encode()


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        ("queued", Standing.RUNNING),
        ("in_progress", Standing.RUNNING),
        ("completed", Standing.COMPLETED),
        ("incomplete", Standing.COMPLETED),
        ("failed", Standing.FAILED),
        ("cancelled", Standing.CANCELLED),
        ("resting", Standing.UNTOLD),
        (None, Standing.UNTOLD),
        ({}, Standing.UNTOLD),
    ],
)
def test_a_status_is_a_standing(status: object, standing: Standing) -> None:
    assert read_look(200, answer(status=status)) == Look(standing)


def test_usage_comes_with_the_end() -> None:
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
    assert read_look(200, answer(status="completed", usage=usage)).usage == Usage(7, 3, 2)
    assert read_look(200, answer(status="queued", usage=None)).usage is None
    assert read_look(200, answer(status="queued", usage=[1])).usage is None


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_server_that_keeps_no_such_response_has_none_that_runs(status: int) -> None:
    assert read_look(status, b"{}").standing is Standing.UNKNOWN


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 302, 204])
def test_other_failures_say_nothing_of_it(status: int) -> None:
    assert read_look(status, answer(status="completed")).standing is Standing.UNTOLD


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"completed"', b"\xff", b'{"status":'])
def test_what_is_no_json_object_says_nothing(body: bytes) -> None:
    assert read_look(200, body).standing is Standing.UNTOLD


async def test_an_answer_that_cannot_be_decoded_says_nothing_of_it() -> None:
    async def garbled(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"{}"))

    async with httpx.AsyncClient(transport=httpx.MockTransport(garbled)) as client:
        link = Link(BackendSpec("http://b0", "b0"), client, connect_seconds=1.0, stall_seconds=1.0)
        assert (await look(link, "resp_1")).standing is Standing.UNTOLD
