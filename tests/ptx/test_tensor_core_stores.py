"""How ``tensor_core`` stores C: in whole sectors, 16 bytes a lane, with few bank conflicts on the way."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.banks import SECTOR, by_warp, sectors_of, ways_of
from tests.ptx.memory import Memory
from tests.ptx.problems import Case, kernel_of, launched, loaded_as, operands_of
from tests.ptx.shared import Shared

Array = npt.NDArray[Any]


@pytest.mark.parametrize(
    ("out_dtype", "n", "width", "sectors"), [("bf16", 64, 16, 1.0), ("fp32", 64, 16, 1.0), ("bf16", 63, 2, 1.5)]
)
@pytest.mark.parametrize("epilogue", ["", "beta+bias+gelu"])
def test_lanes_store_whole_sectors_and_ask_for_few_words_of_a_bank(
    out_dtype: Any, n: int, width: int, sectors: float, epilogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 63 elements begin within a sector, so that the least is two for 64 bytes that go to three at times."""
    accesses: dict[str, list[tuple[Array, int]]] = {"read": [], "write": []}
    ways: list[int] = []
    write, read, put, get = Memory.write, Memory.read, Shared.write, Shared.read

    def writes(self: Memory, addresses: Array, lanes: Array, words: Array) -> None:
        wide = words.shape[1] * words.itemsize
        accesses["write"] += [(own, wide) for own in by_warp(addresses, lanes)]
        write(self, addresses, lanes, words)

    def reads(self: Memory, addresses: Array, lanes: Array, wide: int, word: int) -> Array:
        accesses["read"] += [(own, wide) for own in by_warp(addresses, lanes)]
        return read(self, addresses, lanes, wide, word)

    def puts(self: Shared, addresses: Array, lanes: Array, words: Array) -> None:
        ways.extend(ways_of(own, words.shape[1] * words.itemsize) for own in by_warp(addresses, lanes))
        put(self, addresses, lanes, words)

    def gets(self: Shared, addresses: Array, lanes: Array, wide: int, word: int) -> Array:
        ways.extend(ways_of(own, wide) for own in by_warp(addresses, lanes))
        return get(self, addresses, lanes, wide, word)

    for of, name, spy in (
        (Memory, "write", writes),
        (Memory, "read", reads),
        (Shared, "write", puts),
        (Shared, "read", gets),
    ):
        monkeypatch.setattr(of, name, spy)
    problem = GemmProblem(64, n, 32, out_dtype=out_dtype, arch="sm_90", epilogue=epilogue)
    case = Case(FAMILIES["tensor_core"], problem, KernelConfig(64, 64, 32, 2, 1, 2))
    launched(problem, kernel := kernel_of(case), loaded_as(case, kernel), *operands_of(problem))

    size = 64 * n * problem.output.itemsize
    first = min(int(own.min()) for own, _ in accesses["write"])
    of_c = [(own, wide) for own, wide in accesses["read"] if first <= own.min() < first + size]
    assert {wide for _, wide in accesses["write"]} == {width}
    for some in (accesses["write"], of_c) if epilogue else (accesses["write"],):
        assert sum(len(own) * wide for own, wide in some) == size, "each element once"
        assert sum(sectors_of(own - first, wide) for own, wide in some) * SECTOR <= sectors * size
    assert max(ways) <= 2
