"""On a real GPU: every kind of kernel loads, launches, and computes what CuPy computes.

python -m pytest tests/gpu -m gpu
"""

from __future__ import annotations

import pytest

from cache_engine.device.probe import gpu
from cache_engine.engine import Cache
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout, Specialisation
from tests.helpers import require_triton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not isinstance(gpu(), DeviceFingerprint), reason=f"needs a GPU: {gpu()}"),
]

SHAPES = [(128, 256, 512, 1), (4096, 7168, 2048, 1), (1, 6144, 4096, 1), (333, 517, 259, 1), (65, 130, 66, 7)]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", INPUT_DTYPES)
@pytest.mark.parametrize(("m", "n", "k", "batch"), SHAPES)
def test_a_kernel_computes_what_cupy_computes(
    cache: Cache, m: int, n: int, k: int, batch: int, dtype: DType, layout: Layout
) -> None:
    from cache_engine.device.timer import time_kernel

    kernel = cache.get_or_compile(GemmProblem(m, n, k, batch=batch, dtype=dtype, layout=layout))
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert timing.verified, timing
    assert 0 < timing.p10_us <= timing.median_us <= timing.p90_us


@pytest.mark.parametrize("specialisation", [each for each in Specialisation if each is not Specialisation.NK])
@pytest.mark.parametrize("family", ["tensor_core", "simt", "triton"])
@pytest.mark.parametrize(("m", "n", "k", "batch"), SHAPES)
def test_a_specialised_kernel_computes_what_cupy_computes(
    cache: Cache, m: int, n: int, k: int, batch: int, family: str, specialisation: Specialisation
) -> None:
    from cache_engine.device.timer import time_kernel

    if family == "triton":
        require_triton()
    problem = GemmProblem(m, n, k, batch=batch, dtype=DType.FP16, specialisation=specialisation)
    kernel = cache.get_or_compile(problem, family=family)
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert timing.verified, timing


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", FAMILIES["triton"].flops_per_clock)
@pytest.mark.parametrize(("m", "n", "k", "batch"), SHAPES)
def test_a_triton_kernel_computes_what_cupy_computes(
    cache: Cache, m: int, n: int, k: int, batch: int, dtype: DType, layout: Layout
) -> None:
    from cache_engine.device.timer import time_kernel

    require_triton()
    kernel = cache.get_or_compile(GemmProblem(m, n, k, batch=batch, dtype=dtype, layout=layout), family="triton")
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert timing.verified, timing
