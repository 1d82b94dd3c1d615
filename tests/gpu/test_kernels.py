"""On a real GPU: every kind of kernel loads, launches, and computes what CuPy computes in higher precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.errors import InfeasibleConfig, InvalidProblem
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.probe import gpu
from cache_engine.gpu.reference import check, tolerance
from cache_engine.kernels.family import check_config
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import ARCHITECTURES, architecture
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import (
    FP8,
    OUTPUT_DTYPES,
    DType,
    Epilogue,
    GemmProblem,
    Layout,
    ModeLike,
    Scales,
    Specialisation,
)
from cache_engine.model.kernel import KernelConfig
from tests.helpers import require_triton

# Of the tables of models: m, n, k, batch.
REAL = [
    (1, 6144, 4096, 1), (16, 2112, 7168, 1), (64, 576, 7168, 1), (16, 512, 128, 128), (4096, 7168, 2048, 1),
    (1024, 4096, 4096, 1),
]  # fmt: skip
ODD = [(1, 1, 1, 1), (7, 9, 3, 2), (17, 1000, 33, 1), (333, 517, 259, 1), (65, 130, 66, 7), (128, 256, 512, 1)]
EPILOGUES = ["alpha", "beta", "bias", "relu", "gelu", "alpha+beta", "bias+relu", "alpha+beta+bias+gelu"]


def _here(family: str, dtype: DType) -> bool:
    device = gpu()
    target = ARCHITECTURES.get(device.arch) if isinstance(device, DeviceFingerprint) else None
    # Without a GPU all are listed, and skipped.
    if target is None:
        return True
    if family == "hopper":
        return target.compute_capability == (9, 0)
    return target.compute_capability >= FAMILIES[family].min_capability(dtype)


def _gives(dtype: DType, out_dtype: DType) -> bool:
    if out_dtype in FP8 and not _here("tensor_core", out_dtype):
        return False  # the GPU does not round to it
    try:
        return bool(GemmProblem(1, 1, 1, dtype=dtype, out_dtype=out_dtype))
    except InvalidProblem:
        return False


KINDS = [
    (family, dtype)
    for family in FAMILIES
    for dtype in FAMILIES[family].flops_per_clock
    if _here(family, dtype) and FAMILIES[family].takes(GemmProblem(1, 1, 1))
]
SCALED = [(dtype, scales) for dtype in (DType.FP8_E4M3, DType.FP8_E5M2) for scales in Scales if scales]


def _targeted(cache: Cache, problem: GemmProblem, family: str) -> GemmProblem:
    return problem.on("sm_90a") if family == "hopper" else cache.targeted(problem)


def wrong(
    cache: Cache, problem: GemmProblem, family: str, config: KernelConfig | None = None
) -> list[tuple[str, float]]:
    """Launches the kernel three times, each on other operands; returns its name and each error that is too large.

    The second launch finds in the workspace what the first left there.
    """
    if family == "triton":
        require_triton()
    problem = _targeted(cache, problem, family)
    if fault := FAMILIES[family].problem_fault(problem):
        pytest.skip(fault)
    kernel = cache.get_or_compile(problem, family=family, config=config)
    with shared_pool().serving() as pool:
        loaded = LoadedKernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
        errors = [check(loaded, kernel.problem)[1] for _ in range(3)]
    pool.free_all()
    return [(kernel.record.name, error) for error in errors if not error <= tolerance(kernel.problem)]  # also NaN


@pytest.mark.parametrize(("m", "n", "k", "batch"), REAL)
@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_shapes_of_models(kernels: Cache, family: str, dtype: DType, m: int, n: int, k: int, batch: int) -> None:
    assert wrong(kernels, GemmProblem(m, n, k, batch=batch, dtype=dtype), family) == []


@pytest.mark.parametrize(("m", "n", "k", "batch"), ODD)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_odd_shapes_in_every_layout(
    kernels: Cache, family: str, dtype: DType, layout: Layout, m: int, n: int, k: int, batch: int
) -> None:
    assert wrong(kernels, GemmProblem(m, n, k, batch=batch, dtype=dtype, layout=layout), family) == []


@pytest.mark.parametrize("specialisation", [each for each in Specialisation if each is not Specialisation.NK])
@pytest.mark.parametrize(("m", "n", "k", "batch"), ODD)
@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_every_specialisation(
    kernels: Cache, family: str, dtype: DType, m: int, n: int, k: int, batch: int, specialisation: Specialisation
) -> None:
    assert wrong(kernels, GemmProblem(m, n, k, batch=batch, dtype=dtype, specialisation=specialisation), family) == []


@pytest.mark.parametrize(
    ("family", "dtype", "out_dtype"), [(*kind, out) for kind in KINDS for out in OUTPUT_DTYPES if _gives(kind[1], out)]
)
def test_every_type_of_c(kernels: Cache, family: str, dtype: DType, out_dtype: DType) -> None:
    assert wrong(kernels, GemmProblem(100, 200, 96, batch=2, dtype=dtype, out_dtype=out_dtype), family) == []


@pytest.mark.parametrize("text", EPILOGUES)
@pytest.mark.parametrize(
    ("family", "dtype"), [kind for kind in KINDS if FAMILIES[kind[0]].takes_epilogue and kind[1] is not DType.INT8]
)
def test_every_epilogue(kernels: Cache, family: str, dtype: DType, text: str) -> None:
    assert wrong(kernels, GemmProblem(70, 200, 144, batch=2, dtype=dtype, epilogue=Epilogue.parse(text)), family) == []


@pytest.mark.parametrize("specialisation", Specialisation)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "epilogue", "out_dtype"),
    [
        (4096, 7168, 2048, 1, "", DType.BF16),
        (1, 64, 128, 1, "", DType.FP32),
        (17, 1000, 384, 3, "alpha+beta+bias+relu", DType.FP16),
        (16, 2112, 7168, 1, "bias", DType.BF16),
    ],
)
@pytest.mark.parametrize(("dtype", "scales"), SCALED)
@pytest.mark.parametrize("family", ["scaled", "hopper"])
def test_blocks_with_scales(
    kernels: Cache, family: str, dtype: DType, scales: Scales, m: int, n: int, k: int, batch: int, epilogue: str,
    out_dtype: DType, specialisation: Specialisation,
) -> None:  # fmt: skip
    if not _here(family, dtype):
        pytest.skip("not on this GPU")
    problem = GemmProblem(
        m, n, k, batch, dtype, out_dtype, epilogue=epilogue, specialisation=specialisation, scales=scales
    )
    assert wrong(kernels, problem, family) == []


@pytest.mark.parametrize(
    ("dtype", "scales"), [*((dtype, Scales.NONE) for dtype in FAMILIES["grouped"].flops_per_clock), *SCALED]
)
@pytest.mark.parametrize(
    ("mode", "m", "n", "k", "groups", "epilogue"),
    [
        ("grouped", 4096, 7168, 2048, 64, ""),
        ("grouped", 37, 1000, 384, 5, "bias"),
        ("masked", 128, 4096, 7168, 32, ""),
        ("masked", 17, 1000, 384, 7, "alpha+beta+bias+relu"),
        ("masked", 3, 64, 128, 1000, ""),
    ],
)
def test_groups(
    kernels: Cache, dtype: DType, scales: Scales, mode: ModeLike, m: int, n: int, k: int, groups: int, epilogue: str
) -> None:
    if not _here("grouped", dtype):
        pytest.skip("not on this GPU")
    epilogue = "" if dtype is DType.INT8 else epilogue
    problem = GemmProblem(m, n, k, groups, dtype, epilogue=epilogue, scales=scales, mode=mode)
    assert wrong(kernels, problem, "grouped") == []


@pytest.mark.parametrize("slices", [2, 3, 8])
@pytest.mark.parametrize(("m", "n", "batch"), [(33, 130, 1), (128, 256, 3)])
@pytest.mark.parametrize(
    ("family", "dtype", "epilogue"),
    [
        (family, dtype, epilogue)
        for family, dtype in KINDS
        for epilogue in ("", "alpha+beta+bias+relu")
        if FAMILIES[family].splits_k and (not epilogue or dtype is not DType.INT8)  # which takes none
    ],
)
def test_every_number_of_slices(
    kernels: Cache, family: str, dtype: DType, m: int, n: int, batch: int, slices: int, epilogue: str
) -> None:
    problem = GemmProblem(m, n, 1032, batch=batch, dtype=dtype, epilogue=Epilogue.parse(epilogue))
    problem = _targeted(kernels, problem, family)
    if fault := FAMILIES[family].problem_fault(problem):
        pytest.skip(fault)
    config = kernels.select(problem, family=family).config
    assert wrong(kernels, problem, family, replace(config, split_k=slices)) == []


@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_every_config_that_the_gpu_allows(kernels: Cache, family: str, dtype: DType) -> None:
    problem = _targeted(kernels, GemmProblem(300, 392, 336, dtype=dtype), family)
    target, seen = architecture(problem.arch or ""), 0
    for config in FAMILIES[family].configs(problem):
        try:
            check_config(FAMILIES[family], problem, config, target)
        except InfeasibleConfig:
            continue
        assert wrong(kernels, problem, family, config) == []
        seen += 1
    assert seen


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize(("m", "n", "batch"), [(33, 136, 1), (300, 392, 3), (4096, 4096, 1)])
@pytest.mark.parametrize("dtype", [dtype for family, dtype in KINDS if family == "hopper"])
def test_blocks_of_a_cluster_share_tiles(
    kernels: Cache, dtype: DType, m: int, n: int, batch: int, layout: Layout, slices: int
) -> None:
    problem = _targeted(kernels, GemmProblem(m, n, 1040, batch, dtype, layout=layout), "hopper")
    if fault := FAMILIES["hopper"].problem_fault(problem):
        pytest.skip(fault)
    depth = 128 // dtype.itemsize
    assert wrong(kernels, problem, "hopper", KernelConfig(128, 128, depth, 8, 1, 4, slices, cluster=2)) == []


@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_one_kernel_serves_every_m_and_batch(kernels: Cache, family: str, dtype: DType) -> None:
    config = kernels.select(_targeted(kernels, GemmProblem(64, 128, 64, dtype=dtype), family), family=family).config
    sizes = [(1, 1), (64, 1), (65, 5), (1000, 2)]
    keys = set()
    for m, batch in sizes:
        problem = _targeted(kernels, GemmProblem(m, 128, 64, batch=batch, dtype=dtype), family)
        assert wrong(kernels, problem, family, config) == []
        keys.add(kernels.select(problem, family=family, config=config).key)
    assert len(keys) == 1


def test_a_wrong_kernel_is_seen(kernels: Cache) -> None:
    """One that computes another product, and one that leaves elements of C as they were."""
    kernel = kernels.get_or_compile(GemmProblem(128, 128, 128))
    problem, launch = kernel.problem, kernel.launch
    with shared_pool().serving():
        other = kernels.get_or_compile(GemmProblem(128, 128, 128, layout=Layout.NN))
        _, error = check(LoadedKernel(other.cubin, other.record.name, other.launch, problem), problem)
        assert error > tolerance(problem)
        fewer_rows = LoadedKernel(kernel.cubin, kernel.record.name, launch, replace(problem, m=127))
        _, error = check(fewer_rows, problem)
        assert not error <= tolerance(problem), "NaN is not within any tolerance"
