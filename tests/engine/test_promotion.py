"""What is asked for and missing is compiled before a request waits, if that pays."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.engine.cache import Cache, open_cache
from cache_engine.engine.demand.promoter import Promoter
from cache_engine.engine.demand.promotion import PROMOTION, SPECULATION, plan_promotion, promote
from cache_engine.engine.demand.times import LaunchTimes
from cache_engine.model.asked import Shape
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.upkeep.plan import Limits
from tests.cli.test_cli import run

ASKED = GemmProblem(16, 96, 64, dtype=DType.FP32, arch="sm_90")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "store", compile_slots=2)


def test_an_evicted_kernel_that_is_asked_for_is_compiled_again(cache: Cache) -> None:
    first = cache.get_or_compile(ASKED)
    other = cache.get_or_compile(replace(ASKED, n=48))
    assert plan_promotion(cache).candidates == ()
    cache.clean(Limits(keys=frozenset({first.key})))

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
    cache.clean(Limits(keys=frozenset({first.key})))

    [candidate] = plan_promotion(cache).candidates
    assert candidate.instead == cache.select(floor).name
    assert candidate.time_from == "predicted"
    times, shape = LaunchTimes(()), Shape.of(asked)
    gain_us = times.of_kernel(shape, 512, cache.select(floor)).us - times.of_kernel(shape, 512, cache.select(asked)).us
    assert candidate.value.saved_s == pytest.approx(24 * gain_us / 1e6, rel=0.01, abs=1e-12)
    assert candidate.value.wait_chance == 0


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
    cache.clean(Limits(everything=True))
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


def test_the_background_compiles_what_pays_and_ends_with_the_cache(cache: Cache) -> None:
    key = cache.get_or_compile(ASKED).key
    cache.clean(Limits(everything=True))
    promoter = Promoter(cache, interval_s=20.0)
    assert promoter.work(None) == 20.0
    assert list(cache.store.keys()) == [key]
    promoter.close()
    assert promoter.work(None) is None


def test_a_setting_starts_it(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as plain:
        key = plain.get_or_compile(ASKED).key
        plain.clean(Limits(everything=True))
    with open_cache(tmp_path / "store", promote_every_min=0.05) as cache:
        until = time.monotonic() + 60
        while next(cache.store.keys(), None) is None and time.monotonic() < until:
            time.sleep(0.1)
        assert list(cache.store.keys()) == [key]


def test_the_command_prints_the_sum_and_compiles(tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_cache(tmp_path / "empty").close()
    assert run("promote", store=tmp_path / "empty").stdout.startswith("no request has been counted yet")
    assert run("compile", 16, 96, 64, "--dtype", "fp32", "--arch", "sm_90", store=store).returncode == 0
    assert run("clean", "--all", store=store).returncode == 0

    listed = run("promote", "--dry-run", store=store)
    assert listed.returncode == 0, listed.stderr
    assert "1 kernel asked for, 1 of them missing" in listed.stdout
    assert "waits" in listed.stdout
    dry = json.loads(run("promote", "--dry-run", "--json", store=store).stdout)
    assert (dry["compiled"], dry["rows"][0]["taken"], dry["rows"][0]["instead"]) == (None, True, None)
    assert dry["rows"][0]["pays_back_after_launches"] == 1
    done = json.loads(run("promote", "--json", store=store).stdout)
    assert (done["compiled"], done["failed"]) == (1, [])
    assert json.loads(run("stats", "--json", store=store).stdout)["entries"] == 1
    refused = run("promote", "--every", "5", "--json", store=store)
    assert refused.returncode == 2
    assert "--json prints one document" in refused.stderr
