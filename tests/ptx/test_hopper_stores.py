"""How ``hopper`` stores C: in whole lines where the copy engine stores it, with few bank conflicts on the way."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest

from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx import maps
from tests.ptx.banks import Conflicts
from tests.ptx.hopper_problems import hopper
from tests.ptx.memory import Memory
from tests.ptx.problems import kernel_of, launched, loaded_as, operands_of
from tests.ptx.stores import Stores

Array = npt.NDArray[Any]
_LINE = 128


@pytest.mark.parametrize(
    ("out_dtype", "n", "most"), [("bf16", 64, 1), ("fp32", 64, 2), ("bf16", 68, 1), ("bf16", 67, 1)]
)
def test_boxes_are_of_whole_lines_and_lanes_ask_for_few_words_of_a_bank(
    out_dtype: Any, n: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes, stored = [0], [0]
    start, write = Stores.start, Memory.write

    def starts(self: Stores, lane: int, tensor: maps.TensorMap, first: tuple[int, ...], at: int) -> None:
        assert (tensor.box[0] * tensor.element, first[0] * tensor.element % _LINE) == (_LINE, 0)
        boxes[0] += tensor.box_bytes
        start(self, lane, tensor, first, at)

    def writes(self: Memory, addresses: Array, lanes: Array, words: Array) -> None:
        stored[0] += words.nbytes
        write(self, addresses, lanes, words)

    monkeypatch.setattr(Stores, "start", starts)
    monkeypatch.setattr(Memory, "write", writes)
    conflicts = Conflicts(monkeypatch)
    problem = GemmProblem(128, n, 64, out_dtype=out_dtype, arch="sm_90a", specialisation="exact")
    case = hopper(problem, KernelConfig(128, 64, 64, 8, 1, 2))
    kernel = kernel_of(case)
    launched(problem, kernel, loaded_as(case, kernel), *operands_of(problem))
    size = 128 * n * problem.output.itemsize
    assert (boxes[0], stored[0]) == ((size, 0) if n == 64 else (0, size))
    assert max(conflicts.most.values()) == most
