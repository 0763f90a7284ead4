from proxy.admission.reservation import COLD_RESERVE_TOKENS, Reservation
from proxy.admission.types import Request


def request(max_tokens: int | None = None, **more: object) -> Request:
    return Request("r", 1000, max_tokens, **more)  # type: ignore[arg-type]


def test_before_outputs_were_seen_the_reserve_is_the_engines_own_clip() -> None:
    assert Reservation(0.8, 8192).reserve_tokens(request()) == COLD_RESERVE_TOKENS


def test_max_tokens_bounds_the_reserve_and_zero_is_legal() -> None:
    assert Reservation(0.8, 4096).reserve_tokens(request(150)) == 150
    assert Reservation(0.8, 4096).reserve_tokens(request(0)) == 0


def test_the_reserve_is_the_quantile_of_what_this_tenant_produced() -> None:
    reservation = Reservation(0.8, 4096)
    for tokens in range(100, 1100, 100):
        reservation.learn(request(), tokens)
    assert reservation.reserve_tokens(request()) == 900
    assert reservation.reserve_tokens(request(tenant="other")) == COLD_RESERVE_TOKENS


def test_what_a_request_guarantees_is_reserved_whatever_was_seen() -> None:
    reservation = Reservation(0.8, 256)
    assert reservation.reserve_tokens(request(8192, min_tokens=6000)) == 6000
    assert reservation.reserve_tokens(request(500, ignore_eos=True)) == 500


def test_a_stream_that_outgrows_its_reserve_gets_steps_up_to_max_tokens() -> None:
    reservation = Reservation(0.8, 4096)
    assert reservation.grown_tokens(request(), 100, 1000) == 1000
    assert reservation.grown_tokens(request(), 950, 1000) == 1206
    assert reservation.grown_tokens(request(1100), 950, 1000) == 1100


def test_old_outputs_are_forgotten() -> None:
    reservation = Reservation(0.5, 4096)
    for _ in range(300):
        reservation.learn(request(), 2000)
    for _ in range(300):
        reservation.learn(request(), 10)
    assert reservation.reserve_tokens(request()) == 10
