"""What NVRTC makes of the templates computes C = A · B, executed instruction by instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.compilers.base import Cuda
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.gpu.fp8 import dequantise, quantise, scaled
from cache_engine.gpu.launch import Operands, from_stored
from cache_engine.kernels.family import check_config
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout, Mode, Scales
from cache_engine.model.kernel import KernelConfig
from tests.device import numpy_gpu
from tests.faults.counting import report
from tests.helpers import of_today
from tests.ptx import grouped, hopper_problems
from tests.ptx.faults import Fault
from tests.ptx.grouped import GroupedCase, case_of, wrong_in_groups
from tests.ptx.machine import Kernel
from tests.ptx.problems import (
    CASES,
    EPILOGUES,
    Case,
    difference_of,
    expected_of,
    kernel_of,
    launched,
    loaded_as,
    operands_of,
    ptx_of,
    source_of,
    what_is_wrong,
)

# All cases of a kind of kernel, and how many of them make test takes.
SETS: dict[str, tuple[Sequence[Case], int]] = {
    "blocks": (CASES, 12),
    "groups": (grouped.CASES, 4),
    "hopper": (hopper_problems.PLAIN, 3),
    "hopper with scales": (hopper_problems.SCALED, 2),
    "hopper with slices": (hopper_problems.SLICED, 2),
    "hopper with clusters": (hopper_problems.CLUSTERED, 1),
}
_SOAK_PARTS = 24
SMALL = KernelConfig(16, 64, 64, 1, 2, 3)
WIDE = KernelConfig(64, 128, 16, 2, 2, 2)
SCALED_FAMILIES = [
    ("scaled", "sm_90", KernelConfig(16, 64, 128, 1, 2, 3)),
    ("hopper", "sm_90a", KernelConfig(64, 128, 128, 4, 1, 2)),
]


@pytest.mark.parametrize("name", SETS)
def test_kernels_multiply(name: str) -> None:
    """A sample of the cases, another one each day."""
    assert _wrong(of_today(*SETS[name])) == {}


@pytest.mark.soak
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
@pytest.mark.parametrize("name", SETS)
def test_every_kind_of_kernel_multiplies(name: str, part: int) -> None:
    assert _wrong(SETS[name][0][part::_SOAK_PARTS]) == {}


def _wrong(cases: Sequence[Case]) -> dict[str, str]:
    """Those whose C is wrong, and how."""
    found = {}
    for number, case in enumerate(cases):
        print(case)
        found[str(case)] = (
            wrong_in_groups(case) if isinstance(case, GroupedCase) else what_is_wrong(case, blocks=2 + number % 2 * 2)
        )
    report({"trials": len(cases)})
    return {case: wrong for case, wrong in found.items() if wrong}


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_what_cuda_12_makes_multiplies(count: int) -> None:
    """A sample for sm_70, which CUDA 13 does not have, and as many for others of what the machine reads of CUDA 12."""
    compiler = Nvrtc(cuda=Cuda((12,)))
    cases = [case for case in CASES if case.problem.dtype in (DType.BF16, DType.FP16, DType.FP32)]
    turing = of_today([case for case in cases if case.problem.arch == "sm_75"], count)
    volta = [replace(case, problem=replace(case.problem, arch="sm_70")) for case in turing]
    for case in (*volta, *of_today(cases, count)):
        print(case)
        ptx = compiler.compile(source_of(case), case.arch.replace("sm_", "compute_")).ptx
        assert b"release 12.9" in ptx
        assert not what_is_wrong(case, Kernel(ptx.decode()))


def test_the_ptx_of_every_family_is_executed_or_it_is_interpreted() -> None:
    cases = [case for some, _ in SETS.values() for case in some]
    for case in cases:
        check_config(case.family, case.problem, case.config, architecture(case.arch))
    executed = {case.family.name for case in cases}
    assert executed | {"triton"} == FAMILIES.keys()  # by Triton's own interpreter: tests/kernels/test_triton.py
    assert all(FAMILIES[name].template.endswith(".cu") for name in executed)


def test_the_cases_are_what_the_families_offer() -> None:
    """Every type of every family, with every layout, width of reads, specialisation and epilogue; all are feasible."""
    scaled = [case.problem for case in CASES if case.family.name == "scaled"]
    kinds = {(problem.scales, problem.dtype, problem.k, problem.specialisation) for problem in scaled}
    assert len(kinds) == 4 * 2 * 4 * 4
    assert len({problem.epilogue for problem in scaled}) == len(EPILOGUES)
    for name in ("tensor_core", "simt"):
        cases = [case.problem for case in CASES if case.family.name == name]
        assert {problem.dtype for problem in cases} == set(FAMILIES[name].flops_per_clock)
        for dtype in FAMILIES[name].flops_per_clock:
            of_type = [problem for problem in cases if problem.dtype is dtype]
            assert len({(problem.layout, problem.k, problem.specialisation) for problem in of_type}) == 4 * 6 * 4
            assert dtype is DType.INT8 or len({(problem.layout, problem.epilogue) for problem in of_type}) >= 4 * 11


def test_the_cases_of_groups_are_what_the_family_offers() -> None:
    problems = [one.problem for one in grouped.CASES]
    assert len({(p.dtype, p.mode, p.scales, p.layout) for p in problems}) == 6 * 2 * 2 + 2 * 2 * 4
    assert {DType.BF16, DType.FP8_E5M2} < {problem.dtype for problem in problems}
    assert {one.counts for one in grouped.CASES} == set(grouped.COUNTS.values())
    assert {mode for mode in Mode if mode} == {problem.mode for problem in problems}


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
    assert not what_is_wrong(case)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", ["tensor_core", "scaled", "simt"])
def test_every_config_offered_multiplies(name: str, dtype: DType) -> None:
    """Each config of the lists once, on a problem of its own that leaves no tile whole."""
    family = FAMILIES[name]
    if dtype not in family.flops_per_clock:
        pytest.skip(f"{name} does not compute {dtype}")
    tried = 0
    kinds = [GemmProblem(1, 1, 128, dtype=dtype, scales=one) for one in Scales if bool(one) == (name == "scaled")]
    for number, config in enumerate(dict.fromkeys(config for kind in kinds for config in family.configs(kind))):
        m, n, k = config.block_m + 8, config.block_n + 24, 2 * config.block_k + 8
        problem = GemmProblem(m, n, k, dtype=dtype, layout=list(Layout)[number % 4], arch="sm_90a")
        if name == "scaled":
            problem = GemmProblem(m, n, 384, dtype=dtype, arch="sm_90a", scales=list(Scales)[1 + number % 4])
        if family.shape_fault(problem, config) is None:
            case = Case(family, problem, config)
            print(case)
            assert not what_is_wrong(case)
            tried += 1
    report({"trials": tried})


@pytest.mark.parametrize(
    ("name", "dtype", "config"),
    [
        ("tensor_core", "bf16", SMALL),
        ("tensor_core", "fp16", SMALL),
        ("tensor_core", "tf32", replace(SMALL, block_k=32)),
        ("simt", "fp32", KernelConfig(16, 32, 32, 1, 1, 2)),
        ("simt", "fp64", KernelConfig(16, 32, 32, 1, 1, 2)),
        ("hopper", "bf16", KernelConfig(64, 64, 64, 4, 1, 2)),
    ],
)
def test_nan_and_infinity_go_where_they_go_in_numpy(name: str, dtype: Any, config: KernelConfig) -> None:
    """Also through ReLU, which returns NaN for NaN."""
    relu = dtype in ("bf16", "fp64")
    problem = GemmProblem(20, 40, 24, dtype=dtype, arch="sm_90a", epilogue="relu" if relu else "")
    case = Case(FAMILIES[name], problem, config)
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-2, 3, shape).astype(np.float32) for shape in ((1, 20, 24), (1, 24, 40)))
    a[0, 3, 5], a[0, 7, 1], b[0, 2, 9], b[0, 4, 4], b[0, 23, 39] = np.nan, np.inf, -np.inf, np.inf, np.nan
    kernel = kernel_of(case)
    computed = from_stored(launched(problem, kernel, loaded_as(case, kernel), a, b), problem.output, "float64")
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(computed, np.maximum(expected, 0) if relu else expected, equal_nan=True)
    assert np.isnan(computed).sum() >= 20 + 40 - 1
    assert np.isinf(computed).any()


def _on_gpu(operand: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An operand for reading, of which a tensor map can be made."""
    operand.flags.writeable = False
    return operand.view(numpy_gpu.Array)


@pytest.mark.parametrize(("family", "arch", "config"), SCALED_FAMILIES)
def test_quantised_matrices_multiply_within_the_bounds_of_their_formats(
    family: str, arch: str, config: KernelConfig
) -> None:
    """Of ordinary numbers: the kernel is off by fp32's rounding alone, and quantising by what fp8's may cost."""
    problem = GemmProblem(20, 140, 256, dtype="fp8_e4m3", out_dtype="fp32", scales="1x128,128x128", arch=arch)
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(shape) * np.exp(generator.standard_normal((shape[0], 1)) * 4)
            for shape in ((20, 256), (140, 256)))  # fmt: skip
    (a_codes, a_scales), (b_codes, b_scales) = quantise(a, problem.scales), quantise(b, problem.scales, of_b=True)
    case = Case(FAMILIES[family], problem, config)
    c = np.full((20, 140), np.nan, dtype=np.float32).view(numpy_gpu.Array)
    loaded_as(case, kernel_of(case))(
        Operands(_on_gpu(a_codes), _on_gpu(b_codes), c, a_scales=a_scales, b_scales=b_scales)
    )
    near_a = dequantise(a_codes, a_scales, problem.scales, dtype=problem.dtype)
    near_b = dequantise(b_codes, b_scales, problem.scales, of_b=True, dtype=problem.dtype)
    sums, size = near_a @ near_b.T, np.abs(near_a) @ np.abs(near_b).T
    # A sum of 128 products is rounded once a step of 32, then multiplied by a rounded scale, and added.
    assert np.all(np.abs(c - sums) <= 2**-24 * (4 + 2 + 2) * 1.001 * size)
    off_a = np.maximum(2**-4 * np.abs(a), 2**-10 * scaled(np.ones_like(a), a_scales)) * (1 + 2**-20)
    off_b = np.maximum(2**-4 * np.abs(b), 2**-10 * scaled(np.ones_like(b), b_scales, 128)) * (1 + 2**-20)
    allowed = off_a @ np.abs(b).T + np.abs(a) @ off_b.T + off_a @ off_b.T
    assert np.all(np.abs(sums - a @ b.T) <= allowed)
    assert np.any(np.abs(sums - a @ b.T) > allowed / 100), "the bound is of the right size"


@pytest.mark.parametrize(("family", "arch", "config"), SCALED_FAMILIES)
def test_the_extreme_codes_of_e8m0_are_what_they_stand_for(family: str, arch: str, config: KernelConfig) -> None:
    """255 is NaN, and 0 the subnormal 2⁻¹²⁷, which other scales can lift."""
    problem = GemmProblem(16, 64, 128, dtype="fp8_e4m3", out_dtype="fp32", scales="1x128,1x128,e8m0", arch=arch)
    case = Case(FAMILIES[family], problem, config)
    ones = np.full((1, 16, 128), 0x38, dtype=np.uint8)  # 1.0
    a_scales, b_scales = (np.full((rows, 4), 127, dtype=np.uint8) for rows in (16, 64))
    a_scales[3, 0], a_scales[5, 0], b_scales[7, 0] = 255, 0, 254
    c = np.zeros((16, 64), dtype=np.float32).view(numpy_gpu.Array)
    weights = np.full((1, 64, 128), 0x38, dtype=np.uint8)
    loaded_as(case, kernel_of(case))(Operands(_on_gpu(ones), _on_gpu(weights), c, a_scales=a_scales, b_scales=b_scales))
    assert np.isnan(c[3]).all()
    assert c[5, 7] == 128 * 2.0 ** (127 - 127)
    assert c[5, 6] == 128 * 2.0**-127
    assert c[6, 6] == 128


# What a kernel was made for, and other problems that have its key.
SHARED = [
    (GemmProblem(64, 72, 40), SMALL, [{"m": m} for m in (1, 15, 16, 17, 150)]),
    (GemmProblem(20, 72, 40, specialisation="exact"), SMALL, [{"batch": 3}]),
    (GemmProblem(256, 72, 40, specialisation="bucketed"), SMALL, [{"m": m} for m in (129, 144, 255)]),
    # A bucket of one row of tiles.
    (GemmProblem(12, 72, 40, specialisation="bucketed"), SMALL, [{"m": 9}, {"m": 16, "batch": 2}]),
    # Any sizes as aligned; rows of C as aligned; empty slices of k.
    (GemmProblem(64, 72, 40, specialisation="dynamic"), WIDE,
     [{"m": 1, "n": 8, "k": 8}, {"m": 130, "n": 16, "k": 72, "batch": 2}, {"m": 700, "n": 264, "k": 16}]),
    (GemmProblem(64, 70, 40, specialisation="dynamic"), WIDE,
     [{"m": 1, "n": 2, "k": 8}, {"m": 130, "n": 14, "k": 72, "batch": 2}, {"m": 67, "n": 262, "k": 16}]),
    (GemmProblem(64, 72, 200, dtype="fp16", layout="tn", specialisation="dynamic"), replace(SMALL, split_k=3),
     [{"m": 8, "n": 264, "k": 1}, {"m": 40, "n": 8, "k": 65}, {"m": 16, "n": 16, "k": 333, "batch": 2}]),
    (GemmProblem(64, 72, 40, dtype="fp32", specialisation="dynamic"), KernelConfig(32, 64, 16, 2, 2, 2),
     [{"m": 1, "n": 4, "k": 4}, {"m": 65, "n": 132, "k": 92, "batch": 2}]),
]  # fmt: skip


@pytest.mark.parametrize(("made_for", "config", "others"), SHARED)
def test_a_kernel_computes_every_problem_that_has_its_key(
    made_for: GemmProblem, config: KernelConfig, others: list[dict[str, Any]]
) -> None:
    family = FAMILIES["simt" if made_for.dtype is DType.FP32 else "tensor_core"]
    made_for = replace(made_for, arch="sm_90")
    kernel = kernel_of(Case(family, made_for, config))
    for sizes in others:
        problem = replace(made_for, **sizes)
        check_config(family, problem, config, architecture("sm_90"))
        assert family.constants(problem, config) == family.constants(made_for, config)
        assert not what_is_wrong(Case(family, problem, config), kernel)


@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [
        (GemmProblem(19, 67, 41, batch=2, dtype="fp16", out_dtype="fp32", layout="nn", arch="sm_90"),
         "reads_words() && !is_first_word", "reads_words()"),
        (GemmProblem(41, 83, 92, dtype="int8", layout="tn", arch="sm_90"),
         " && !(begins_matrix && byte_in_word(first) > 0)", ""),
    ],
    ids=["runs", "squares"],
)  # fmt: skip
def test_odd_rows_may_begin_between_words(problem: GemmProblem, right: str, wrong: str) -> None:
    """C is right, and the word that holds the first element is not read."""
    case = Case(FAMILIES["tensor_core"], problem, KernelConfig(64, 64, 64, 1, 2, 3))
    assert not what_is_wrong(case, between_words=True)
    source = source_of(case)
    assert source.count(right) == 1, "the template no longer holds the line to be spoilt"
    with pytest.raises(Fault, match=f"byte -{problem.dtype.itemsize} is accessed"):
        what_is_wrong(case, Kernel(ptx_of(source.replace(right, wrong), case.arch)), between_words=True)


@pytest.mark.parametrize(
    ("family", "problem", "config"),
    [
        ("tensor_core", GemmProblem(20, 40, 64, epilogue="alpha+beta", arch="sm_90"), SMALL),
        ("hopper", GemmProblem(40, 64, 64, epilogue="beta", arch="sm_90a"), KernelConfig(64, 64, 64, 4, 1, 2)),
    ],
)
def test_c_is_not_read_when_beta_is_0(family: str, problem: GemmProblem, config: KernelConfig) -> None:
    """As in BLAS: it may hold anything."""
    case = Case(FAMILIES[family], problem, config)
    kernel, (a, b) = kernel_of(case), operands_of(problem)
    computed = launched(problem, kernel, loaded_as(case, kernel), a, b, beta=0.0)
    without = replace(problem, epilogue=Epilogue.parse("alpha" if problem.epilogue.alpha else ""))
    assert not difference_of(without, computed, expected_of(without, a, b))


@pytest.mark.parametrize("mode", ["grouped", "masked"])
def test_groups_with_every_kind_of_counts(mode: str) -> None:
    """Also counts that no caller should give: below 0, beyond m, and whose sum is no number of 32 bits."""
    kernel = kernel_of(case_of("uneven", mode=mode))
    for number, counts in enumerate(grouped.COUNTS):
        print(counts)
        assert not wrong_in_groups(case_of(counts, 7, mode=mode), kernel, orders=(number % 2 == 0,))


def test_groups_with_scales_of_rows_and_of_groups() -> None:
    for mode in ("grouped", "masked"):
        assert not wrong_in_groups(case_of("uneven", mode=mode, **grouped.SCALES))
