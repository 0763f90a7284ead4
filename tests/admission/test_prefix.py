from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.prefix import PrefixLedger
from proxy.admission.types import Segment

CHAIN = tuple(Segment(bytes([i]) * 16, 600) for i in range(4))


def test_a_second_request_pays_for_its_own_copy_until_the_first_has_computed_it() -> None:
    ledger = PrefixLedger()
    ledger.acquire(CHAIN)
    assert ledger.acquire(CHAIN) == (True,) * 4
    assert ledger.charged_tokens == 2 * 2400


def test_a_request_rides_along_once_the_prefix_is_ready() -> None:
    ledger = PrefixLedger()
    ledger.acquire(CHAIN)
    ledger.mark_ready(CHAIN)
    assert ledger.acquire(CHAIN) == (False,) * 4
    assert ledger.charged_tokens == 2400


def test_the_charge_passes_to_the_rider_when_the_payer_ends_first() -> None:
    ledger = PrefixLedger()
    paying = ledger.acquire(CHAIN)
    ledger.mark_ready(CHAIN)
    riding = ledger.acquire(CHAIN)
    ledger.release(CHAIN, paying)
    assert ledger.charged_tokens == 2400
    ledger.release(CHAIN, riding)
    assert ledger.charged_tokens == 0
    assert len(ledger) == 0


def test_a_longer_prompt_rides_on_what_is_shared_and_pays_for_the_rest() -> None:
    ledger = PrefixLedger()
    ledger.acquire(CHAIN[:2])
    ledger.mark_ready(CHAIN[:2])
    assert ledger.ready(CHAIN) == (2, 1200)
    assert ledger.acquire(CHAIN) == (False, False, True, True)
    assert ledger.charged_tokens == 2400


def test_a_hold_is_counted_apart_and_becomes_the_next_turns_charge() -> None:
    ledger = PrefixLedger()
    paying = ledger.acquire(CHAIN)
    ledger.mark_ready(CHAIN)
    ledger.hold(CHAIN)
    assert ledger.release(CHAIN, paying) == []
    assert (ledger.charged_tokens, ledger.held_tokens) == (0, 2400)
    next_turn = ledger.acquire(CHAIN)
    assert (ledger.charged_tokens, ledger.held_tokens) == (2400, 0)
    assert ledger.drop(CHAIN) == []
    assert [s.key for s in ledger.release(CHAIN, next_turn)] == [s.key for s in CHAIN]
    assert (ledger.charged_tokens, ledger.held_tokens, len(ledger)) == (0, 0, 0)


def test_what_was_never_computed_does_not_count_as_cached_afterwards() -> None:
    ledger = PrefixLedger()
    assert ledger.release(CHAIN, ledger.acquire(CHAIN)) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30), st.randoms())
def test_any_order_of_release_ends_at_exactly_zero(starts: list[tuple[int, bool]], random: object) -> None:
    ledger = PrefixLedger()
    held: list[tuple[tuple[Segment, ...], tuple[bool, ...]]] = []
    for depth, ready in starts:
        segments = CHAIN[:depth]
        held.append((segments, ledger.acquire(segments)))
        if ready:
            ledger.mark_ready(segments)
    random.shuffle(held)  # type: ignore[attr-defined]
    for segments, paying in held:
        ledger.release(segments, paying)
        assert ledger.charged_tokens >= 0
    assert ledger.charged_tokens == 0
    assert len(ledger) == 0
