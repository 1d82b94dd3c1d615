"""What is asked for and missing is compiled before a request waits, if that pays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.demand.promotion import note, plan_promotion, promote
from cache_engine.cache.demand.times import LaunchTimes
from cache_engine.cache.queue import Priority
from cache_engine.cache.selection import Request, Selection
from cache_engine.insight.explanation import explain
from cache_engine.model.decision import DEMOTION, PROMOTION, SPECULATION
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.model.shapes import Shape
from cache_engine.upkeep.plan import ORDERS, Limits
from tests.cli.test_cli import run
from tests.helpers import INVENTED_GPU, invented_timing

ASKED = GemmProblem(16, 96, 64, dtype=DType.FP32, arch="sm_90")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "store", compile_slots=2)


def test_an_evicted_kernel_that_is_asked_for_is_compiled_again(cache: Cache) -> None:
    first = cache.get_or_compile(ASKED)
    other = cache.get_or_compile(replace(ASKED, n=48))
    assert plan_promotion(cache).candidates == ()
    cache.admin.clean(Limits(keys=frozenset({first.key})))

    plan = plan_promotion(cache)
    [candidate] = plan.candidates
    assert (candidate.kind, candidate.selection.key, candidate.m, candidate.instead) == (PROMOTION, first.key, 16, "")
    # One request, as if it was of the last hour; 24 more are expected in a day, so one is as good as sure.
    assert candidate.value.launches == pytest.approx(24, rel=0.01)
    assert candidate.value.wait_chance == pytest.approx(1 - math.exp(-24), rel=0.01)
    assert candidate.value.net_s == pytest.approx(candidate.value.compile_s, rel=1e-6)
    assert plan.asked_kernels == 2
    assert promote(cache, plan.within()) == []
    assert set(cache.store.keys()) == {first.key, other.key}
    assert plan_promotion(cache).candidates == ()
    assert cache.demand.ledger().total == pytest.approx(2, rel=0.01), "compiling ahead is no demand"


def test_what_a_kernel_saves_over_the_one_that_serves_is_predicted_for_both(cache: Cache) -> None:
    asked = GemmProblem(512, 4096, 4096, arch="sm_90a")
    floor = replace(asked, specialisation=Specialisation.DYNAMIC)
    cache.get_or_compile(floor)
    first = cache.get_or_compile(asked)
    cache.admin.clean(Limits(keys=frozenset({first.key})))

    [candidate] = plan_promotion(cache).candidates
    assert candidate.instead == cache.select(floor).name
    assert candidate.time_from == "predicted"
    times, shape = LaunchTimes(()), Shape.of(asked)
    gain_us = times.of_kernel(shape, 512, cache.select(floor)).us - times.of_kernel(shape, 512, cache.select(asked)).us
    assert candidate.value.saved_s == pytest.approx(24 * gain_us / 1e6, rel=0.01, abs=1e-12)
    assert candidate.value.wait_chance == 0


def test_a_packs_kernel_serves_in_place_of_a_missing_one(cache: Cache, tmp_path: Path) -> None:
    asked = GemmProblem(512, 4096, 4096, arch="sm_90a")
    floor = cache.get_or_compile(replace(asked, specialisation=Specialisation.DYNAMIC))
    cache.admin.export(tmp_path / "floor.gemmpack")
    with open_cache(tmp_path / "other", packs=(tmp_path / "floor.gemmpack",)) as other:
        other.journal.asked(asked)
        [candidate] = plan_promotion(other).candidates
    assert candidate.instead == floor.record.name


def test_no_stand_in_is_looked_for_where_no_kernel_of_a_shape_is_there(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes milliseconds to select; a plan for 100 shapes of 64 sizes took longer than 8 s of CPU time."""
    there = cache.get_or_compile(ASKED).key
    cache.journal.asked(replace(ASKED, specialisation=Specialisation.EXACT))
    for n in range(8, 80, 8):
        cache.journal.asked(replace(ASKED, n=n))
    looked: list[int] = []
    seen: list[int] = []
    look = cache.stand_ins.look

    def noted(asked: Request) -> Iterator[Selection]:
        looked.append(asked[0].n)
        return look(asked)

    monkeypatch.setattr(cache.stand_ins, "look", noted)
    found = {
        one.selection.problem.n: one.instead for one in plan_promotion(cache, on_size=lambda: seen.append(1)).candidates
    }
    assert looked == [ASKED.n]
    assert len(seen) == len(found) + 1
    assert found == {**dict.fromkeys(range(8, 80, 8), ""), ASKED.n: cache.store.find(there).name}


def test_the_other_shapes_of_a_model_are_speculation(cache: Cache) -> None:
    """Three of the five shapes of Qwen3-0.6B."""
    for n, k in ((4096, 1024), (1024, 2048), (6144, 1024)):
        cache.get_or_compile(GemmProblem(16, n, k, arch="sm_90a"))
    plan = plan_promotion(cache)
    assert plan.model == "Qwen3-0.6B"
    assert {one.kind for one in plan.candidates} == {SPECULATION}
    assert {(one.selection.problem.n, one.selection.problem.k) for one in plan.candidates} == {
        (1024, 3072), (151_936, 1024),
    }  # fmt: skip
    # As often as the others, times the share of the model that was asked for.
    assert plan.candidates[0].value.launches == pytest.approx(24 * 3 / 5, rel=0.01)


def test_a_budget_is_kept_and_what_cannot_be_compiled_is_said(cache: Cache) -> None:
    keys = {cache.get_or_compile(replace(ASKED, n=n)).key for n in (48, 96, 160)}
    cache.admin.clean(Limits(everything=True))
    plan = plan_promotion(cache)
    assert {one.selection.key for one in plan.candidates} == keys
    assert plan.within(0) == []
    one_s = plan.candidates[0].value.compile_s
    assert len(plan.within(1.5 * one_s)) == 1
    cache.close()
    with open_cache(cache.layout.root, enable_jit=False) as unable:
        [(candidate, why)] = promote(unable, plan.within(1.5 * one_s))
        assert candidate.selection.key in keys
        assert "compiling is switched off" in str(why)


def test_the_command_prints_the_sum_and_compiles(tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_cache(tmp_path / "empty").close()
    assert run("demand", "--promote", store=tmp_path / "empty").stdout.startswith("no request has been counted yet")
    assert run("compile", 16, 96, 64, "--dtype", "fp32", "--arch", "sm_90", store=store).returncode == 0
    assert run("clean", "--yes", "--all", store=store).returncode == 0

    listed = run("demand", "--promote", "--dry-run", store=store)
    assert listed.returncode == 0, listed.stderr
    assert "1 kernel asked for, 1 of them missing" in listed.stdout
    assert "waits" in listed.stdout
    dry = json.loads(run("demand", "--promote", "--dry-run", "--json", store=store).stdout)
    assert (dry["compiled"], dry["rows"][0]["taken"], dry["rows"][0]["instead"]) == (None, True, None)
    assert dry["rows"][0]["pays_back_after_launches"] == 1
    done = json.loads(run("demand", "--promote", "--json", store=store).stdout)
    assert (done["compiled"], done["failed"]) == (1, [])
    assert json.loads(run("stats", "--json", store=store).stdout)["entries"] == 1
    refused = run("demand", "--promote", "--every", "5", "--json", store=store)
    assert refused.returncode == 2
    assert "--json prints one document" in refused.stderr


# ---- Exact kernels: every timing here is invented, input for what decides and never a claim about speed ----

TIMED = GemmProblem(16, 64, 96, arch="sm_90")
EXACT = replace(TIMED, specialisation=Specialisation.EXACT)


@pytest.fixture
def timed(tmp_path: Path) -> Cache:
    """A cache that chooses by the timings of a device; the kernel for any m is there, and was asked for 100 times."""
    cache = open_cache(tmp_path / "store", compile_slots=2, timings_of=INVENTED_GPU.name)
    for _ in range(100):
        cache.get_or_compile(TIMED)
    return cache


def _time(cache: Cache, problem: GemmProblem, median_us: float, measured_at: float = 1_790_000_000.0) -> None:
    """Stores a timing of what is selected for a problem."""
    s = cache.select(problem)
    family, compiler = s.family.name, s.compiler.name
    cache.timings.add(
        [invented_timing(problem, s.config, median_us, family=family, compiler=compiler, measured_at=measured_at)]
    )
    cache.selector.forget()
    cache.exact_kernels.forget()


def test_an_exact_kernel_that_was_measured_to_be_faster_is_promoted_and_serves(timed: Cache) -> None:
    general = timed.select(TIMED)
    _time(timed, EXACT, 100.0)
    assert plan_promotion(timed).candidates == (), "one time is no difference"
    _time(timed, TIMED, 1000.0)
    plan = plan_promotion(timed)
    [candidate] = plan.candidates
    assert (candidate.selection.key, candidate.instead) == (timed.select(EXACT).key, general.name)
    assert (candidate.kind, candidate.m, candidate.time_from) == (PROMOTION, 16, "measured")
    assert candidate.value.saved_s == pytest.approx(candidate.value.launches * 900e-6, rel=1e-6)
    assert candidate.value.wait_chance == 0
    assert plan.within() == [candidate]
    assert timed.get_or_compile(TIMED).key == general.key, "nothing is compiled before"

    assert promote(timed, plan.within()) == []
    for kernel in (timed.get_to_launch(TIMED), timed.get_or_compile(TIMED, wait_ms=0)):
        assert (kernel.key, kernel.problem, kernel.better) == (candidate.selection.key, TIMED, None)
        assert kernel.record.problem.specialisation == "exact"
    assert explain(timed, TIMED).selection.key == general.key
    assert explain(timed, TIMED).notes == (
        f"matmul and operators launch {candidate.selection.name} for this m: it was measured to be faster",
    )
    assert plan_promotion(timed).candidates == ()
    assert [shape.specialisation for shape in timed.demand.ledger().sketches] == ["nk"], "demand is as it was asked"
    [noted] = timed.admin.decisions(kinds=[PROMOTION])
    assert (noted.key, noted.reason) == (candidate.selection.key, "saves GPU time")
    other = timed.get_to_launch(replace(TIMED, m=17))
    assert other.key == general.key, "it was measured at one m"


def test_who_may_launch_it_for_another_m_gets_the_kernel_that_serves_every_m(timed: Cache) -> None:
    """An exact kernel gives wrong results for any other m."""
    _time(timed, EXACT, 100.0)
    _time(timed, TIMED, 1000.0)
    general = timed.select(TIMED)
    exact = timed.get_or_compile(EXACT)
    assert timed.get_to_launch(TIMED).key == exact.key
    assert timed.get_or_compile(TIMED).key == general.key
    assert timed.get_or_compile(TIMED, priority=Priority.WARM).key == general.key
    assert timed.get_or_compile(TIMED, config=general.config).key == general.key
    assert timed.get_or_compile(TIMED, force=True).key == general.key


def test_once_it_is_evicted_the_kernel_for_any_m_serves_and_none_is_compiled(timed: Cache) -> None:
    _time(timed, EXACT, 100.0)
    _time(timed, TIMED, 1000.0)
    promote(timed, plan_promotion(timed).within())
    root = timed.layout.root
    timed.close()
    with open_cache(root, timings_of=INVENTED_GPU.name, memory_bytes=0) as cache:
        exact = cache.get_to_launch(TIMED)
        assert exact.key != cache.select(TIMED).key
        cache.admin.clean(Limits(keys=frozenset({exact.key})))
        after = cache.get_to_launch(TIMED)
        assert (after.key, after.tier) == (cache.select(TIMED).key, "disk")
        assert [one.selection.key for one in plan_promotion(cache).candidates] == [exact.key], (
            "and it is promoted again"
        )


def test_a_slower_exact_kernel_is_left_alone(timed: Cache) -> None:
    exact = timed.get_or_compile(EXACT)
    _time(timed, EXACT, 1000.0)
    _time(timed, TIMED, 999.0)
    assert timed.get_to_launch(TIMED).key != exact.key
    assert plan_promotion(timed).candidates == ()


def test_an_exact_kernel_is_demoted_when_timings_no_longer_favour_it(timed: Cache) -> None:
    _time(timed, EXACT, 100.0)
    _time(timed, TIMED, 1000.0)
    promote(timed, plan_promotion(timed).within())
    assert plan_promotion(timed).changes == ()
    _time(timed, TIMED, 99.0, measured_at=1_790_000_001.0)
    [change] = plan_promotion(timed).changes
    assert (change.kind, change.key, change.forecast_s) == (DEMOTION, timed.select(EXACT).key, 0.0)
    assert timed.get_to_launch(TIMED).key == timed.select(TIMED).key


def test_what_saves_less_than_half_of_its_price_is_demoted_and_promoted_again_at_its_price(cache: Cache) -> None:
    """Between the two nothing changes. With a request in the last hour, one comes in time t with 1 - exp(-t / 1 h)."""
    key = cache.get_or_compile(ASKED).key
    cache.admin.clean(Limits(keys=frozenset({key})))
    promote(cache, plan_promotion(cache).within())

    def kinds(chance: float) -> list[str]:
        return [one.kind for one in plan_promotion(cache, -3600 * math.log(1 - chance)).changes]

    # Expected: twice the compile with that chance, for a price of the compile.
    assert kinds(0.26) == []
    [change] = plan_promotion(cache, -3600 * math.log(1 - 0.24)).changes
    assert (change.kind, change.key) == (DEMOTION, key)
    assert change.forecast_s == pytest.approx(0.48 * change.price_s, rel=0.01)
    note(cache.journal, [change])
    assert kinds(0.24) == kinds(0.49) == []
    assert kinds(0.51) == [PROMOTION]
    [noted] = cache.admin.decisions(kinds=[DEMOTION])
    assert (noted.key, noted.reason) == (key, "saves less than half of its price")
    note(cache.journal, plan_promotion(cache).changes)
    assert kinds(0.24) == [DEMOTION]


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_demoted_is_evicted_first(cache: Cache, order: str) -> None:
    key = cache.get_or_compile(ASKED).key
    cache.admin.clean(Limits(keys=frozenset({key})))
    promote(cache, plan_promotion(cache).within())
    other = cache.get_or_compile(replace(ASKED, n=48)).key
    for _ in range(3):
        cache.get_or_compile(ASKED)
    limits = Limits(max_entries=1, order=order)
    assert [victim.key for victim in cache.admin.clean(limits, dry_run=True).victims] == [other]
    note(cache.journal, plan_promotion(cache, 1.0).changes)
    assert [victim.key for victim in cache.admin.clean(limits, dry_run=True).victims] == [key]
    cache.admin.pin(key)
    assert [victim.key for victim in cache.admin.clean(limits, dry_run=True).victims] == [other]


def test_what_is_promoted_and_asked_for_no_more_is_demoted(cache: Cache) -> None:
    key = cache.get_or_compile(ASKED).key
    cache.admin.clean(Limits(everything=True))
    first = plan_promotion(cache)
    note(cache.journal, first.changes)
    assert promote(cache, first.within(math.inf)) == []
    note(cache.journal, plan_promotion(cache, 1.0).changes)
    assert [one.key for one in cache.admin.decisions(kinds=[DEMOTION])] == [key]
    stats = cache.stats()
    assert (stats.totals.promotions, stats.totals.demotions) == (1, 1)
    assert (stats.last_24h.compiles, stats.last_24h.promotions, stats.last_24h.demotions) == (2, 1, 1)
