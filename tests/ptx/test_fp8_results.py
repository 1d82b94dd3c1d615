"""Results of fp8: what each family's kernel stores is activation(alpha · A · B + bias) · scale, rounded once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cache_engine.gpu.fp8 import fp8_values
from cache_engine.gpu.launch import Operands, to_stored
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import FP8, DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.device import numpy_gpu
from tests.ptx.arithmetic import two_to_fp8
from tests.ptx.grouped import case_of, wrong_in_groups
from tests.ptx.problems import Case, kernel_of, loaded_as, what_is_wrong

_CONFIGS = {
    "tensor_core": KernelConfig(16, 64, 64, 1, 2, 3),
    "simt": KernelConfig(16, 32, 32, 1, 1, 2),
    "scaled": KernelConfig(16, 64, 128, 1, 2, 3),
    "hopper": KernelConfig(64, 128, 128, 4, 1, 2),
}
_KINDS: tuple[tuple[str, str, tuple[int, int, int], dict[str, Any]], ...] = (
    ("tensor_core", "sm_89", (35, 67, 41), {"dtype": "bf16", "epilogue": "alpha+bias+relu", "layout": "tt"}),
    ("tensor_core", "sm_89", (20, 40, 304), {"dtype": "fp8_e4m3", "out_dtype": "fp8_e5m2", "split_k": 3}),
    ("tensor_core", "sm_100", (36, 76, 84), {"dtype": "fp8_e5m2", "epilogue": "gelu", "specialisation": "dynamic"}),
    ("tensor_core", "sm_90a", (33, 144, 96), {"dtype": "fp8_e4m3", "epilogue": "bias", "batch": 2}),
    ("simt", "sm_120a", (35, 68, 41), {"dtype": "fp16", "epilogue": "alpha+bias"}),
    ("simt", "sm_89", (20, 35, 104), {"dtype": "bf16", "split_k": 2, "out_dtype": "fp8_e5m2"}),
    ("scaled", "sm_100a", (36, 135, 384), {"dtype": "fp8_e4m3", "scales": "1x128,128x128", "split_k": 3}),
    ("hopper", "sm_90a", (70, 144, 256), {"dtype": "fp8_e4m3", "epilogue": "alpha+bias+relu"}),
    ("hopper", "sm_90a", (70, 135, 384), {"dtype": "fp8_e4m3", "out_dtype": "fp8_e5m2", "split_k": 2}),
    ("hopper", "sm_90a", (36, 136, 256), {"dtype": "fp8_e4m3", "scales": "1x128,1x128", "epilogue": "bias"}),
)  # fmt: skip


def _case(name: str, arch: str, sizes: tuple[int, int, int], given: dict[str, Any]) -> Case:
    asked = {"out_dtype": "fp8_e4m3", **given}
    slices = asked.pop("split_k", 1)
    problem = GemmProblem(*sizes, arch=arch, **asked)
    config = replace(_CONFIGS[name], split_k=slices)
    if name in {"tensor_core", "hopper"}:
        config = replace(config, block_k=128 // problem.dtype.itemsize)
    return Case(FAMILIES[name], problem, config)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}-{kind[2][1]}")
def test_a_kernel_rounds_what_its_epilogue_gives_once(
    kind: tuple[str, str, tuple[int, int, int], dict[str, Any]],
) -> None:
    case = _case(*kind)
    print(case)
    assert not what_is_wrong(case)


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "grouped", "out_dtype": "fp8_e4m3", "n": 67, "k": 41, "epilogue": "bias"},
        {"mode": "masked", "dtype": "fp8_e4m3", "scales": "1x128,1x128", "out_dtype": "fp8_e5m2", "n": 135, "k": 256},
    ],
)
def test_groups_have_results_of_fp8(asked: dict[str, Any]) -> None:
    assert not wrong_in_groups(case_of("uneven", 4, **asked))


@pytest.mark.parametrize("dtype", FP8)
def test_the_machine_and_the_host_round_to_the_nearest_code(dtype: DType) -> None:
    """Every value, every middle of two, and what is next to these; beyond the last, infinity and NaN."""
    finite = fp8_values(dtype)[:128]
    finite = finite[np.isfinite(finite)]
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(to)) for to in (0, 1e9)]
    beyond = np.array([finite[-1] * 1.04, finite[-1] * 2, 1e30, np.inf, np.nan], dtype=np.float32)
    tried = np.concatenate([finite, middles, *beside, beyond])
    tried = np.concatenate([tried, -tried]).astype(np.float32)
    codes = to_stored(tried, dtype)
    with np.errstate(invalid="ignore"):
        distances = np.abs(np.abs(tried.astype(np.float64))[:, None] - finite.astype(np.float64))
    nearest = distances == np.nanmin(np.where(np.isnan(distances), np.inf, distances), axis=1)[:, None]
    for value, code, near in zip(tried, codes, nearest, strict=True):
        if np.isnan(value):
            assert np.isnan(fp8_values(dtype)[code])
            continue
        wanted = np.flatnonzero(near) if abs(value) < finite[-1] else [len(finite) - 1]
        even = [one for one in wanted if one % 2 == 0] if len(wanted) > 1 else wanted
        assert code == int(even[0]) | int(np.signbit(value)) << 7, value
    machine = two_to_fp8(tried, tried[::-1], dtype.removeprefix("fp8_"))
    not_nan = ~np.isnan(tried)
    assert np.array_equal((machine >> 8)[not_nan], codes[not_nan])
    assert np.array_equal((machine & 0xFF)[not_nan[::-1]], codes[::-1][not_nan[::-1]])


@pytest.mark.parametrize("name", ["tensor_core", "simt", "hopper"])
def test_nan_zero_and_what_is_too_large_have_codes_of_their_own(name: str) -> None:
    """NaN stays NaN, also through ReLU; infinity and what is beyond 448 become that; zeroes keep their sign."""
    case = _case(name, "sm_90a", (4, 128, 64), {"dtype": "fp16", "epilogue": "alpha"})
    a, b = np.zeros((1, 4, 64), np.float16), np.zeros((1, 128, 64), np.float16)
    a[0, :, 0] = 1, -1, 2, 0
    b[0, :8, 0] = np.nan, np.inf, 448, 500, 464, 2**-9, 2**-11, -(2**-11)
    b[0, 8, 0] = 3
    c = np.full((1, 4, 128), 0xFF, np.uint8)
    a.flags.writeable = b.flags.writeable = False
    a, b, c = (one.view(numpy_gpu.Array) for one in (a, b, c))
    loaded_as(case, kernel_of(case))(Operands(a, b, c, alpha=0.5, scale_result=2.0))
    found = c[0]
    assert found[0, :9].tolist() == [0x7F, 0x7E, 0x7E, 0x7E, 0x7E, 0x01, 0x00, 0x80, 0x44]
    assert found[1, 1:9].tolist() == [0xFE, 0xFE, 0xFE, 0xFE, 0x81, 0x80, 0x00, 0xC4]
    assert found[2, 8] == 0x4C
    assert found[3, 2] == 0
