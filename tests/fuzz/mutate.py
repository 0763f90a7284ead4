"""Makes bad requests of good ones: in their JSON, their bytes, their headers and their framing."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.samples import Sample, encoded, sample

Dice = random.Random

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "a", "\x00", "\ud800", "\u202e", "é" * 1000, "x" * 100_000),
    *("tiny", "true", "0", [], {}, [[]], [None], {"": ""}, [[[[[[[[]]]]]]]], [1, "a", None]),
    *(list(range(300)), {"type": "text"}, {"a": {"b": {"c": {}}}}, {"role": "user", "content": "a"}),
    [{"type": "image_url", "image_url": {}}],
)
_KEYS = (
    *("rid", "request_id", "priority", "n", "best_of", "stream", "stream_options", "max_tokens"),
    *("model", "max_completion_tokens", "min_tokens", "messages", "prompt", "input_ids", "text"),
    *("input", "tools", "session_params", "custom_logit_processor", "return_hidden_states"),
    *("input_embeds", "background", "bootstrap_host", "data_parallel_rank", "sampling_params"),
    *("cache_salt", "extra_key", "previous_response_id", "store", "echo", "ignore_eos"),
    *("chat_template_kwargs", "", "\x00", "\ud800", "k" * 9000),
)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    *((b"x-request-id", value) for value in (b"\xff\xfe", b"a" * 5000, b"\t")),
    *((b"x-request-timeout-ms", value) for value in (b"-1", b"nan", b"9" * 400, b"0", b"1e9", b"\xb2", b"")),
    *((b"authorization", b"Bearer \xff"), (b"authorization", b""), (b"x-api-key", b"k" * 3000)),
    *((b"content-type", b"text/plain"), (b"content-encoding", b"gzip"), (b"accept-encoding", b"br")),
    *((b"expect", b"100-continue"), (b"upgrade", b"h2c"), (b"connection", b"upgrade, close, x-a")),
    *((b"x-session-id", b"s" * 400), (b"x-data-parallel-rank", b"7"), (b"x-override-a", b"1")),
    *((b"host", b"evil.test:0"), (b"traceparent", b"00-zz-1"), (b"te", b"trailers")),
    *((b"x\x7fbad", b"1"), (b"", b"no name"), (b"bad name", b"1"), (b"x-nul", b"a\x00b")),
    *((b"cookie", b"a;" * 500), (b"x-big", b"v" * 70_000)),
    *((b"content-length", value) for value in (b"-1", b"0", b"5, 5", b"1e3", b"9" * 20, b" 7")),
    *((b"transfer-encoding", value) for value in (b"chunked", b"gzip, chunked", b"identity", b"x")),
)
_TARGETS = (
    *("/v1/models/../server_info", "/v1/models/%2e%2e/x", "/abort_request", "/flush_cache", "*", ""),
    *("/v1/chat/completions?a=%zz&b", "/v1/chat/completions/", "//v1/models", "/%00", "/\xe9"),
    *("/admission/explain?tokens=" + "9" * 500, "/admission/explain?tokens=-1", "/admission/live"),
    *("/admission/explain?tokens=1&max_tokens=nan", "/v1/models/" + "a" * 9000),
    *("http://other.test/v1/models", "/admission/status?x=\x01"),
)
_CHUNK_SIZES = (b"zz", b"-1", b"ffffffffffffffff", b"0x5", b"", b"5;" + b"e" * 9000, b" 5", b"5\n")
_LARGEST_BYTES = 3_000_000  # above what the proxy is set to take


@dataclass(frozen=True)
class Case:
    """`data` as it is sent, in so many pieces. `whole`: its framing is right, so an answer must come."""

    data: bytes
    whole: bool
    pieces: int = 1


def case(seed: int, number: int) -> Case:
    """The bad request of that number: always the same one."""
    dice = random.Random(f"{seed}/{number}")
    wanted = sample(dice)
    body = wanted.body
    for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 4))):
        body = _other_json(dice, body)
    content = b"" if body is None else encoded(body)
    if dice.random() < 0.15:
        content = _other_bytes(dice, content)
    method, target = wanted.method, wanted.target
    if dice.random() < 0.08:
        target = dice.choice(_TARGETS)
    if dice.random() < 0.04:
        method = dice.choice(
            ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "P\x01ST")
        )
    data, whole = _framed(dice, Sample(method, target), content)
    if dice.random() < 0.06:
        data, whole = _other_bytes(dice, data), False
    if dice.random() < 0.04:
        data, whole = data + data, False
    return Case(data, whole, dice.choice((1, 1, 1, 2, 5)))


# --- JSON -----------------------------------------------------------------------------------------


def _other_json(dice: Dice, value: Any) -> Any:
    """The document with one place changed, anywhere in it."""
    value = copy.deepcopy(value)
    if not isinstance(value, dict | list) or not value or dice.random() < 0.02:
        return dice.choice(_VALUES)
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = dice.choice(keys)
        below = place[key]
        if isinstance(below, dict | list) and below and dice.random() < 0.7:
            place = below
            continue
        dice.choice(_CHANGES)(dice, place, key)
        return value


def _replace(dice: Dice, place: Any, key: Any) -> None:
    place[key] = dice.choice(_VALUES)


def _remove(_: Dice, place: Any, key: Any) -> None:
    del place[key]


def _add(dice: Dice, place: Any, _: Any) -> None:
    if isinstance(place, dict):
        place[dice.choice(_KEYS)] = dice.choice(_VALUES)
    else:
        place.insert(0, dice.choice(_VALUES))


def _repeat(dice: Dice, place: Any, key: Any) -> None:
    counts = (2, 8) if isinstance(place[key], dict | list) else (2, 50, 5000)  # a later change hits them all
    most = _LARGEST_BYTES // max(1, len(encoded(place[key])))
    place[key] = [place[key]] * min(most, dice.choice(counts))


def _nest(dice: Dice, place: Any, key: Any) -> None:
    for _ in range(dice.choice((1, 5, 200))):
        place[key] = dice.choice(([place[key]], {"content": place[key]}))


_CHANGES: tuple[Callable[[Dice, Any, Any], None], ...] = (
    _replace,
    _replace,
    _replace,
    _remove,
    _add,
    _add,
    _repeat,
    _nest,
)


# --- bytes ----------------------------------------------------------------------------------------


def _other_bytes(dice: Dice, data: bytes) -> bytes:
    """A few bytes flipped, dropped, doubled or put in; or the end cut off."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 3, 20))):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1:
                del changed[at : at + dice.choice((1, 2, 50))]
            case 2:
                changed[at:at] = dice.choice(
                    (b"\x00", b"\xff", b"\r\n", b'"', b"{", b"]", b"\\", b"\xed\xa0\x80", b",")
                )
            case 3:
                changed[at:at] = changed[at : at + 200]
            case _ if dice.random() < 0.2:
                del changed[at:]
    return bytes(changed)


# --- head and framing -----------------------------------------------------------------------------


def _framed(dice: Dice, wanted: Sample, content: bytes) -> tuple[bytes, bool]:
    """Head and body; and whether a reader can tell where they end."""
    headers: list[tuple[bytes, bytes]] = [(b"host", b"proxy.test"), (b"content-type", b"application/json")]
    whole = wanted.target.startswith("/") and wanted.target.isascii() and wanted.target.isprintable()
    whole = whole and wanted.method.isalpha() and wanted.method not in ("CONNECT", "HEAD", "get")
    if dice.random() < 0.75:
        headers.append((b"content-length", b"%d" % len(content)))
    else:
        headers.append((b"transfer-encoding", b"chunked"))
        content, sound = _chunked(dice, content)
        whole = whole and sound
    if dice.random() < 0.05:
        headers.pop()  # no framing at all
        whole = False
    for _ in range(dice.choice((0, 0, 0, 0, 0, 0, 1, 3))):
        name, value = dice.choice(_HEADERS)
        headers.insert(dice.randrange(len(headers) + 1), (name, value))
        whole = whole and name.startswith(
            (b"x-request", b"x-session", b"authorization", b"x-api", b"traceparent")
        )
    lines = [f"{wanted.method} {wanted.target} HTTP/1.1".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content, whole


def _chunked(dice: Dice, content: bytes) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    sound, at = True, 0
    while at < len(content):
        piece = content[at : at + dice.choice((1, 10, 1000, 100_000)) or 1]
        at += len(piece)
        size = b"%x" % len(piece)
        if dice.random() < 0.02:
            size, sound = dice.choice(_CHUNK_SIZES), False
        pieces.append(size + b"\r\n" + piece + b"\r\n")
        if len(pieces) > 200:
            pieces.append(b"%x\r\n%b\r\n" % (len(content) - at, content[at:]) if at < len(content) else b"")
            break
    if dice.random() < 0.1:
        return b"".join(pieces) + dice.choice(
            (b"", b"0\r\n", b"0\r\nx: y\r\n\r\n", b"0\r\n" + b"t" * 9000)
        ), False
    return b"".join(pieces) + b"0\r\n\r\n", sound
