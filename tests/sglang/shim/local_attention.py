"""Attention over the last tokens only, so that a prompt costs time in proportion to its length.

SGLang's PyTorch backend computes the whole prefix again for each prefill chunk: minutes for 64K
tokens on two cores. The words a random model says do not matter here, so each query looks at the
`WINDOW` tokens before it. Keys, values, slots and the request table are used as SGLang laid them.
"""

from typing import Any

import torch  # type: ignore[import-not-found]
from torch.nn.functional import scaled_dot_product_attention  # type: ignore[import-not-found]

WINDOW = 128
BLOCKS_AT_ONCE = 64  # bounds the memory of a large chunk


def extend(
    self: Any,
    query: Any,
    output: Any,
    k_cache: Any,
    v_cache: Any,
    req_to_token: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    extend_prefix_lens: Any,
    extend_seq_lens: Any,
    encoder_lens: Any = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Any:
    """Prefill: replaces `TorchNativeAttnBackend._run_sdpa_forward_extend` of SGLang 0.5.23."""
    at = 0
    sizes = zip(req_pool_indices.tolist(), extend_prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    for row, prefix, fresh in sizes:
        slots = req_to_token[row, : prefix + fresh]
        for start in range(0, fresh, WINDOW * BLOCKS_AT_ONCE):
            end = min(fresh, start + WINDOW * BLOCKS_AT_ONCE)
            part = query[at + start : at + end]
            output[at + start : at + end] = _blocks(
                part, k_cache, v_cache, slots, prefix + start, scaling, enable_gqa
            )
        at += fresh
    return output


def _blocks(
    query: Any, k_cache: Any, v_cache: Any, slots: Any, position: int, scaling: float | None, gqa: bool
) -> Any:
    """Blocks of WINDOW queries, the first at `position`; each sees its own block and the one before."""
    tokens, heads, width = query.shape
    blocks = -(-tokens // WINDOW)
    padded = query.new_zeros(blocks * WINDOW, heads, width)
    padded[:tokens] = query
    steps = torch.arange(2 * WINDOW)
    first_key = position - WINDOW + torch.arange(blocks).unsqueeze(1) * WINDOW
    key_position = first_key + steps
    exists = (key_position >= 0) & (key_position < slots.shape[0])
    where = slots[key_position.clamp(0, slots.shape[0] - 1)].long()
    query_step = torch.arange(WINDOW).unsqueeze(1)
    near = (steps <= query_step + WINDOW) & (steps > query_step)
    attended = scaled_dot_product_attention(
        padded.view(blocks, WINDOW, heads, width).transpose(1, 2),
        k_cache[where].to(query.dtype).transpose(1, 2),
        v_cache[where].to(query.dtype).transpose(1, 2),
        attn_mask=(near.unsqueeze(0) & exists.unsqueeze(1)).unsqueeze(1),
        scale=scaling,
        enable_gqa=gqa,
    )
    return attended.transpose(1, 2).reshape(blocks * WINDOW, heads, -1)[:tokens]


def decode(
    self: Any,
    query: Any,
    output: Any,
    k_cache: Any,
    v_cache: Any,
    req_to_token: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    encoder_lens: Any = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Any:
    """One token each: replaces `TorchNativeAttnBackend._run_sdpa_forward_decode` of SGLang 0.5.23."""
    key_position = (seq_lens - WINDOW).unsqueeze(1) + torch.arange(WINDOW)
    where = req_to_token[req_pool_indices.unsqueeze(1), key_position.clamp_min(0)].long()
    attended = scaled_dot_product_attention(
        query.unsqueeze(2),
        k_cache[where].to(query.dtype).transpose(1, 2),
        v_cache[where].to(query.dtype).transpose(1, 2),
        attn_mask=(key_position >= 0)[:, None, None, :],
        scale=scaling,
        enable_gqa=enable_gqa,
    )
    output.copy_(attended.squeeze(2))
    return output
