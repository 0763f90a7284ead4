"""Makes the tiny model as slow as a large one: sleeps inside the forward pass.

The scheduler, its batches and its queue stay SGLang's own; only the time a step takes is another.
`SGLANG_CPU_PACE` names a preset or gives its four numbers, `SGLANG_CPU_SPEEDUP` divides them.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a prefill of n tokens at depth d: n (token + depth (d + n/2)); of a decode step over
    s resident tokens: step + resident s. The real work of two cores counts towards both.
    """

    prefill_token: float
    prefill_token_depth: float
    decode_step: float
    decode_resident_token: float

    def prefill_seconds(self, fresh: int, prefix: int) -> float:
        return fresh * (self.prefill_token + self.prefill_token_depth * (prefix + fresh / 2))

    def decode_seconds(self, resident_tokens: int) -> float:
        return self.decode_step + self.decode_resident_token * resident_tokens


PRESETS = {
    # An 8B bf16 model on one H200: 64K tokens 3.2 s, 180K 19 s.
    "h200-8b": Pace(17.6e-6, 0.977e-9, 2.0e-3, 4.7e-8),
    # Two RTX 6000: 6,900 prefill tokens/s whatever the depth.
    "rtx6000-tp2": Pace(1 / 6900, 0.0, 4.0e-3, 6.0e-8),
}


def configured(environ: Mapping[str, str] = os.environ) -> Pace | None:
    """The pace the environment asks for; None: as fast as the machine can."""
    name = environ.get("SGLANG_CPU_PACE", "")
    if not name:
        return None
    base = PRESETS.get(name) or Pace(*(float(part) for part in name.split(",")))
    speedup = float(environ.get("SGLANG_CPU_SPEEDUP", "1"))
    return Pace(
        base.prefill_token / speedup,
        base.prefill_token_depth / speedup,
        base.decode_step / speedup,
        base.decode_resident_token / speedup,
    )


def slow_down(backend: Any, pace: Pace) -> None:
    """Wraps the two forward methods of an attention backend class; the first layer pays for all."""
    backend.forward_extend = _paced(backend.forward_extend, lambda batch: _prefill_seconds(pace, batch))
    backend.forward_decode = _paced(
        backend.forward_decode, lambda batch: pace.decode_seconds(int(batch.seq_lens.sum()))
    )


def _prefill_seconds(pace: Pace, batch: Any) -> float:
    sizes = zip(batch.extend_seq_lens.tolist(), batch.extend_prefix_lens.tolist(), strict=True)
    return sum(pace.prefill_seconds(fresh, prefix) for fresh, prefix in sizes)


def _paced(forward: Callable[..., Any], seconds: Callable[[Any], float]) -> Callable[..., Any]:
    def paced(backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, **more: Any) -> Any:
        started = time.perf_counter()
        result = forward(backend, q, k, v, layer, forward_batch, **more)
        if layer.layer_id == 0:
            time.sleep(max(0.0, started + seconds(forward_batch) - time.perf_counter()))
        return result

    return paced
