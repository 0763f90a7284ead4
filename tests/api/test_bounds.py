import pytest

from proxy.api.bounds import (
    LONGEST_MODEL,
    MOST_SEQUENCES,
    MOST_TOKENS,
    bounded,
    check_model,
    check_sequences,
)
from proxy.tokens.shape import Api, BadRequest, Shape


def test_no_request_may_ask_for_more_sequences_than_loops_can_bear() -> None:
    check_sequences(Shape(Api.CHAT, "m", sequences=MOST_SEQUENCES))
    with pytest.raises(BadRequest, match="4096 sequences"):
        check_sequences(Shape(Api.CHAT, "m", sequences=MOST_SEQUENCES + 1))


def test_a_models_name_is_one_that_can_be_remembered() -> None:
    check_model(Shape(Api.CHAT, "m" * LONGEST_MODEL))
    with pytest.raises(BadRequest, match="8192 characters") as refused:
        check_model(Shape(Api.CHAT, "m" * (LONGEST_MODEL + 1)))
    assert refused.value.param == "model"


def test_a_huge_max_tokens_stays_a_number_that_sums_can_hold() -> None:
    assert bounded(500) == 500
    assert bounded(10**30) == MOST_TOKENS
