"""Threads that copy or turn tiles of A and B, and warps that read them, ask for one word of a bank at a time."""

from __future__ import annotations

from typing import Any

import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig
from tests.ptx import tensor
from tests.ptx.banks import Conflicts
from tests.ptx.problems import Case, kernel_of, launched, loaded_as, operands_of


@pytest.mark.parametrize(
    ("dtype", "layout", "config"),
    [
        (DType.BF16, Layout.TN, KernelConfig(64, 128, 32, 2, 2, 2)),
        (DType.INT8, Layout.TN, KernelConfig(128, 64, 64, 2, 2, 2)),
        (DType.TF32, Layout.NN, KernelConfig(128, 128, 16, 2, 2, 2)),
        (DType.TF32, Layout.TN, KernelConfig(64, 64, 32, 2, 2, 2)),
        (DType.TF32, Layout.TT, KernelConfig(16, 32, 16, 1, 1, 2)),
    ],
)
def test_tiles_are_copied_and_read_without_bank_conflicts(
    dtype: DType, layout: Layout, config: KernelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also operands that are turned, on the way in or on the way to the registers."""
    m, n, k = config.block_m, config.block_n, 2 * config.block_k
    case = Case(FAMILIES["tensor_core"], GemmProblem(m, n, k, dtype=dtype, layout=layout, arch="sm_90"), config)
    kernel = kernel_of(case)
    conflicts, multiply = Conflicts(monkeypatch), tensor.multiply
    until: list[dict[str, int]] = []

    def multiplies(kind: tensor.Kind, *given: Any) -> Any:
        until.append(dict(conflicts.most))
        return multiply(kind, *given)

    monkeypatch.setattr(tensor, "multiply", multiplies)
    launched(case.problem, kernel, loaded_as(case, kernel), *operands_of(case.problem))
    before_c = until[-1]
    expected = {
        DType.INT8: {"write 4", "read 16"},
        DType.TF32: {"copy 16", "read 4"},
        DType.BF16: {"copy 16", "read 16"},
    }
    assert set(before_c) == expected[dtype] | (set() if layout is Layout.TN else {"read 16"})
    assert set(before_c.values()) == {1}
