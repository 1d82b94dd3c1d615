"""The cost model counts the conversion of fp8 to fp16."""

from __future__ import annotations

import pytest

from cache_engine.kernels.prediction import NOT_HIDDEN, _busy_cycles
from cache_engine.kernels.select import FAMILIES, choose, predicted_cycles, ranking
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig

CONVERTING = ["sm_90", "sm_90a", "sm_100", "sm_103", "sm_110"]


@pytest.mark.parametrize("arch", CONVERTING)
@pytest.mark.parametrize("dtype", [DType.FP8_E4M3, DType.FP8_E5M2])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (4096, 7168, 2048), (8192, 28_672, 8192)], ids=str)
def test_fp8_that_is_converted_is_predicted_to_take_as_long_as_fp16(
    arch: str, dtype: DType, size: tuple[int, int, int]
) -> None:
    """By default 38 % of the instructions in the loop are products; with 128x128x64_w2x4 29 to 31 %."""
    config, of_fp16 = KernelConfig(256, 128, 64, 4, 2, 4), KernelConfig(256, 128, 32, 4, 2, 4)
    problem, as_fp16 = (GemmProblem(*size, dtype=one, arch=arch) for one in (dtype, DType.FP16))
    assert choose(problem, "tensor_core")[1] == config
    # fp8 has half of the bytes to read, and an instruction for every two elements of a warp's operands.
    ratio = predicted_cycles(problem, "tensor_core", config) / predicted_cycles(as_fp16, "tensor_core", of_fp16)
    assert 0.9 < ratio < 1
    ranked = {one: cycles for cycles, one in ranking(problem, "tensor_core")}
    assert ranked[config] < predicted_cycles(problem, "tensor_core", config) < 1.5 * ranked[config]


def test_an_instruction_converts_each_register_of_fp16() -> None:
    """In the machine code of the default config, a warp has 128 of these for a step of 64."""
    problem, config = GemmProblem(8, 8, 64, dtype=DType.FP8_E4M3, arch="sm_90"), KernelConfig(256, 128, 64, 4, 2, 4)
    fast = 10**9  # products take no time, so that reading shared memory is the longest
    family = FAMILIES["tensor_core"]
    plain, converted = (_busy_cycles(family, problem, config, fast, converted=each) for each in (False, True))
    assert converted - plain == pytest.approx(NOT_HIDDEN * 8 * 128 / 4)
