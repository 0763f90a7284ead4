"""A small part of the fuzzing, always the same: `python -m tests.fuzz` is the whole."""

from pathlib import Path

from tests.fuzz.client import ANSWER_SECONDS
from tests.fuzz.mutate import case
from tests.fuzz.run import fuzz

REQUESTS = 1000


async def test_a_thousand_bad_requests_are_all_answered_and_leave_nothing(tmp_path: Path) -> None:
    verdict = await fuzz(range(REQUESTS), 0, tmp_path, print)
    assert verdict.problems == []
    assert verdict.statuses.total() == REQUESTS
    assert verdict.statuses[200] > REQUESTS / 10  # they do reach the server
    assert verdict.statuses[400] > REQUESTS / 10


def test_a_request_is_made_of_its_seed_and_number_alone() -> None:
    assert [case(1, number) for number in range(50)] == [case(1, number) for number in range(50)]
    assert case(1, 7) != case(2, 7)
    assert sum(case(1, number).whole for number in range(200)) > 100
    assert ANSWER_SECONDS > 1
