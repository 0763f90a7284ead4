"""Requests that are wrong get a clear 4xx in OpenAI's shape, and a server that they could kill lives on."""

import json
import urllib.error
import urllib.request

import pytest

from tests.load.process import http_status
from tests.load.proxy import ProxyServer
from tests.sglang.server import MODEL_NAME, SGLangServer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": " hello"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"model": MODEL_NAME, "messages": HELLO, "max_tokens": 2} | fields).encode()


def completion(**fields: object) -> bytes:
    return json.dumps({"model": MODEL_NAME, "prompt": " hello", "max_tokens": 2} | fields).encode()


WRONG = {
    "not JSON": (CHAT, b"{"),
    "not an object": (CHAT, b"[]"),
    "not UTF-8": (CHAT, b'{"model": "\xff"}'),
    "no messages": (CHAT, b'{"model": "tiny"}'),
    "messages of another type": (CHAT, chat(messages=7)),
    "nested 100,000 deep": (CHAT, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "half a surrogate pair": (CHAT, b'{"messages":[{"role":"user","content":"\\ud83d"}]}'),
    "negative max_tokens": (CHAT, chat(max_tokens=-1)),
    "a token id outside the vocabulary": (COMPLETIONS, completion(prompt=[5, 4096])),
    "a negative token id": (COMPLETIONS, completion(prompt=[-1])),
}
ODD_BUT_RIGHT = {
    "an unknown field": chat(no_such_field={"a": 1}),
    "two sequences": chat(n=2),
    "no max_tokens beside a stop": chat(max_tokens=None, stop=[" "], min_tokens=0, logit_bias={"2": 100}),
}


def post(address: str, path: str, body: bytes) -> tuple[int, object]:
    request = urllib.request.Request(address + path, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_gets_a_4xx_that_says_what_is_wrong(
    case: str, proxy: ProxyServer, server: SGLangServer
) -> None:
    path, body = WRONG[case]
    status, answer = post(proxy.base_url, path, body)
    assert 400 <= status < 500, answer
    assert isinstance(answer, dict)
    error = answer.get("error", answer)  # SGLang's own errors are flat
    assert error["message"]
    assert http_status(server.base_url + "/ready") == 200
    assert not any(proxy.settled_ledger(5).values())


@pytest.mark.parametrize("case", ODD_BUT_RIGHT)
def test_an_odd_but_right_request_is_served(case: str, proxy: ProxyServer) -> None:
    status, answer = post(proxy.base_url, CHAT, ODD_BUT_RIGHT[case])
    assert status == 200, answer
    assert not any(proxy.settled_ledger(5).values())


def test_a_prompt_that_never_fits_is_refused_with_both_numbers(
    proxy: ProxyServer, server: SGLangServer
) -> None:
    text = server.vocabulary.chat_text(2 * server.pool, seed=1)
    status, answer = post(proxy.base_url, CHAT, chat(messages=[{"role": "user", "content": text}]))
    assert status == 400
    assert isinstance(answer, dict)
    assert answer["error"]["code"] == "context_length_exceeded"
    assert not any(proxy.settled_ledger(5).values())


def test_ten_megabytes_of_one_character_get_an_answer(proxy: ProxyServer, server: SGLangServer) -> None:
    status, answer = post(
        proxy.base_url, CHAT, chat(messages=[{"role": "user", "content": "a" * 10_000_000}])
    )
    assert status in {200, 400}, answer
    assert http_status(server.base_url + "/ready") == 200
