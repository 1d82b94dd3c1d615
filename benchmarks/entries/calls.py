"""Host time of a repeated ``matmul`` up to its first call of CuPy. Measuring it needs no GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.results import LeftOut, Report
from benchmarks.timing import compare
from cache_engine.errors import ExtraMissing
from cache_engine.model.gemm import NO_EPILOGUE
from cache_engine.settings.extras import require

_M, _N, _K, _GROUPS = 64, 4096, 2048, 8


class _Array:
    """An array with an address and no data: nothing reads what is there."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, typestr: str) -> None:
        self._interface = {
            "shape": shape, "typestr": typestr, "data": (address, False), "version": 3, "strides": strides, "stream": 1,
        }  # fmt: skip

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


def calls(report: Report) -> None:
    """``matmul`` and ``grouped_matmul`` up to CuPy, compared with packing the arguments of a launch, unchecked.

    Left out are the lookup of the loaded kernel, and all that CuPy and the driver do.
    """
    try:
        require("evaluate", "calling matmul")
    except ExtraMissing as error:
        report(LeftOut("matmul", str(error)))
        return
    import numpy

    from cache_engine.gpu.groups import GroupCounts
    from cache_engine.gpu.matmul_plan import asked_alike
    from cache_engine.gpu.multiply import operands_of, prepare

    asked = asked_alike(None, None, NO_EPILOGUE)
    a, out = _Array(1 << 30, (_M, _K), None, "<f2"), _Array(1 << 32, (_M, _N), None, "<f2")
    b = _Array(1 << 31, (_K, _N), (2, 2 * _K), "<f2")
    experts = _Array(1 << 31, (_GROUPS, _K, _N), (2 * _N * _K, 2, 2 * _K), "<f2")
    counts = GroupCounts(_Array(1 << 33, (_GROUPS,), None, "<i4"))

    def ours(of_b: _Array, of_groups: GroupCounts | None) -> None:
        plan, _, views = prepare(asked, a, of_b, out, counts=of_groups)
        operands_of(plan, views, out)

    def pack(*arrays: _Array) -> tuple[Any, ...]:
        places = [numpy.uint64(one.__cuda_array_interface__["data"][0]) for one in arrays]
        return (*places, numpy.int32(_M), numpy.uint64(0), numpy.uint64(0))

    for name, measured, packed in (
        ("matmul", partial(ours, b, None), partial(pack, a, b, out)),
        ("grouped_matmul", partial(ours, experts, counts), partial(pack, a, experts, out, counts.array)),
    ):
        what = f"host time of a repeated {name}, up to CuPy"
        report(compare(what, measured, "packing a launch's arguments", packed, calls=100))
