"""Promotion: ski rental keeps its bound on every sequence, and sums are the sums they say they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.policy.promotion import (
    Rental,
    net_gain_s,
    pays_back_after,
    price_s,
    rental_cost_s,
    stays_promoted,
    threshold_s,
)

REGRETS = st.lists(st.floats(0, 3), max_size=60)
PRICES = st.floats(0.01, 50)


@given(PRICES, st.floats(0, 1000), st.floats(0.05, 1.0), st.floats(0, 1000))
def test_a_forecast_costs_at_most_what_is_proved_of_it(price: float, regret: float, trust: float, said: float) -> None:
    """Of a regret that comes in small parts, with a forecast that is right, and with any."""
    for forecast, bound in ((regret, 1 + trust), (said, 1 + 1 / trust)):
        threshold = threshold_s(price, forecast, trust)
        spent = threshold + price if regret >= threshold else regret
        assert spent <= bound * min(regret, price) * (1 + 1e-9)


@given(REGRETS, PRICES)
def test_ski_rental_never_pays_more_than_twice_the_best_decision_in_hindsight(
    regrets: list[float], price: float
) -> None:
    optimum = min(math.fsum(regrets), price)
    assert rental_cost_s(regrets, price) <= 2 * optimum * (1 + 1e-9)


@given(REGRETS, PRICES)
def test_ski_rental_pays_what_waiting_costs_where_buying_never_pays(regrets: list[float], price: float) -> None:
    total = math.fsum(regrets)
    if total < price * (1 - 1e-9):
        assert rental_cost_s(regrets, price) == pytest.approx(total)
    else:
        assert rental_cost_s(regrets, price) >= price * (1 - 1e-9)


def test_the_bound_of_two_is_reached_when_demand_ends_as_it_buys() -> None:
    """So a rule that buys earlier or later has a worse sequence, not a better bound."""
    price, step = 1.0, 0.001
    assert rental_cost_s([step] * 1000, price) == pytest.approx(2 * price, rel=0.01)


def test_a_rental_adds_up_what_it_paid() -> None:
    rental = Rental().after(0.4).after(0.5)
    assert rental.paid_s == pytest.approx(0.9)
    assert not rental.buys(0.05, 1.0)
    assert rental.buys(0.2, 1.0)


@given(st.floats(1e-6, 1), st.floats(1e-6, 1), PRICES)
def test_a_kernel_has_earned_its_price_after_as_many_launches_as_it_says(
    present: float, better: float, price: float
) -> None:
    launches = pays_back_after(present, better, price)
    if better >= present:
        assert launches == math.inf
        assert net_gain_s(1e9, present, better, price) < 0
    else:
        tolerance = 1e-6 * price + 1e-9
        assert net_gain_s(launches, present, better, price) >= -tolerance
        assert net_gain_s(launches - 1, present, better, price) <= tolerance


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
