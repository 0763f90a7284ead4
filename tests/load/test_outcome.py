from tests.load.outcome import Outcome, Reader
from tests.load.workload import Ask

CHUNK = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def read(
    *pieces: bytes, stream: bool = True, status: int = 200, headers: dict[str, str] | None = None
) -> Outcome:
    outcome = Outcome.of(Ask("short", 20, 2, text_seed=1, stream=stream), started_at=0.0)
    reader = Reader(outcome, began=0.0)
    reader.on_head(status, headers or {})
    for piece in pieces:
        reader.on_body(piece)
    reader.finish()
    return outcome


def test_a_whole_stream_is_served_with_its_usage() -> None:
    outcome = read(CHUNK, CHUNK + FINISH, USAGE[:30], USAGE[30:] + DONE)
    assert outcome.served
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.finish_reason) == (20, 2, "length")
    assert outcome.events == 5
    assert outcome.ttft_seconds > 0


def test_a_comment_is_no_first_token() -> None:
    outcome = read(b": position 3\n\n")
    assert outcome.first_at is None


def test_a_stream_without_done_is_an_error() -> None:
    outcome = read(CHUNK, FINISH)
    assert not outcome.served
    assert outcome.error == "the stream ended without [DONE]"


def test_an_error_event_on_status_200_is_an_error_but_an_answer() -> None:
    outcome = read(CHUNK, b'data: {"error":{"message":"engine died","code":502}}\n\n', DONE)
    assert not outcome.served
    assert not outcome.broken
    assert "engine died" in (outcome.error or "")


def test_a_refusal_with_retry_after_is_no_error() -> None:
    body = b'{"error":{"message":"wait","code":"would_miss_deadline"}}'
    outcome = read(body, status=429, headers={"retry-after": "7"})
    assert outcome.refused
    assert outcome.error is None


def test_an_aborted_answer_is_an_error() -> None:
    body = b'{"choices":[{"finish_reason":"abort"}],"usage":{"prompt_tokens":20,"completion_tokens":0}}'
    assert read(body, stream=False).error == "aborted by the server"
