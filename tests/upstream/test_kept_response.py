"""What a server says of a response it keeps, and what it does not say."""

import json

import pytest

from proxy.upstream.call import Usage
from proxy.upstream.kept_response import Look, Standing, read_look


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
