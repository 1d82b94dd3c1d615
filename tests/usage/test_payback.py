"""What a kernel is worth, as arithmetic that can be checked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.usage.payback import Use, payback

HOUR_S = 3600.0


def test_a_faster_kernel_saves_its_gain_at_each_launch() -> None:
    one = payback([Use(16, per_s=10.0, present_s=50e-6, better_s=30e-6)], compile_s=0.2, price_s=0.3, horizon_s=HOUR_S)
    assert one.launches == pytest.approx(36_000)
    assert one.saved_s == pytest.approx(0.72)
    assert one.wait_chance == one.spared_s == 0
    assert one.net_s == pytest.approx(0.72 - 0.3)
    assert one.pays_back_after == 15_000
    assert one.pays_back_in_s == pytest.approx(1500)


def test_a_kernel_that_a_request_would_wait_for_is_worth_its_compile_if_one_is_likely() -> None:
    """Compiling ahead costs nothing more if it will be asked for, and spares the wait."""
    sure = payback([Use(16, per_s=1.0, present_s=None, better_s=30e-6)], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    assert sure.wait_chance == pytest.approx(1.0)
    assert sure.net_s == pytest.approx(0.2)
    assert sure.pays_back_after == 1
    at_odds = payback([Use(16, math.log(2) / HOUR_S, None, None)], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    assert at_odds.wait_chance == pytest.approx(0.5)
    assert at_odds.net_s == pytest.approx(0.0)


def test_what_is_no_faster_never_pays_back() -> None:
    same = payback([Use(16, 1.0, 30e-6, 30e-6)], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    slower = payback([Use(16, 1.0, 30e-6, 40e-6)], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    unknown = payback([Use(16, 1.0, 30e-6, None)], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    unasked = payback([], compile_s=0.2, price_s=0.2, horizon_s=HOUR_S)
    for one in (same, slower, unknown, unasked):
        assert one.pays_back_after == one.pays_back_in_s == math.inf
        assert one.net_s < 0
    assert slower.net_s < same.net_s == unknown.net_s == unasked.net_s == -0.2


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0)), max_size=6),
    st.floats(0.01, 100),
    st.floats(1, 1e6),
)
def test_several_sizes_are_worth_the_sum_of_each(
    sizes: list[tuple[float, float, float]], compile_s: float, horizon_s: float
) -> None:
    uses = [Use(m, *size) for m, size in enumerate(sizes, 1)]
    together = payback(uses, compile_s, compile_s, horizon_s)
    each = [payback([use], compile_s, compile_s, horizon_s) for use in uses]
    magnitude = math.fsum(use.per_s for use in uses) * horizon_s
    assert together.saved_s == pytest.approx(math.fsum(one.saved_s for one in each), rel=1e-9, abs=1e-9 * magnitude)
    assert together.launches == pytest.approx(math.fsum(one.launches for one in each))
