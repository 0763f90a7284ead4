"""Stands in for SGLang's compiled kernels, of which no CPU build is published.

On a CPU without AMX every layer takes SGLang's plain PyTorch path, so nothing here is called for a
dense model, but several modules import names that end in `_cpu`. Those names exist and raise when
called; all other names are absent, as in a build without them.
"""

from typing import Any, NoReturn

__version__ = "0.0.0+cpu"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, *_: Any
) -> None:
    """Writes each request's newly allocated KV slots into its row of the request table."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Any:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} has no CPU build here, and a plain dense model needs none")

    absent.__name__ = name
    return absent
