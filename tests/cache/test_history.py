"""Measured history comes before the cost model, where there is something to compare; and costs nothing without.

Every timing here is invented: input for what chooses, not a measurement.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing
from cache_engine.gpu.probe import gpu
from cache_engine.gpu.timer import Timing
from cache_engine.insight.explanation import explain
from cache_engine.kernels.prediction import STEADY
from cache_engine.kernels.select import choose, predicted_cycles, ranking
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import GIVEN, TUNED
from tests.helpers import INVENTED_GPU, invented_timing

PROBLEM = GemmProblem(16, 64, 96, dtype=DType.FP16, arch="sm_90")
RANKED = [config for _, config in ranking(PROBLEM, "tensor_core")]
MODELLED, OTHER, THIRD = RANKED[0], RANKED[1], RANKED[2]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """Looks at the timings of the invented GPU, as if it ran on one."""
    with open_cache(tmp_path / "store", durability="fast", timings_of=INVENTED_GPU.name) as opened:
        yield opened


def add(cache: Cache, config: KernelConfig, median_us: float, problem: GemmProblem = PROBLEM, **more: Any) -> None:
    cache.timings.add([invented_timing(problem, config, median_us, **more)])
    cache.selector.forget()


def chosen(cache: Cache, problem: GemmProblem = PROBLEM, **asked: Any) -> tuple[KernelConfig, str]:
    selection = cache.select(problem, **asked)
    return selection.config, selection.config_from


def test_the_ranking_starts_with_the_choice_of_the_cost_model() -> None:
    for m in (1, 16, 300, 4096):
        for dtype in (DType.BF16, DType.FP32):
            problem = GemmProblem(m, 7168, 2048, dtype=dtype, arch="sm_90")
            family, config = choose(problem)
            ranked = ranking(problem, family.name)
            assert ranked[0][1] == config
            rest = [cycles for cycles, _ in ranked[1:]]
            assert rest == sorted(rest)
            assert ranked[0][0] <= rest[0] * (1 + STEADY)
            assert len({config for _, config in ranked}) == len(ranked) > 5


def test_the_fastest_measured_config_serves(cache: Cache) -> None:
    assert chosen(cache) == (MODELLED, "cost model")
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 8.0, config_from=TUNED)
    add(cache, THIRD, 9.0, config_from=GIVEN)
    assert chosen(cache) == (OTHER, "measured on Invented GPU: 8 µs at m = 16")
    kernel = cache.get_or_compile(PROBLEM)
    assert kernel.record.config == OTHER
    assert kernel.config_from == kernel.record.config_from == "measured on Invented GPU: 8 µs at m = 16"
    assert explain(cache, PROBLEM).selection.config_from == kernel.config_from


def test_a_config_that_is_given_stands(cache: Cache) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 8.0)
    assert chosen(cache, config=THIRD) == (THIRD, "given")


def test_problems_that_share_a_kernel_get_the_same_answer(cache: Cache) -> None:
    """Each m of a bucket is as near to what was measured; a dynamic kernel is chosen without."""
    for kind in (Specialisation.BUCKETED, Specialisation.DYNAMIC):
        measured = replace(PROBLEM, m=60, specialisation=kind)
        modelled = cache.select(measured).config
        other = next(config for _, config in ranking(measured, "tensor_core") if config != modelled)
        add(cache, modelled, 10.0, measured)
        add(cache, other, 5.0, measured)
        chosen_for = {cache.select(replace(measured, m=m)).config for m in (33, 48, 60, 64)}
        assert chosen_for == {other if kind is Specialisation.BUCKETED else modelled}
        assert len({cache.select(replace(measured, m=m)).key for m in (33, 48, 60, 64)}) == 1


def test_an_unverified_timing_is_never_used(cache: Cache) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 1.0, verified=False)
    assert chosen(cache)[0] == MODELLED
    add(cache, THIRD, 8.0, measured_at=100.0)
    assert chosen(cache)[0] == THIRD
    add(cache, THIRD, 7.0, measured_at=200.0, verified=False)
    assert chosen(cache)[0] == MODELLED, "its latest result was wrong"


def test_of_a_config_the_latest_timing_counts(cache: Cache) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 5.0, measured_at=100.0)
    add(cache, OTHER, 12.0, measured_at=200.0)
    assert chosen(cache) == (MODELLED, "measured on Invented GPU: 10 µs at m = 16")


def test_one_config_timed_by_hand_is_no_comparison(cache: Cache) -> None:
    """It may be as slow as it will."""
    add(cache, OTHER, 1e6, config_from=GIVEN)
    assert chosen(cache) == (MODELLED, "cost model")
    add(cache, MODELLED, 2e6)
    assert chosen(cache)[0] == OTHER


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, n=72),
        replace(PROBLEM, k=104),
        replace(PROBLEM, batch=2),
        replace(PROBLEM, dtype=DType.BF16, out_dtype=DType.FP16),
        replace(PROBLEM, out_dtype=DType.FP32),
        replace(PROBLEM, layout=Layout.NN),
        replace(PROBLEM, epilogue=Epilogue(bias=True)),
        PROBLEM.on("sm_100"),
        PROBLEM.on("sm_80"),
    ],
    ids=str,
)
def test_timings_of_another_problem_do_not_choose(cache: Cache, other: GemmProblem) -> None:
    add(cache, MODELLED, 10.0, other)
    add(cache, OTHER, 5.0, other)
    assert chosen(cache)[1] == "cost model"
    assert chosen(cache, other)[1].startswith("measured on")


@pytest.mark.parametrize(("m", "near"), [(7, False), (8, True), (16, True), (17, True), (32, True), (33, False)])
def test_m_may_be_off_by_a_factor_of_two(cache: Cache, m: int, near: bool) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 5.0)
    assert chosen(cache, replace(PROBLEM, m=m))[1].startswith("measured on") is near


def test_the_nearest_m_chooses(cache: Cache) -> None:
    for m, config in ((16, OTHER), (24, THIRD)):
        add(cache, MODELLED, 10.0, replace(PROBLEM, m=m))
        add(cache, config, 5.0, replace(PROBLEM, m=m))
    assert [chosen(cache, replace(PROBLEM, m=m))[0] for m in (16, 18, 22, 24)] == [OTHER, OTHER, THIRD, THIRD]


def test_a_family_is_chosen_by_default_only_if_measured_against_the_default_family(cache: Cache) -> None:
    simt = [config for _, config in ranking(PROBLEM, "simt")]
    add(cache, simt[1], 1.0, family="simt")
    assert chosen(cache) == (MODELLED, "cost model")
    add(cache, MODELLED, 10.0)
    assert cache.select(PROBLEM).family.name == "simt"
    assert chosen(cache, family="tensor_core") == (MODELLED, "measured on Invented GPU: 10 µs at m = 16")
    assert chosen(cache, family="simt")[0] == simt[1]


def test_a_compiler_that_was_not_asked_for_serves_only_as_its_familys_own(cache: Cache) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 1.0, compiler="nvcc")
    assert chosen(cache)[0] == MODELLED


def test_a_measured_family_whose_compiler_is_missing_is_skipped(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is said: what serves without it serves."""

    def missing() -> None:
        raise CompilerMissing("Triton is not installed; run: pip install triton")

    monkeypatch.setattr(COMPILERS["triton"], "fingerprint", missing)
    triton = ranking(PROBLEM, "triton")[0][1]
    add(cache, triton, 1.0, family="triton", compiler="triton")
    add(cache, MODELLED, 10.0)
    assert chosen(cache) == (MODELLED, "measured on Invented GPU: 10 µs at m = 16")


def test_triton_serves_in_place_of_hopper_where_it_was_measured_to_be_faster(cache: Cache) -> None:
    problem = replace(PROBLEM, arch="sm_90a")
    hopper, triton = (ranking(problem, family)[0][1] for family in ("hopper", "triton"))
    add(cache, hopper, 10.0, problem, family="hopper")
    assert cache.select(problem).family.name == "hopper"
    add(cache, triton, 5.0, problem, family="triton", compiler="triton")
    assert cache.select(problem).family.name == "triton"
    assert cache.select(replace(problem, m=problem.m * 2)).family.name == "triton"  # near what was timed
    assert cache.select(replace(problem, m=problem.m * 3)).family.name == "hopper"


def test_a_config_that_cannot_be_here_is_skipped(cache: Cache) -> None:
    add(cache, KernelConfig(65536, 65536, 32, 2, 2, 3), 1.0)
    add(cache, MODELLED, 10.0)
    add(cache, THIRD, 1.0, family="no such family")
    assert chosen(cache)[0] == MODELLED


def test_a_key_does_not_change_under_a_process_but_by_its_own_measuring(cache: Cache, tmp_path: Path) -> None:
    add(cache, MODELLED, 10.0)
    before = cache.select(PROBLEM)
    with open_cache(tmp_path / "store", durability="fast", timings_of=INVENTED_GPU.name) as another:
        add(another, OTHER, 5.0)
        assert chosen(another)[0] == OTHER
        assert chosen(cache)[0] == before.config
        assert chosen(cache, replace(PROBLEM, m=17))[0] == before.config


def test_a_timing_stored_by_a_process_counts_from_its_next_choice_on(cache: Cache) -> None:
    """Also where the process has chosen a config of that problem before."""
    kernel = cache.get_or_compile(PROBLEM)
    cache.timings.add([invented_timing(PROBLEM, OTHER, 5.0)])
    assert chosen(cache) == (MODELLED, "cost model")
    assert cache.keep_timing(kernel, Timing(INVENTED_GPU, 10.0, 10.0, 10.0, 1, 1.0, 0.0, True)) is None
    assert chosen(cache) == (OTHER, "measured on Invented GPU: 5 µs at m = 16")


def test_it_can_be_switched_off_and_is_looked_up_by_device(cache: Cache, tmp_path: Path) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 5.0)
    newer = msgspec.structs.replace(INVENTED_GPU, driver="13.9")
    add(cache, THIRD, 4.0, device=newer, measured_at=1e9)
    add(cache, MODELLED, 9.0, device=newer, measured_at=1e9)

    def with_settings(**settings: Any) -> KernelConfig:
        with open_cache(tmp_path / "store", **settings) as opened:
            return chosen(opened)[0]

    assert with_settings(timings_of="invented gpu") == OTHER, "of those with that name, the last measured on"
    assert with_settings(timings_of=INVENTED_GPU.digest()[:8]) == OTHER
    assert with_settings(timings_of=newer.digest()) == THIRD
    assert with_settings(timings_of="none") == MODELLED
    assert with_settings() == MODELLED, "no invented GPU is in this machine"


def test_a_device_without_timings_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_cache(tmp_path / "store", durability="fast", timings_of="H9000") as cache:
        add(cache, MODELLED, 10.0)
        for m in (1, 2, 3):
            assert chosen(cache, replace(PROBLEM, m=m))[1] == "cost model"
    assert caplog.text.count("there are no timings of 'H9000'") == 1


@pytest.mark.skipif(isinstance(gpu(), DeviceFingerprint), reason="is about machines without a GPU")
def test_without_a_gpu_there_is_no_history_unless_a_device_is_named(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        add(cache, MODELLED, 10.0)
        add(cache, OTHER, 5.0)
        assert chosen(cache) == (MODELLED, "cost model")


def test_damaged_history_leaves_the_cost_model(cache: Cache) -> None:
    add(cache, MODELLED, 10.0)
    add(cache, OTHER, 5.0)
    cache.timings.close()
    for path in cache.layout.timings.iterdir():
        path.write_bytes(os.urandom(500))
    cache.selector.forget()
    assert chosen(cache) == (MODELLED, "cost model")


def test_without_timings_a_process_looks_once_whether_there_are_any(tmp_path: Path) -> None:
    """And asks no driver for its GPU."""
    code = (
        "import sys, os\nfrom pathlib import Path\n"
        "from cache_engine import GemmProblem, open_cache\n"
        "with open_cache(sys.argv[1]) as cache:\n"
        "    seen = []\n"
        "    sys.addaudithook(lambda name, arguments: seen.append((name, str(arguments))))\n"
        "    looks = []\n    is_dir = Path.is_dir\n"
        "    Path.is_dir = lambda self: (looks.append(str(self)), is_dir(self))[1]\n"
        "    for m in range(1, 200):\n"
        "        cache.select(GemmProblem(m, 64, 64, arch='sm_90'))\n"
        "    print([Path(look).name for look in looks if look.startswith(sys.argv[1])])\n"
        "    print([name for name, text in seen if f'{sys.argv[1]}/timings' in text])\n"
        "    asked = sys.modules['cache_engine.gpu.probe'].gpu.cache_info().currsize\n"
        "    print(asked > 0, 'cache_engine.store.results' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True)
    assert done.stdout == "['timings']\n[]\nFalse False\n", done.stderr


def test_timings_of_some_problems_correct_the_choice_for_others(tmp_path: Path) -> None:
    """A tile that was slower than predicted for several problems is not chosen where another is nearly as good."""
    measured = [GemmProblem(m, 64, 96, dtype=DType.FP16, arch="sm_90") for m in (16, 40, 100, 250, 600, 1500)]
    other = GemmProblem(64, 4096, 4096, dtype=DType.FP16, arch="sm_90")
    with open_cache(tmp_path / "store", durability="fast", timings_of=INVENTED_GPU.name) as cache:
        before = cache.select(other)
        assert before.config_from == "cost model"
        slow = (before.config.block_m, before.config.block_n)
        timings = []
        for problem in measured:
            for _, config in ranking(problem, "tensor_core"):
                factor = 3.0 if (config.block_m, config.block_n) == slow else 1.0
                cycles = predicted_cycles(problem, "tensor_core", config)
                timings.append(invented_timing(problem, config, factor * cycles / 1000))
        cache.timings.add(timings)
        cache.selector.forget()
        after = cache.select(other)
        points = cache.selector.turning_points(replace(other, m=1), 4096, None, None)
        chosen_at = {m: cache.select(replace(other, m=m)).config for m in range(1, 300)}
    assert after.config_from == "cost model"
    assert (after.config.block_m, after.config.block_n) != slow
    assert {m for m in range(2, 300) if chosen_at[m] != chosen_at[m - 1]} <= set(points)
