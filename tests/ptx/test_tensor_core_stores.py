"""How ``tensor_core`` stores C: in whole sectors, 16 bytes a lane, with few bank conflicts on the way."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.banks import SECTOR, Conflicts, sectors_of
from tests.ptx.memory import Memory
from tests.ptx.problems import Case, kernel_of, launched, loaded_as, operands_of

Array = npt.NDArray[Any]


@pytest.mark.parametrize(
    ("out_dtype", "n", "width", "sectors"), [("bf16", 64, 16, 1.0), ("fp32", 64, 16, 1.0), ("bf16", 63, 2, 1.5)]
)
@pytest.mark.parametrize("epilogue", ["", "beta+bias+gelu"])
def test_lanes_store_whole_sectors_and_ask_for_few_words_of_a_bank(
    out_dtype: Any, n: int, width: int, sectors: float, epilogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 63 elements begin within a sector, so that the least is two for 64 bytes that go to three at times."""
    accesses: dict[str, list[tuple[Array, Array, int]]] = {"read": [], "write": []}
    write, read = Memory.write, Memory.read

    def writes(self: Memory, addresses: Array, lanes: Array, words: Array) -> None:
        accesses["write"].append((addresses, lanes, words.shape[1] * words.itemsize))
        write(self, addresses, lanes, words)

    def reads(self: Memory, addresses: Array, lanes: Array, wide: int, word: int) -> Array:
        accesses["read"].append((addresses, lanes, wide))
        return read(self, addresses, lanes, wide, word)

    monkeypatch.setattr(Memory, "write", writes)
    monkeypatch.setattr(Memory, "read", reads)
    conflicts = Conflicts(monkeypatch)
    problem = GemmProblem(64, n, 32, out_dtype=out_dtype, arch="sm_90", epilogue=epilogue)
    case = Case(FAMILIES["tensor_core"], problem, KernelConfig(64, 64, 32, 2, 1, 2))
    kernel = kernel_of(case)
    launched(problem, kernel, loaded_as(case, kernel), *operands_of(problem))

    size = 64 * n * problem.output.itemsize
    first = min(int(addresses.min()) for addresses, _, _ in accesses["write"])
    of_c = [one for one in accesses["read"] if first <= one[0].min() < first + size]
    assert {wide for _, _, wide in accesses["write"]} == {width}
    for some in (accesses["write"], of_c) if epilogue else (accesses["write"],):
        assert sum(len(lanes) * wide for _, lanes, wide in some) == size, "each element once"
        touched = sum(sectors_of(addresses - first, lanes, wide) for addresses, lanes, wide in some)
        assert touched * SECTOR <= sectors * size
    # ptxas makes one store of pairs that NVRTC leaves as two, which alone would ask for two.
    assert {what: ways for what, ways in conflicts.most.items() if ways > 1} == {"write 4": 2}
