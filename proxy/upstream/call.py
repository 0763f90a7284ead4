"""What goes to a server and what is seen of its answer."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One request to forward.

    `path` includes the query. `headers` are already cleaned of hop-by-hop and steering names;
    the backend adds its own key. `body` is the client's, untouched. `rid` is of one fixed
    length (SGLang aborts by prefix). `ask_usage`: let the stream end with a usage chunk and
    swallow it again. `sequences` is n x batch items. `prompt_tokens` (0: unknown) tells how
    long the server's tokenizer will take. `overrides` is what `screen` returned for this body,
    None to have it screened when it is sent. `input_ids`: the prompt's exact ids as this server made
    them from this very body (comma-separated), so that it need not tokenize it once more.
    """

    method: str
    path: str
    pool: str
    rid: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    api: str | None = None
    stream: bool = False
    ask_usage: bool = False
    sequences: int = 1
    prompt_tokens: int = 0
    overrides: tuple[str, ...] | None = None
    input_ids: bytes | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them; None where it did not."""

    prompt_tokens: int
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class Observed:
    """What has been seen of an answer so far; updated in place as bytes pass.

    `generated_tokens` is counted from stream events until the server's own usage replaces it.
    `ended`: the engine is done with the request (final event seen, or the whole body), so that
    there is nothing left to abort. `aborted`: it ended because someone aborted it.
    `error`: the message of an error event inside the stream, or why the connection broke.
    """

    first_token_at: float | None = None
    generated_tokens: int = 0
    usage: Usage | None = None
    ended: bool = False
    aborted: bool = False
    error: str | None = None

    @property
    def produced_tokens(self) -> int:
        """As the server has told in the end, where it has; else as seen."""
        told = None if self.usage is None else self.usage.completion_tokens
        return self.generated_tokens if told is None else told
