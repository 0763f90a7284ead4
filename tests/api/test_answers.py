"""From outcome to answer: every row of the table, in both shapes."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.types import Lane, Reason, Refuse, TenantLimit
from proxy.api import answers
from proxy.api.answers import Answer
from proxy.tokens.shape import Api

STATUSES = {
    Reason.WOULD_MISS_DEADLINE: 429,
    Reason.QUEUE_FULL: 429,
    Reason.TENANT_LIMIT: 429,
    Reason.DEADLINE: 429,
    Reason.CONTEXT_LENGTH_EXCEEDED: 400,
    Reason.NO_BACKEND: 503,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.DRAINING: 503,
}
OPENAI = [api for api in Api if api is not Api.MESSAGES]


def refuse(reason: Reason, retry_after_seconds: float | None = 7.2, limit: int | None = None) -> Refuse:
    return Refuse("r", reason, Lane.LONG, 95.25, retry_after_seconds, 64_500, 12_000, 4, limit)


def header(answer: Answer, name: bytes) -> bytes | None:
    return dict(answer.headers).get(name)


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.body)["error"]
    return error


def test_every_reason_has_a_row() -> None:
    assert set(answers.TABLE) == set(STATUSES) == set(Reason)


def test_a_wait_within_the_limit_is_not_called_longer_than_it() -> None:
    """What is promised is kept: a wait that is predicted close below its limit is refused as well."""
    over = error_of(answers.refused(Api.CHAT, refuse(Reason.WOULD_MISS_DEADLINE), 60.0))["message"]
    near = error_of(answers.refused(Api.CHAT, refuse(Reason.WOULD_MISS_DEADLINE), 100.0))["message"]
    assert "would wait about 95 s" in over
    assert ", longer than the 60 s it may wait." in over
    assert ", too close to the 100 s it may wait." in near


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("api", OPENAI)
def test_refusals_have_openais_shape(api: Api, reason: Reason) -> None:
    answer = answers.refused(api, refuse(reason, limit=186_618), 60.0)
    error = error_of(answer)
    assert answer.status == STATUSES[reason]
    assert header(answer, b"x-admission-reason") == reason.value.encode()
    assert error["code"] == reason.value
    assert error["param"] is None
    assert {"message", "type", "predicted_wait_s", "needed_tokens", "free_tokens", "queue_position"} <= set(
        error
    )
    assert (error["predicted_wait_s"], error["needed_tokens"], error["free_tokens"]) == (
        95.25,
        64_500,
        12_000,
    )


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.WOULD_MISS_DEADLINE, "rate_limit_error"),
        (Reason.CONTEXT_LENGTH_EXCEEDED, "invalid_request_error"),
        (Reason.NO_BACKEND, "overloaded_error"),
    ],
)
def test_refusals_of_messages_have_anthropics_shape(reason: Reason, kind: str) -> None:
    answer = answers.refused(Api.MESSAGES, refuse(reason, limit=186_618), 60.0)
    document = json.loads(answer.body)
    assert document["type"] == "error"
    assert document["error"]["type"] == kind
    assert document["error"]["message"]


@pytest.mark.parametrize("reason", [reason for reason in Reason if STATUSES[reason] not in (400, 404)])
@given(seconds=st.floats(0.0, 1e6))
def test_retry_after_is_whole_seconds_from_1_to_60_and_larger_ones_forbid_retrying(
    reason: Reason, seconds: float
) -> None:
    answer = answers.refused(Api.CHAT, refuse(reason, seconds), 60.0)
    value = header(answer, b"retry-after")
    assert value is not None
    assert 1 <= int(value) <= 60
    honest = error_of(answer)["retry_after_s"]
    assert honest >= seconds
    assert int(value) == honest if honest <= 60 else int(value) >= 45
    assert (header(answer, b"x-should-retry") == b"false") == (honest > 60)


def test_those_who_should_come_later_than_the_header_can_say_do_not_come_together() -> None:
    told = [
        header(answers.refused(Api.CHAT, refuse(Reason.WOULD_MISS_DEADLINE, seconds), 60.0), b"retry-after")
        for seconds in range(61, 101)
    ]
    assert max(told.count(value) for value in told) <= 3


@pytest.mark.parametrize("answer", [answers.no_room, answers.no_backend])
def test_who_is_sent_away_without_a_forecast_is_not_told_the_same_as_all_others(
    answer: Callable[[Api], Answer],
) -> None:
    told = {header(answer(Api.CHAT), b"retry-after") for _ in range(200)}
    assert len(told) > 5
    assert all(1 <= int(seconds or 0) <= 10 for seconds in told)


def test_what_can_never_fit_names_both_numbers_and_forbids_retrying() -> None:
    answer = answers.refused(Api.CHAT, refuse(Reason.CONTEXT_LENGTH_EXCEEDED, None, 186_618), 60.0)
    assert header(answer, b"retry-after") is None
    assert header(answer, b"x-should-retry") == b"false"
    message = error_of(answer)["message"]
    assert "64500" in message
    assert "186618" in message
    assert error_of(answer)["limit_tokens"] == 186_618


def test_a_tenants_limit_is_named_with_its_figures() -> None:
    full = replace(refuse(Reason.TENANT_LIMIT), tenant_limit=TenantLimit("concurrent_requests", 20, 20))
    answer = answers.refused(Api.CHAT, full, 60.0)
    error = error_of(answer)
    assert (error["limit"], error["limit_value"], error["limit_used"]) == ("concurrent_requests", 20, 20)
    assert "concurrent_requests=20, 20 in use" in error["message"]
    assert header(answer, b"retry-after") == b"8"


def test_what_is_more_than_a_tenant_may_ever_hold_is_not_to_be_tried_again() -> None:
    never = replace(refuse(Reason.TENANT_LIMIT, None), tenant_limit=TenantLimit("resident_tokens", 9000, 0))
    answer = answers.refused(Api.CHAT, never, 60.0)
    assert answer.status == 429
    assert header(answer, b"retry-after") is None
    assert header(answer, b"x-should-retry") == b"false"
    assert "resident_tokens=9000" in error_of(answer)["message"]


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_who_shows_no_valid_key_is_told_so_in_the_shape_of_the_api(api: Api) -> None:
    answer = answers.unauthorized(api)
    assert answer.status == 401
    assert header(answer, b"www-authenticate") == b"Bearer"
    assert error_of(answer)["type"] == "authentication_error"
    assert error_of(answer).get("code") == (None if api is Api.MESSAGES else "invalid_api_key")


def test_a_predicted_wait_is_told_with_what_may_be_done_about_it() -> None:
    message = error_of(answers.refused(Api.CHAT, refuse(Reason.WOULD_MISS_DEADLINE), 60.0))["message"]
    for piece in ("95 s", "64500", "12000", "60 s", "8 s", "x-request-timeout-ms"):
        assert piece in message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
    ],
)
def test_a_clients_own_mistake_is_named_in_both_shapes(status: int, kind: str) -> None:
    openai = answers.bad_request(Api.CHAT, "no", "messages", status=status)
    assert json.loads(openai.body) == {
        "error": {"message": "no", "type": kind, "code": None, "param": "messages"}
    }
    anthropic = answers.bad_request(Api.MESSAGES, "no", status=status)
    assert json.loads(anthropic.body) == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_a_body_too_large_has_a_name_of_its_own_at_anthropic() -> None:
    assert error_of(answers.body_too_large(Api.MESSAGES, 10))["type"] == "request_too_large"
    assert error_of(answers.body_too_large(Api.CHAT, 10))["type"] == "invalid_request_error"


def test_after_a_body_too_slow_the_connection_is_given_up() -> None:
    answer = answers.body_too_slow(Api.CHAT)
    assert answer.status == 408
    assert header(answer, b"connection") == b"close"


def test_a_wrong_method_is_told_which_are_right() -> None:
    answer = answers.wrong_method(Api.CHAT, "GET", "/v1/completions", ("POST",))
    assert answer.status == 405
    assert header(answer, b"allow") == b"POST"


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (502, "server_error")])
def test_a_backends_failure_is_passed_on_by_who_is_to_blame(status: int, kind: str) -> None:
    answer = answers.upstream_error(Api.CHAT, status, "boom", "upstream_failed")
    assert answer.status == status
    assert error_of(answer)["type"] == kind


def test_a_stream_that_broke_ends_as_its_api_ends_streams() -> None:
    openai = answers.stream_error(Api.CHAT, "gone", after=b"data: {}\n\n")
    event, done, rest = openai.split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_broken"
    assert (done, rest) == (b"data: [DONE]", b"")
    anthropic = answers.stream_error(Api.MESSAGES, "gone")
    name, data = anthropic.rstrip(b"\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["type"] == "error"


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_an_event_that_was_cut_in_two_does_not_swallow_the_error(api: Api) -> None:
    whole = b"data: {}\n\n"
    event = answers.stream_error(api, "gone", after=whole)
    assert answers.stream_error(api, "gone", after=b'data: {"id') == b"\n\n" + event
    assert answers.stream_error(api, "gone", after=b"data: {}\r\n\r\n") == event
    assert answers.stream_error(api, "gone") == event
