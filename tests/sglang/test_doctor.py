"""Doctor before a real SGLang: every fact it tells, and the tokenizer it was given."""

import asyncio
from io import StringIO

from proxy.doctor.examination import Examination, examine
from proxy.doctor.finding import Level
from proxy.doctor.text import report
from proxy.settings import load_settings
from tests.sglang.server import SGLangServer


def examined(server: SGLangServer, **settings: str) -> Examination:
    chosen = load_settings({"PROXY_BACKENDS": server.base_url, **settings})
    return asyncio.run(examine(chosen, seconds=30.0, progress=StringIO()))


def test_a_real_server_is_told_in_full_and_finds_nothing_wrong(server: SGLangServer) -> None:
    found = examined(server)
    text = report(found)
    print(f"\n{text}")
    assert not found.count(Level.TROUBLE)
    assert f"{server.pool:,} tokens (1 DP rank)" in text
    assert "/v1/loads works (used)" in text
    assert "aborts are allowed" in text
    assert "2 of 64K, 1 of 180K" in text
    assert "vocabulary        not known" not in text
    assert "does not say" not in text


def test_the_servers_own_tokenizer_counts_as_it_does(server: SGLangServer) -> None:
    found = examined(server, PROXY_TOKENIZER_PATH=str(server.tokenizer_path))
    text = report(found)
    assert not found.count(Level.TROUBLE)
    assert "all 10 probes are counted as the server counts them" in text
