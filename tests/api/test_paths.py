"""Which paths exist for clients, and which certainly do not."""

import pytest

from proxy.api.paths import INFERENCE, family_of, is_read, methods_of
from proxy.tokens.shape import Api


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("GET", "/v1/models/meta-llama/Llama-3.1-8B:lora@v2"),
        ("GET", "/get_model_info"),
        ("POST", "/tokenize"),
        ("POST", "/v1/messages/count_tokens"),
    ],
)
def test_harmless_reads_are_forwarded(method: str, path: str) -> None:
    assert is_read(method, path)
    assert methods_of(path) == (method,)


@pytest.mark.parametrize(
    "path",
    [
        "/flush_cache",
        "/abort_request",
        "/server_info",
        "/get_server_info",
        "/metrics",
        "/v1/loads",
        "/start_profile",
        "/update_weights_from_disk",
        "/v1/models/",
        "/v1/models/..",
        "/v1/models/../../flush_cache",
        "/v1/models/./flush_cache",
        "/v1/models/a/../../../server_info",
        "/v1/models//flush_cache",
        "/v1/models/a?b",
        "/v1/models/a#b",
        "/v1/models/a%2e",
        "/v1/models/a\\b",
        "/v1/models/a b",
        "/v1/models/a\x00",
        "/v1/models/\n",
        "/v1/models/tiny\n",
        "/v1/models/mödel",
        "/v1/modelsx",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_nothing_else_is_and_no_name_of_a_model_leads_out_of_the_models(method: str, path: str) -> None:
    assert not is_read(method, path)
    assert methods_of(path) == ()


def test_inference_is_never_a_read_and_takes_post_only() -> None:
    for path in INFERENCE:
        assert not is_read("POST", path)
        assert methods_of(path) == ("POST",)


def test_a_read_takes_no_other_method() -> None:
    assert not is_read("POST", "/v1/models")
    assert not is_read("HEAD", "/v1/models")
    assert not is_read("GET", "/tokenize")


def test_an_error_takes_the_shape_of_the_api_that_was_called() -> None:
    assert family_of("/v1/messages") is Api.MESSAGES
    assert family_of("/v1/messages/count_tokens") is Api.MESSAGES
    assert family_of("/v1/completions") is Api.COMPLETIONS
    assert family_of("/nowhere") is Api.CHAT
