import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.simulator.traces import Trace, TraceError, read_trace

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines, objects or texts, into a file."""

    def lines(*lines: dict[str, Any] | str) -> Path:
        path = tmp_path / "trace"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    return lines


def shapes(trace: Trace) -> list[tuple[float, int, int, int | None]]:
    """Of each request: arrival, prompt, output, max_tokens."""
    found = []
    for client in trace.workload.clients:
        ask = client.turns[0].ask
        found.append((round(client.starts_at, 3), ask.prompt_tokens, ask.output_tokens, ask.max_tokens))
    return found


def dispatch(rid: str, ts: float, waited: float, **fields: Any) -> dict[str, Any]:
    known = {"event": "dispatch", "ts": ts, "at": ts - 1e6, "rid": rid, "waited_s": waited, "lane": "short"}
    return {**known, "prompt_tokens": 1000, "max_tokens": 400, "reserve_tokens": 90, "tenant": "t", **fields}


def test_a_decision_log_gives_arrivals_not_dispatches(write: Write) -> None:
    refused = {**dispatch("b", 1.7e9 + 4, 0.0), "event": "refuse", "reason": "queue_full"}
    trace = read_trace(write(dispatch("a", 1.7e9 + 5, 2.0), refused))
    assert [at for at, *_ in shapes(trace)] == [0.0, 1.0]
    assert "1 in the file were refused" in " ".join(trace.notes)
    assert trace.workload.clients[0].turns[0].ask.tenant == "t"


def test_the_line_of_its_end_tells_how_long_an_answer_was(write: Write) -> None:
    end = {"event": "finish", "ts": 1.7e9 + 9, "rid": "a", "completion_tokens": 33, "prompt_tokens": 1002}
    trace = read_trace(write(dispatch("a", 1.7e9, 0.0), end, dispatch("b", 1.7e9, 0.0)))
    assert shapes(trace) == [(0.0, 1000, 33, 400), (0.0, 1000, 90, 400)]
    assert "the outputs of 1 are not recorded" in " ".join(trace.notes)


def test_a_request_that_was_sent_twice_is_one_request(write: Write) -> None:
    trace = read_trace(write(dispatch("a", 1.7e9, 0.0), dispatch("a", 1.7e9 + 3, 3.0)))
    assert len(trace.workload.clients) == 1


def test_mooncakes_whole_numbers_are_milliseconds_and_equal_blocks_are_shared(write: Write) -> None:
    trace = read_trace(
        write(
            {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
            {"timestamp": 2500, "input_length": 1300, "output_length": 7, "hash_ids": [1, 2, 9]},
        )
    )
    assert shapes(trace) == [(0.0, 1100, 5, None), (2.5, 1300, 7, None)]
    first, second = (client.turns[0].ask for client in trace.workload.clients)
    assert first.spans[:2] == second.spans[:2] == (("block 1", 512), ("block 2", 512))
    assert first.segments()[:2] == second.segments()[:2]
    assert "milliseconds" in " ".join(trace.notes)


def test_segments_of_a_decision_log_are_shared_and_the_rest_is_not(write: Write) -> None:
    shared = [["aa", 600], ["bb", 512]]
    first = dispatch("a", 1.7e9, 0.0, prompt_tokens=1200, segments=shared, session="s", ignore_eos=True)
    second = dispatch("b", 1.7e9 + 9, 0.0, prompt_tokens=2000, segments=[*shared, ["cc", 700]], session="s")
    other = dispatch("c", 1.7e9 + 9, 0.0, prompt_tokens=1200, segments=[["dd", 600], ["ee", 512]])
    trace = read_trace(write(first, second, other))
    asks = [client.turns[0].ask for client in trace.workload.clients]
    assert [ask.prompt_tokens for ask in asks] == [1200, 2000, 1200]
    assert asks[0].segments() == asks[1].segments()[:2]
    assert [segment.tokens for segment in asks[1].segments()] == [600, 512, 700]
    assert asks[0].spans[2] != asks[1].spans[2]  # what follows is their own
    assert not set(asks[2].segments()) & set(asks[0].segments())
    assert (asks[0].session, asks[1].session, asks[2].session) == ("s", "s", "")
    assert (asks[0].ignore_eos, asks[1].ignore_eos) == (True, False)
    assert "no shared prefixes" not in " ".join(trace.notes)


def test_a_segment_whose_estimate_has_changed_is_the_same_segment(write: Write) -> None:
    first = dispatch("a", 1.7e9, 0.0, prompt_tokens=1300, segments=[["aa", 600], ["bb", 512]])
    later = dispatch("b", 1.7e9 + 9, 0.0, prompt_tokens=1350, segments=[["aa", 620], ["bb", 530]])
    trace = read_trace(write(first, later))
    one, other = (client.turns[0].ask for client in trace.workload.clients)
    assert one.segments() == other.segments()
    assert (one.prompt_tokens, other.prompt_tokens) == (1300, 1350)


@pytest.mark.parametrize("segments", [[1], [["a"]], [["a", -1]], [["a", "many"]], [["a", 1, 2]]])
def test_segments_that_are_none_are_named(write: Write, segments: Any) -> None:
    with pytest.raises(TraceError, match="line 1"):
        read_trace(write(dispatch("a", 1.7e9, 0.0, segments=segments)))


def test_fewer_or_more_hashes_than_the_prompt_is_long_do_not_change_its_length(write: Write) -> None:
    lines = [
        {"timestamp": 0.5, "input_length": n, "output_length": 1, "hash_ids": [1, 2]}
        for n in (3, 512, 900, 5000)
    ]
    assert [prompt for _, prompt, *_ in shapes(read_trace(write(*lines)))] == [3, 512, 900, 5000]


@pytest.mark.parametrize(
    ("times", "unit", "gap"),
    [
        ((0.0, 1.5), "auto", 1.5),
        ((0, 3), "auto", 0.003),
        ((0, 3), "s", 3.0),
        ((0.0, 1500.5), "ms", 1.5005),
        ((1_700_000_000, 1_700_000_002), "auto", 2.0),  # seconds since the epoch
        ((1_700_000_000_000, 1_700_000_002_000), "auto", 2.0),  # and milliseconds
        (("2023-11-16T18:15:46.6805900", "2023-11-16 18:15:48.6805900+00:00"), "auto", 2.0),
    ],
)
def test_times_come_in_many_forms(write: Write, times: tuple[Any, Any], unit: str, gap: float) -> None:
    path = write(*({"timestamp": at, "input_length": 9, "output_length": 9} for at in times))
    assert read_trace(path, unit=unit).workload.clients[1].starts_at == pytest.approx(gap, abs=1e-4)


def test_azures_traces_are_csv(write: Write) -> None:
    path = write(
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,8790,109",
    )
    assert shapes(read_trace(path)) == [(0.0, 374, 44, None), (4.315, 8790, 109, None)]


def test_a_trace_can_be_cut_sped_up_and_filtered(write: Write) -> None:
    lines = [
        {"ts": at, "prompt_tokens": 10, "completion_tokens": 1, "model": m}
        for at, m in ((0, "a"), (10, "b"), (20, "a"))
    ]
    path = write(*lines)
    assert len(read_trace(path, seconds=12).workload.clients) == 2
    assert [at for at, *_ in shapes(read_trace(path, load=2))] == [0.0, 5.0, 10.0]
    assert [at for at, *_ in shapes(read_trace(path, model="a"))] == [0.0, 20.0]
    assert "2 models (a, b)" in " ".join(read_trace(path).notes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "line 1"),
        ('{"broken"', "line 1: not JSON"),
        ("{}", "prompt_tokens or input_length"),
        ('{"prompt_tokens": 3}', "ts or timestamp"),
        ('{"prompt_tokens": "many", "ts": 1}', "'many' is not a number of tokens"),
        ('{"prompt_tokens": -1, "ts": 1}', "-1 is not"),
        ('{"prompt_tokens": 1e999, "ts": 1}', "inf is not"),
        ('{"prompt_tokens": 3, "ts": "yesterday"}', "'yesterday' is not a time"),
        ('{"prompt_tokens": true, "ts": 1}', "True is not"),
        ("", "no request"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(write: Write, line: str, why: str) -> None:
    with pytest.raises(TraceError) as error:
        read_trace(write(line))
    if line != "not json":  # taken for the header of a CSV file without rows
        assert why in str(error.value)


def test_blank_lines_and_other_events_are_passed_over(write: Write) -> None:
    trace = read_trace(write("", dispatch("a", 1.7e9, 0.0), {"event": "start", "version": 1}, ""))
    assert len(trace.workload.clients) == 1
