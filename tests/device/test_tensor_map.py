"""Tensor maps: the rules are checked before the driver is asked, and it gets what the operand is."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cache_engine.errors import UsageError
from cache_engine.gpu import tensor_map
from cache_engine.gpu.launch import LoadedKernel, Operands
from cache_engine.gpu.tensor_map import TensorMap, address_of, encode, map_of
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.kernel import Box
from tests.device import numpy_gpu

RIGHT = TensorMap(DType.BF16, 0x1000, (72, 60, 3), (144, 8640), (64, 128, 1))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (
            {"dtype": DType.INT8},
            "its elements are int8; the copy engine's are fp16, bf16, fp32, tf32, fp8_e4m3, fp8_e5m2 here",
        ),
        ({"address": 0x1008}, "begins at 0x1008"),
        ({"sizes": (72, 0, 3)}, "each must be 1 to 2"),
        ({"sizes": (72, 2**32 + 1, 3)}, "each must be 1 to 2"),
        ({"strides": (136, 8640)}, "a multiple of 16 below"),
        ({"strides": (144, 2**40)}, "a multiple of 16 below"),
        ({"box": (64, 257, 1)}, "each edge must be 1 to 256"),
        ({"box": (64, 0, 1)}, "each edge must be 1 to 256"),
        ({"box": (4, 128, 1)}, "a line of its box has 8 bytes"),
        ({"box": (72, 128, 1)}, "a line of its box has 144 bytes"),
    ],
)
def test_a_map_that_breaks_a_rule_is_refused(changed: dict[str, Any], what: str) -> None:
    RIGHT.check()
    with pytest.raises(UsageError, match=f"{what}.*use --family tensor_core"):
        encode(replace(RIGHT, **changed))


@pytest.mark.parametrize(
    ("layout", "operand", "sizes", "strides"),
    [
        (Layout.NT, "a", (72, 40, 3), (144, 144 * 40)),
        (Layout.NT, "b", (72, 56, 3), (144, 144 * 56)),
        (Layout.NN, "b", (56, 72, 3), (112, 112 * 72)),
        (Layout.TN, "a", (40, 72, 3), (80, 80 * 72)),
        (Layout.NT, "c", (56, 40, 3), (112, 112 * 40)),
        (Layout.NN, "c", (56, 40, 3), (112, 112 * 40)),
    ],
)
def test_a_map_is_of_the_operand_as_it_is_stored(
    layout: Layout, operand: str, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    found = map_of(GemmProblem(40, 56, 72, batch=3, layout=layout), Box(operand, 64, 128), 0x1000)
    assert found == TensorMap(DType.BF16, 0x1000, sizes, strides, (64, 128, 1))


def test_a_map_of_c_has_its_type() -> None:
    """Of tf32 the copy engine would round what it stores."""
    found = map_of(GemmProblem(40, 56, 72, dtype="tf32"), Box("c", 32, 16), 0x1000)
    assert found == TensorMap(DType.FP32, 0x1000, (56, 40, 1), (224, 224 * 40), (32, 16, 1))


class _Driver:
    """What ``libcuda`` is asked."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def cuTensorMapEncodeTiled(self, target: Any, *rest: Any) -> int:  # noqa: N802
        assert target.value % 64 == 0
        self.asked = [list(one) if isinstance(one, ctypes.Array) else one.value for one in rest]
        ctypes.memset(target.value, 7, tensor_map.MAP_BYTES)
        return self.answer


def test_the_driver_is_asked_for_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order and the numbers are those of cuda.h."""
    driver = _Driver(0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert encode(RIGHT).tobytes() == bytes([7] * 128)
    assert driver.asked == [9, 3, 0x1000, [72, 60, 3], [144, 8640], [64, 128, 1], [1, 1, 1], 0, 3, 2, 0]
    kinds = {DType.FP16: 6, DType.FP32: 7, DType.TF32: 11, DType.FP8_E4M3: 0, DType.FP8_E5M2: 0}
    for dtype, kind in kinds.items():
        encode(replace(RIGHT, dtype=dtype, box=(128 // dtype.itemsize, 64, 1)))
        assert driver.asked[0] == kind
    driver.answer = 1
    with pytest.raises(UsageError, match="error 1 of cuTensorMapEncodeTiled"):
        encode(RIGHT)


def test_cupy_passes_a_map_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy looks at the arguments before it asks the driver to launch: here there is none, or no such function."""
    from cupy.cuda.function import Function

    monkeypatch.setattr(ctypes, "CDLL", lambda name: _Driver(0))
    nowhere, stream = Function.__new__(Function), SimpleNamespace(ptr=0)
    one = encode(RIGHT)
    with pytest.raises(Exception, match=r"(?i)driver|invalid"):
        nowhere((1,), (1,), (one,), stream=stream)
    with pytest.raises(TypeError, match="size one"):
        nowhere((1,), (1,), (one.view("uint8"),), stream=stream)


def test_a_launch_makes_a_map_once_for_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_gpu.install(monkeypatch)
    made: list[TensorMap] = []

    def encoded(tensor: TensorMap) -> int:
        made.append(tensor)
        return len(made)

    monkeypatch.setattr(tensor_map, "encode", encoded)
    problem = GemmProblem(64, 64, 64, arch="sm_90a")
    family, config = choose(problem, "hopper")
    launches: list[tuple[Any, ...]] = []
    launch = launch_of(family, problem, config)
    kernel = LoadedKernel(
        b"", "k", launch, problem, lambda grid, block, arguments, shared_mem: launches.append(arguments)
    )
    for b in (0x2000, 0x2000, 0x3000):
        kernel(Operands(np.uint64(0x1000), np.uint64(b), np.uint64(0x4000)))
    assert [one.address for one in made] == [0x1000, 0x2000, 0x4000, 0x3000]
    assert [arguments[-3:] for arguments in launches] == [(1, 2, 3), (1, 2, 3), (1, 4, 3)]
    for place in range(100):
        kernel(Operands(np.uint64(0x1000), np.uint64(0x5000 + 16 * place), np.uint64(0x4000)))
    assert len(kernel._maps) <= 64


def test_an_operand_has_an_address() -> None:
    array = numpy_gpu.array([1, 2, 3])
    assert address_of(array) == array.ctypes.data
    assert address_of(np.uint64(48)) == 48
