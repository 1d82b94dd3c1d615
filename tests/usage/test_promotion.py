"""Promotion: what a compile costs, and when a better kernel takes over and steps back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.usage.payback import price_s, stays_promoted


def test_the_price_grows_with_the_queue_and_shrinks_with_slots() -> None:
    assert price_s(0.2) == 0.2
    assert price_s(0.2, waiting=3, slots=1) == pytest.approx(0.8)
    assert price_s(0.2, waiting=3, slots=3) == pytest.approx(0.4)
    assert price_s(0.2, gpu_s_per_s=0.5) == pytest.approx(0.1)


@given(st.lists(st.floats(0.51, 0.99), min_size=1), st.booleans())
def test_demand_that_varies_below_the_price_changes_nothing(forecasts: list[float], promoted: bool) -> None:
    assert all(stays_promoted(promoted, forecast, 1.0) == promoted for forecast in forecasts)


def test_a_kernel_is_promoted_at_its_price_and_demoted_below_half_of_it() -> None:
    assert stays_promoted(False, 1.0, 1.0)
    assert not stays_promoted(False, 0.99, 1.0)
    assert stays_promoted(True, 0.5, 1.0)
    assert not stays_promoted(True, 0.49, 1.0)
