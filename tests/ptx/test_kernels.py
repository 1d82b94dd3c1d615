"""What NVRTC makes of the templates computes C = A · B, executed instruction by instruction."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache_engine.device.launch import from_stored
from cache_engine.engine.cache import open_cache
from cache_engine.kernels.family import check_config
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig
from tests.ptx.problems import CASES, Case, check, kernel_of, launched, loaded_as, ptx_of, source_of

# Which cases a short run takes; said when it fails.
_SEED = int(os.environ.get("SAMPLE_SEED") or time.time() // 86_400)
_PARTS, _IN_PART = 6, 3
_SOAK_PARTS = 24
SMALL = KernelConfig(16, 64, 64, 1, 2, 3)


@pytest.mark.parametrize("part", range(_PARTS))
def test_kernels_multiply(part: int) -> None:
    """A sample of the cases, another one each day."""
    sample = random.Random(_SEED).sample(CASES, _PARTS * _IN_PART)
    for case in sample[part::_PARTS]:
        print(f"SAMPLE_SEED={_SEED} takes the same: {case}")
        check(case)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_every_kind_of_kernel_multiplies(part: int) -> None:
    for case in CASES[part::_SOAK_PARTS]:
        print(case)
        check(case)


def test_the_cases_are_what_the_families_offer() -> None:
    """Every type of every family, with every layout, width of reads, specialisation and epilogue; all are feasible."""
    for case in CASES:
        check_config(case.family, case.problem, case.config, architecture(case.problem.arch or ""))
    for name in ("tensor_core", "simt"):
        cases = [case.problem for case in CASES if case.family.name == name]
        assert {problem.dtype for problem in cases} == set(FAMILIES[name].flops_per_clock)
        for dtype in FAMILIES[name].flops_per_clock:
            of_type = [problem for problem in cases if problem.dtype is dtype]
            assert len({(problem.layout, problem.k, problem.specialisation) for problem in of_type}) == 4 * 6 * 4
            assert dtype is DType.INT8 or len({(problem.layout, problem.epilogue) for problem in of_type}) >= 4 * 11


@pytest.mark.parametrize(
    "problem", [GemmProblem(40, 72, 96, arch="sm_90"), GemmProblem(9, 7, 5, dtype="fp64", arch="sm_80")]
)
def test_the_store_keeps_what_is_executed_here(problem: GemmProblem, tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        kernel = cache.get_or_compile(problem)
        stored = cache.text(kernel.record, "ptx")
    family, config = choose(problem)
    assert config == kernel.record.config
    case = Case(family, problem, config)
    assert stored == ptx_of(source_of(case), problem.arch or "")
    check(case)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", ["tensor_core", "simt"])
def test_every_config_offered_multiplies(name: str, dtype: DType) -> None:
    """Each config of the lists once, on a problem of its own that leaves no tile whole."""
    family = FAMILIES[name]
    if dtype not in family.flops_per_clock:
        pytest.skip(f"{name} does not compute {dtype}")
    for number, config in enumerate(family.configs(GemmProblem(1, 1, 1, dtype=dtype))):
        m, n, k = config.block_m + 8, config.block_n + 24, 2 * config.block_k + 8
        problem = GemmProblem(m, n, k, dtype=dtype, layout=list(Layout)[number % 4], arch="sm_90a")
        if family.shape_fault(problem, config) is None:
            case = Case(family, problem, config)
            print(case)
            check(case)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16, DType.TF32, DType.FP32, DType.FP64])
def test_nan_and_infinity_go_where_they_go_in_numpy(dtype: DType) -> None:
    problem = GemmProblem(20, 40, 24, dtype=dtype, arch="sm_90")
    family, config = choose(problem)
    config = SMALL if family.name == "tensor_core" else KernelConfig(16, 32, 32, 1, 1, 2)
    config = replace(config, block_k=128 // problem.dtype.itemsize) if family.name == "tensor_core" else config
    case = Case(family, problem, config)
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-2, 3, shape).astype(np.float32) for shape in ((1, 20, 24), (1, 24, 40)))
    a[0, 3, 5], a[0, 7, 1], b[0, 2, 9], b[0, 4, 4], b[0, 23, 39] = np.nan, np.inf, -np.inf, np.inf, np.nan
    kernel = kernel_of(case)
    computed = from_stored(launched(problem, kernel, loaded_as(case, kernel), a, b), problem.output, "float64")
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(computed, expected, equal_nan=True)
    assert np.isnan(computed).sum() >= 20 + 40 - 1
    assert np.isinf(computed).any()
