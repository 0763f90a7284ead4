from pathlib import Path

import pytest

from tests.load.figures import Run, compare, middle, quantile, require, table
from tests.load.outcome import Outcome
from tests.load.proxy import sum_metrics
from tests.load.sampler import Sample


def outcome(**fields: object) -> Outcome:
    known: dict[str, object] = {
        "kind": "short",
        "attempt": 1,
        "started_at": 1.0,
        "stream": True,
        "want_prompt_tokens": 20,
        "want_output_tokens": 5,
        "status": 200,
        "first_at": 1.5,
        "ended_at": 2.0,
        "prompt_tokens": 20,
        "completion_tokens": 5,
    }
    return Outcome(**known | fields)  # type: ignore[arg-type]


def run(*outcomes: Outcome) -> Run:
    samples = [Sample(0.0, 0.0, 1, waiting, 10, 0) for waiting in (0, 1, 5, 0)]
    return Run(outcomes, samples, missed_samples=0, retractions=0)


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert quantile([7.0], 0.5) == 7.0


def test_a_ratio_below_one_is_shown_as_one_to_n_and_judged() -> None:
    row = compare("p50", 10.0, 0.5, 1 / 10)
    assert (row.ratio, row.required, row.ok) == ("1:20.0", "<= 1:10", True)
    assert compare("p50", 10.0, 2.0, 1 / 10).ok is False
    assert compare("wall", 10.0, 10.4, 1.05).ok
    assert compare("wall", 10.0, 10.6, None).ok is None


def test_of_several_runs_the_median_ratio_counts_and_the_worst_verdict() -> None:
    ratios = [compare("x", 1.0, value, 1.0) for value in (3.0, 0.5, 0.9)]
    assert middle(ratios).value == pytest.approx(0.9)
    verdicts = [require("failed", "", "0", "0", True), require("failed", "", "2", "0", False)]
    assert middle(verdicts).ok is False


def test_another_length_than_asked_for_is_a_failure_and_a_refusal_is_none() -> None:
    refused = outcome(status=429, headers={"retry-after": "3"}, first_at=None)
    found = run(
        outcome(), outcome(prompt_tokens=19), outcome(completion_tokens=4), outcome(status=500), refused
    )
    assert len(found.failures) == 3


def test_the_share_of_samples_counts_the_engine_s_own_queue() -> None:
    assert run(outcome()).share_of_samples(waiting_at_most=1) == 0.75


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = run(outcome(), outcome(error="lost"))
    found.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json").outcomes == list(found.outcomes)
    assert Run.read(tmp_path / "run.json").samples == found.samples


def test_a_table_names_each_verdict() -> None:
    text = table([compare("fast", 2.0, 1.0, 1.0), require("whole", "", "no", "yes", False)])
    assert text.count("ok") == 1
    assert text.count("FAIL") == 1


def test_metrics_are_summed_over_their_labels() -> None:
    text = (
        "# TYPE sglang_proxy_committed_tokens gauge\n"
        'sglang_proxy_committed_tokens{backend="a",lane="short"} 10.0\n'
        'sglang_proxy_committed_tokens{backend="a",lane="long"} 5.5\n'
        'sglang_proxy_ttft_seconds_bucket{le="1.0"} 7.0\n'
    )
    assert sum_metrics(text) == {"sglang_proxy_committed_tokens": 15.5}
