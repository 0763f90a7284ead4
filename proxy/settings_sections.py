"""Every environment variable of the proxy: its type, default, bounds, and why one would change it.

One class a section; `proxy.settings.Settings` is all of them together.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, DirectoryPath, Field, FilePath, SecretStr
from pydantic.config import JsonDict
from pydantic_settings import NoDecode

from proxy.backend_spec import ALLOWED, BackendSpec, parse_backends

ImageFamily = Literal[
    "patches",
    "qwen2_vl",
    "qwen3_vl",
    "glm4v",
    "kimi_vl",
    "kimi_k25",
    "internvl",
    "gemma3",
    "gemma4",
    "llama4",
    "pixtral",
    "mistral3",
    "minicpmv",
]

_HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"


def _setting(
    default: Any, meaning: str, *, change: str, unset: str = "unset", allowed: str = "", **bounds: Any
) -> Any:
    """One variable: what it means, when to `change` it, what `unset` stands for, and its bounds."""
    notes: JsonDict = {"change": change, "unset": unset, "allowed": allowed}
    return Field(default, description=meaning, json_schema_extra=notes, **bounds)


def _backends(value: object) -> object:
    return parse_backends(value) if isinstance(value, str) else value


class ServerSettings(BaseModel):
    """Servers"""

    backends: Annotated[tuple[BackendSpec, ...], NoDecode, BeforeValidator(_backends)] = _setting(
        (BackendSpec("http://127.0.0.1:30000", "127.0.0.1:30000"),),
        "The SGLang servers to send to.",
        change="SGLang runs elsewhere, or there is more than one.",
        allowed=ALLOWED,
    )
    backend_api_key: SecretStr | None = _setting(
        None, "Key shown to SGLang, where a backend names none.", change="SGLang runs with --api-key."
    )
    backend_admin_key: SecretStr | None = _setting(
        None, "Key shown to SGLang for aborts.", change="SGLang runs with --admin-api-key."
    )
    poll_seconds: float = _setting(
        0.25,
        "How often each server's load is read.",
        change="Hundreds of servers (raise), or much traffic that bypasses the proxy (lower).",
        ge=0.02,
        le=60,
    )
    connect_seconds: float = _setting(
        5.0, "Longest time to connect to a server.", change="Servers are far away.", gt=0, le=300
    )
    stall_seconds: float = _setting(
        300.0,
        "Longest silence between bytes of a stream, and, beyond its prefill, before the first.",
        change="Retraction pauses streams for longer (raise), or dead peers must show sooner (lower).",
        gt=0,
        le=86_400,
    )


class ListenSettings(BaseModel):
    """Listening"""

    host: str = _setting(
        "127.0.0.1", "Address where clients connect.", change="Clients are on other machines.", min_length=1
    )
    port: int = _setting(
        8080, "Port where clients connect; 0 picks a free one.", change="It is taken.", ge=0, le=65_535
    )
    admin_host: str | None = _setting(
        None,
        "Address of a second listener for /metrics and /admission/*.",
        change="Operators and clients come over different networks.",
        unset="127.0.0.1 when the port is set",
        min_length=1,
    )
    admin_port: int | None = _setting(
        None,
        "Port of that second listener; the client port then serves neither.",
        change="As PROXY_ADMIN_HOST.",
        ge=0,
        le=65_535,
    )
    max_body_bytes: int = _setting(
        67_108_864,
        "Largest request body; above: 413.",
        change="Images or audio come inline.",
        ge=1024,
        le=2**32,
    )
    drain_seconds: float = _setting(
        30.0,
        "After SIGTERM: how long running requests may go on before the process ends.",
        change="Answers take longer (raise, with the supervisor's own grace period).",
        ge=0,
        le=86_400,
    )


class CountSettings(BaseModel):
    """Counting"""

    tokenizer_path: DirectoryPath | None = _setting(
        None,
        "The model's tokenizer directory, for exact counting.",
        change="The estimate is off for your texts (token_count_ratio), or long prompts are to be sliced.",
        unset="calibrated estimate",
        allowed="an existing directory",
    )
    chat_template: str | None = _setting(
        None,
        "Chat template for exact counting, as SGLang's --chat-template.",
        change="SGLang runs with --chat-template.",
        unset="the tokenizer directory's",
    )
    image_family: ImageFamily | None = _setting(
        None,
        "The model family whose rule turns an image's pixels into tokens.",
        change="Requests carry images, and /admission/status shows another family or none (patches).",
        unset="told by the tokenizer directory, else by the model's name",
    )
    calibrate_streams: float = _setting(
        0.05,
        "Share of streams whose usage chunk the proxy asks for and swallows again (all until 200 samples).",
        change="0 never touches a request; raise it when the traffic's kind changes often.",
        ge=0,
        le=1,
    )


class MemorySettings(BaseModel):
    """Memory"""

    pool_tokens: int | None = _setting(
        None,
        "Size of the KV pool in tokens.",
        change="The server reports none, or other users of it must be left room.",
        unset="from the server",
        ge=1,
    )
    pool_headroom: float = _setting(
        0.03,
        "Share of the pool that is never committed.",
        change="retractions_total rises (raise).",
        ge=0,
        le=0.5,
    )
    output_reserve_quantile: float = _setting(
        0.8,
        "Quantile of the outputs seen that is reserved for a new request's output.",
        change="Retractions (raise), or a pool that stays half empty under load (lower).",
        gt=0,
        le=1,
    )
    output_reserve_cap: int = _setting(
        4096, "Largest output reservation in tokens.", change="Most answers are longer than this.", ge=1
    )
    session_hold_seconds: float = _setting(
        10.0,
        "Longest hold of an idle conversation's context between its turns; 0 = off.",
        change="Agents think longer between turns (raise), or there are no conversations (0).",
        ge=0,
        le=3600,
    )
    max_long_contexts: int | None = _setting(
        None,
        "Most long contexts resident in one pool at once.",
        change="Decoding is too slow with several.",
        unset="as many as fit",
        ge=1,
    )


class LaneSettings(BaseModel):
    """Lanes"""

    short_prefill_tokens: int = _setting(
        8192,
        "Uncached prompt tokens up to which a request is short.",
        change="A prefill of this size takes longer than shorts may wait (lower).",
        ge=1,
    )
    express_share: float = _setting(
        0.10,
        "Share of the pool kept for shorts.",
        change="Shorts wait for memory (raise), or there are hardly any (lower).",
        ge=0,
        le=0.5,
    )
    max_long_prefills: int = _setting(
        1,
        "Long prefills in one engine at a time.",
        change="The engine shares its chunk between prompts.",
        ge=1,
        le=64,
    )
    prefill_slice_seconds: float = _setting(
        0.25,
        "Length of a slice of a long prefill while shorts arrive; 0 = off.",
        change="Shorts may wait longer (raise: longs end sooner), or slices miss (0).",
        ge=0,
        le=60,
    )
    prefill_slice_max_tokens: int | None = _setting(
        None,
        "Largest slice in tokens; 0 = off.",
        change="A slice takes far longer than planned.",
        unset="the server's chunk size",
        ge=0,
    )
    max_bypass_seconds: float = _setting(
        15.0,
        "How long others may pass a blocked long request before the gate closes.",
        change="Long requests start too late (lower), or shorts suffer behind them (raise).",
        ge=0,
        le=3600,
    )
    bypass_budget: float = _setting(
        0.25,
        "Tokens that may pass a blocked long request, as a share of the pool.",
        change="As PROXY_MAX_BYPASS_SECONDS.",
        ge=0,
        le=100,
    )
    long_tier_tokens: int | None = _setting(
        None,
        "Prompts of at least this many tokens go to backends of tier long.",
        change="Some servers are set aside for long contexts.",
        ge=1,
    )
    strict_models: bool = _setting(
        False,
        "Answer 404 to any model that no server names, even where all serve the same one.",
        change="Clients should hear of a wrong model name. SGLang itself serves every name as its own.",
    )


class QueueSettings(BaseModel):
    """Queue and refusal"""

    max_queue_seconds: float = _setting(
        60.0,
        "Longest wait that is promised; a longer predicted wait is refused at once.",
        change="Clients would rather wait (raise), or rather hear no at once (lower).",
        gt=0,
        le=86_400,
    )
    max_queue_seconds_limit: float = _setting(
        600.0,
        "How far a request's x-request-timeout-ms may lengthen its own wait.",
        change="Batch clients are glad to wait for longer.",
        gt=0,
        le=86_400,
    )
    max_queue_requests: int = _setting(
        1000, "Most requests waiting; beyond: 429 queue_full.", change="Bursts are larger and patient.", ge=1
    )
    max_queue_tokens: int | None = _setting(
        None,
        "Most tokens waiting; beyond: 429 queue_full.",
        change="As PROXY_MAX_QUEUE_REQUESTS.",
        unset="20 x pool",
        ge=1,
    )
    max_prompt_tokens: int | None = _setting(
        None,
        "Largest prompt accepted; above: 400.",
        change="Larger prompts fit, but cost the others too much.",
        unset="what the server can take",
        ge=1,
    )
    mode: Literal["enforce", "shadow", "off"] = _setting(
        "enforce",
        "enforce; shadow decides and records, but never holds or refuses; off passes everything on.",
        change="Try it on live traffic first (shadow), or rule the proxy out as a cause (off).",
    )


class ClientSettings(BaseModel):
    """Clients and keys"""

    api_keys_file: FilePath | None = _setting(
        None,
        "File of client keys and their tenants; a request without a known key gets 401.",
        change="Clients must be told apart, or strangers can reach the port.",
        allowed="an existing file",
    )
    admin_key: SecretStr | None = _setting(
        None, "Key for /admission/*.", change="Anyone but the operators can reach those paths."
    )
    tenant_header: str | None = _setting(
        None,
        "Header that names the tenant, set by a trusted front.",
        change="A gateway in front knows who asks, and clients cannot reach the proxy around it.",
        allowed="a header name",
        pattern=_HEADER_NAME,
    )
    forward_authorization: bool = _setting(
        False,
        "Pass the client's Authorization header on to SGLang.",
        change="SGLang checks the clients' own keys.",
    )


class ReloadSettings(BaseModel):
    """Changing them while it runs"""

    settings_file: FilePath | None = _setting(
        None,
        "File of PROXY_*=value lines, which win over the environment; read again at every reload.",
        change="Limits, keys or servers are to change without a restart.",
        allowed="an existing file",
    )


class SeeingSettings(BaseModel):
    """Logs"""

    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info",
        "Least severe log line written.",
        change="Looking for a fault, or one line a request is too much.",
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "Form of log lines.", change="A log collector reads them."
    )
    decision_log: Path | None = _setting(
        None, "File for one JSON line per decision.", change="Decisions are to be replayed or audited."
    )


SECTIONS: tuple[type[BaseModel], ...] = (
    ServerSettings,
    ListenSettings,
    CountSettings,
    MemorySettings,
    LaneSettings,
    QueueSettings,
    ClientSettings,
    ReloadSettings,
    SeeingSettings,
)

# Accepted and checked, but without effect in this version: said in --help, in the docs and at start.
PENDING: frozenset[str] = frozenset()
