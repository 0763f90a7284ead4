"""Every body field and header that this SGLang reads is known here: it steers the engine, or it may pass.

Read from the installed source, so that a new version cannot bring a field that nobody has judged.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.api.headers import forwarded
from proxy.upstream.sglang import STEERING
from tests.sglang.install import ensure

REQUESTS = {
    "managers/io_struct.py": ("GenerateReqInput",),
    "entrypoints/openai/protocol.py": (
        "PDRoutingFields",
        "CompletionRequest",
        "ChatCompletionRequest",
        "EmbeddingRequest",
        "ScoringRequest",
        "V1RerankReqInput",
        "ResponsesRequest",
        "ClassifyRequest",
    ),
    "entrypoints/anthropic/protocol.py": ("AnthropicMessagesRequest",),
}

#: What a client may say: the prompt and what is counted of it, sampling, and the shape of its own answer.
_PASSING = """
    model messages prompt text input input_ids instructions query documents items system suffix instruct
    image_data video_data audio_data modalities use_audio_in_video video_config images_config
    mm_processor_kwargs max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch
    tools tool_choice parallel_tool_calls max_tool_calls chat_template_kwargs reasoning reasoning_effort
    thinking task continue_final_message truncation previous_response_id
    sampling_params max_tokens max_completion_tokens max_output_tokens min_tokens n best_of echo stop
    stop_sequences stop_token_ids stop_regex no_stop_trim ignore_eos seed temperature top_p top_k min_p
    frequency_penalty presence_penalty repetition_penalty logit_bias regex ebnf json_schema response_format
    custom_params skip_special_tokens watermark require_reasoning max_thinking_tokens
    lora_path extra_key cache_salt
    stream stream_options logprobs top_logprobs return_logprob logprob_start_len top_logprobs_num
    token_ids_logprob return_sampling_mask sampling_logprobs_mode return_text_in_logprobs
    return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64
    return_routed_experts routed_experts_start_len return_indexer_topk return_cached_tokens_details
    return_spec_tokens_details return_token_ids return_prompt_token_ids return_meta_info
    return_input_ids_in_sglext return_output_ids_in_sglext return_bytes return_entropy separate_reasoning
    stream_reasoning encoding_format dimensions label_token_ids apply_softmax return_token_logprobs
    item_first return_pooled_hidden_states score_extraction_token top_n return_documents
    embed_override_token_id embed_overrides query_embed_overrides item_embed_overrides
    user metadata include store service_tier output_config betas log_metrics no_logs custom_labels
"""
MAY_PASS = frozenset(_PASSING.split())
HEADERS_MAY_PASS = frozenset(
    {
        "content-type",
        "x-smg-routing-key",  # names the conversation, here as there
        "x-sglext-return-input-ids",
        "x-sglext-return-output-ids",
        "x-sglext-ids-framed",
    }
)
_HEADER = re.compile(r'headers(?:\(scope=scope\))?\.get\(\s*"([a-z0-9-]+)"', re.IGNORECASE)


@pytest.fixture(scope="module")
def source() -> Path:
    """The folder of `sglang/srt`."""
    (found,) = ensure().python.parents[1].glob("lib/python3*/site-packages/sglang/srt")
    return found


def fields(path: Path, names: tuple[str, ...]) -> Iterator[str]:
    """The annotated fields of some classes of one module."""
    classes = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}
    for name in names:
        for node in classes[name].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


@pytest.mark.parametrize("module", REQUESTS)
def test_every_field_of_a_request_steers_or_may_pass(source: Path, module: str) -> None:
    found = {name for name in fields(source / module, REQUESTS[module]) if not name.startswith("_")}
    assert len(found) > 10
    assert found - STEERING.keys() - MAY_PASS == set(), "nobody has said what these may do"


def test_no_field_is_listed_twice() -> None:
    assert MAY_PASS & STEERING.keys() == set()


def test_every_header_that_is_read_is_dropped_or_may_pass(source: Path) -> None:
    modules = (source / "entrypoints").rglob("*.py")
    found = {name.lower() for path in modules for name in _HEADER.findall(path.read_text())}
    found |= set(
        re.findall(r'"(x-override-[a-z-]+)"', (source / "entrypoints/request_headers.py").read_text())
    )
    assert {"x-data-parallel-rank", "x-override-rid", "x-body-compressed"} <= found
    passing = {name for name in found if forwarded([(name.encode(), b"1")], authorization=False)}
    assert passing - HEADERS_MAY_PASS == set(), "nobody has said what these may do"
