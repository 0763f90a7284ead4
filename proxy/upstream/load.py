"""What a reading of a server's load says."""

from proxy.admission.types import LoadSample


def work_seen(sample: LoadSample) -> int | None:
    """Prompt tokens the scheduler has ever been given: those prefilled and those still to do."""
    if sample.prefill_tokens_total is None or sample.waiting_uncached_tokens is None:
        return None
    return sample.prefill_tokens_total + sample.waiting_uncached_tokens


def is_idle(sample: LoadSample) -> bool:
    """Nothing runs, waits or holds tokens. "0 running, 0 waiting" alone may be a prefill."""
    return not (sample.running or sample.waiting or sample.waiting_uncached_tokens or sample.used_tokens)
