"""The kernels of a server during a replay, all invented: what waits, what is compiled behind, what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replay.kernels import Kernels, Operation
from benchmarks.replay.machines import Adaptive, Compiling, Counting, Fixed, Renting, threshold_s
from benchmarks.replay.optimum import optimum
from benchmarks.replay.policies import POLICIES, Start, ahead
from cache_engine.usage.demand import Sketch

MOST = 16
LAUNCHES = 2
# Kernels × m: the floor, one that is fast for small m, one for large.
SECONDS = np.array([[0.0, *[1.0] * 16], [0.0, *[0.5] * 8, *[2.0] * 8], [0.0, *[0.9] * 8, *[0.4] * 8]])
BEST = np.array([0, *[1] * 8, *[2] * 8])
OPERATION = Operation("invented", LAUNCHES, ((128, 64, 1), (16, 64, 1), (128, 128, 1)), SECONDS, BEST, BEST, BEST, 0)
KERNELS = Kernels((OPERATION,), (), "invention")
INSTANT = Compiling(1e-9, "invention", gpu_s_per_s=1e9)
"""A kernel costs one GPU second, and is there at once."""
FOREVER = math.inf


def fixed(**given: object) -> Fixed:
    return Fixed(KERNELS, [BEST], [BEST], SECONDS[BEST, np.arange(MOST + 1)], Compiling(0.25, ""), **given)  # type: ignore[arg-type]


def test_a_fixed_machine_waits_once_for_each_kernel() -> None:
    machine = fixed()
    ran = [machine.run(m, 3, 0.0, FOREVER) for m in (1, 2, 9, 1)]
    assert [one.stall_s for one in ran] == [0.25, 0.0, 0.25, 0.0]
    assert [one.step_s for one in ran] == [0.5, 0.5, 0.4, 0.5]
    account = machine.account
    assert (account.before, account.waited, account.behind, account.compiled) == (0, 2, 0, 2)
    assert (account.served_late, account.served_best) == (2, 4 * 3 * LAUNCHES - 2)
    assert machine.tiles() == {(0, 1), (0, 2)}


def test_what_is_ready_or_stored_is_not_waited_for() -> None:
    machine = fixed(ready={(0, 1), (0, 2)}, stored={(0, 2)})
    assert [machine.run(m, 1, 0.0, FOREVER).stall_s for m in (1, 9)] == [0.0, 0.0]
    assert (machine.account.before, machine.account.waited) == (1, 0)


@given(st.integers(1, 50), st.floats(0, 30))
def test_no_second_step_starts_when_someone_has_arrived(most: int, until: float) -> None:
    ran = fixed(ready={(0, 1)}).run(1, most, 0.0, until)
    assert 1 <= ran.steps <= most
    assert ran.steps == 1 or (ran.steps - 1) * ran.step_s < until
    assert ran.steps == most or ran.steps * ran.step_s >= until


def test_an_adaptive_machine_serves_with_the_fastest_kernel_there_is() -> None:
    assert Adaptive(KERNELS, INSTANT).run(1, 1, 0.0, FOREVER).step_s == 1.0
    assert Adaptive(KERNELS, INSTANT, stored={(0, 2)}).run(1, 1, 0.0, FOREVER).step_s == 0.9
    assert Adaptive(KERNELS, INSTANT, ready={(0, 1), (0, 2)}).run(1, 1, 0.0, FOREVER).step_s == 0.5


def test_a_compile_behind_takes_its_time_and_a_slot() -> None:
    machine = Adaptive(KERNELS, Compiling(10.0, "", slots=1))
    machine.ask((0, 1), 0.0)
    machine.ask((0, 2), 0.0)
    machine.ask((0, 1), 1.0)
    assert machine.pending == {(0, 1), (0, 2)}
    assert machine.run(1, 100, 5.0, FOREVER).steps == 5, "it runs up to the end of the compile"
    assert machine.run(1, 1, 10.0, FOREVER).step_s == 0.5
    assert machine.run(9, 1, 19.0, FOREVER).step_s == 1.0
    assert machine.run(9, 1, 20.0, FOREVER).step_s == 0.4
    assert (machine.account.behind, machine.pending) == (2, set())


def test_with_two_slots_two_are_compiled_at_once() -> None:
    machine = Adaptive(KERNELS, Compiling(10.0, "", slots=2))
    machine.ask((0, 1), 0.0)
    machine.ask((0, 2), 0.0)
    assert [machine.run(m, 1, 10.0, FOREVER).step_s for m in (1, 9)] == [0.5, 0.4]


def test_counting_compiles_at_400_launches_of_one_m() -> None:
    machine = Counting(KERNELS, Compiling(1000.0, ""))
    for _ in range(7):
        machine.run(1, 28, 0.0, FOREVER)
    assert machine.account.steps_at[1] * LAUNCHES == 392
    assert machine.pending == set()
    machine.run(2, 3, 0.0, FOREVER)
    assert machine.pending == set()
    machine.run(1, 4, 0.0, FOREVER)
    assert machine.pending == {(0, 1)}


@given(st.lists(st.tuples(st.integers(1, MOST), st.integers(1, 5)), max_size=40))
def test_renting_costs_at_most_twice_the_optimum_where_no_two_kernels_compete(runs: list[tuple[int, int]]) -> None:
    """But for the regret of the run in which it buys, which is paid before it can know."""
    seconds = np.array([[0.0, *[1.0] * 16], [0.0, *[0.5] * 8, *[2.0] * 8], [0.0, *[2.0] * 8, *[0.4] * 8]])
    kernels = Kernels((Operation("invented", 1, OPERATION.tiles, seconds, BEST, BEST, BEST, 0),), (), "")
    machine = Renting(kernels, INSTANT)
    now = 0.0
    for m, most in runs:
        ran = machine.run(m, most, now, FOREVER)
        now += 1 + ran.steps * ran.step_s
    steps = np.array(machine.account.steps_at, dtype=np.float64)
    lost_s = (seconds - seconds.min(axis=0)) * steps
    spent_s = machine.account.gpu_s - float(steps @ seconds.min(axis=0)) + len(machine.pending) + machine.account.behind
    best = optimum(lost_s, np.array([0.0, 1.0, 1.0]))
    overshoot_s = 2 * 5 * 0.6
    assert spent_s <= 2 * best.cost_s + overshoot_s
    if best.cost_s < 1:
        assert machine.account.behind + len(machine.pending) <= len(best.chosen)


def test_renting_buys_no_second_kernel_for_what_the_first_has_solved() -> None:
    """The kernel for large m is a little faster for small ones too; its losses are computed again without them."""
    machine = Renting(KERNELS, INSTANT)
    now = 0.0
    for _ in range(50):
        ran = machine.run(1, 1, now, FOREVER)
        now += 1 + ran.step_s
    assert machine.account.stored == {(0, 1)}
    for _ in range(50):
        ran = machine.run(9, 1, now, FOREVER)
        now += 1 + ran.step_s
    assert machine.account.stored == {(0, 1), (0, 2)}


def test_a_longer_queue_raises_the_price() -> None:
    """The second kernel must lose twice as much while the first is being compiled."""
    machine = Renting(KERNELS, Compiling(1.0, ""))
    machine.ask((0, 1), 0.0)
    machine.changed()
    losses = 0
    while len(machine.pending) < 2:
        machine.consider(9, 1, 0.0)
        machine.account.steps_at[9] += 1
        losses += 1
    assert losses * 0.6 == pytest.approx(2.4)


def test_ahead_compiles_what_a_profile_makes_worth_its_price() -> None:
    profile = Sketch()
    profile.add(1, 3.0)
    assert ahead(KERNELS, INSTANT, Start(profile=profile)) == [(0, 1)]
    profile.add(9, 1.0)
    assert ahead(KERNELS, INSTANT, Start(profile=profile)) == [(0, 1)], "0.6 s do not pay for 1 s"
    profile.add(9, 1.0)
    assert ahead(KERNELS, INSTANT, Start(profile=profile)) == [(0, 1), (0, 2)]
    assert ahead(KERNELS, INSTANT, Start(profile=profile, budget_s=1e-9)) == [(0, 1)]
    assert ahead(KERNELS, INSTANT, Start(profile=profile, stored=frozenset({(0, 1)}))) == [(0, 2)]
    assert ahead(KERNELS, INSTANT, Start(profile=Sketch())) == []


def test_without_a_profile_every_octave_counts_alike() -> None:
    assert set(ahead(KERNELS, INSTANT, Start(horizon_s=1000.0))) == {(0, 1), (0, 2)}
    assert ahead(KERNELS, INSTANT, Start(horizon_s=0.1)) == []


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_makes_a_machine_that_serves_every_m(name: str) -> None:
    machine = POLICIES[name].machine(KERNELS, INSTANT, Start())
    assert all(machine.run(m, 1, float(m), FOREVER).step_s > 0 for m in range(1, MOST + 1))
    before = {"exact": 0, "warm": 2, "warm-best": 2, "capture": 5, "powers": 5, "counts": 0, "ours": 2}
    assert machine.account.before == before[name]


def test_captured_sizes_are_padded() -> None:
    """M = 9 runs as 16, which is no slower here than 9; m = 3 as 4."""
    machine = POLICIES["capture"].machine(KERNELS, INSTANT, Start())
    assert machine.run(3, 1, 0.0, FOREVER).step_s == 0.5
    assert machine.tiles() == {(0, 1), (0, 2)}


@given(st.floats(0.01, 50), st.floats(0, 1000), st.floats(0.05, 1.0), st.floats(0, 1000))
def test_a_forecast_costs_at_most_what_is_proved_of_it(price: float, regret: float, trust: float, said: float) -> None:
    """Of a regret that comes in small parts, with a forecast that is right, and with any."""
    for forecast, bound in ((regret, 1 + trust), (said, 1 + 1 / trust)):
        threshold = threshold_s(price, forecast, trust)
        spent = threshold + price if regret >= threshold else regret
        assert spent <= bound * min(regret, price) * (1 + 1e-9)
