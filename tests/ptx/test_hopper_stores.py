"""How ``hopper`` stores C: in whole sectors of global memory, with few bank conflicts on the way.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (sectors of 32 bytes) and "Shared Memory and
Memory Banks" (32 banks, 4 bytes wide). A warp accesses 8 bytes a lane in two parts, and 16 bytes a lane in four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cache_engine.device.launch import LoadedKernel
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import render
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.machine import Kernel
from tests.ptx.memory import Memory
from tests.ptx.problems import launched, operands_of, ptx_of
from tests.ptx.shared import Shared

Array = npt.NDArray[Any]
_SECTOR, _BANKS, _WORD, _WARP = 32, 32, 4, 32
_START = 16  # of an array in the machine's memory, which is as aligned as a launch asks for, and no more


def _by_warp(addresses: Array, lanes: Array) -> Iterator[Array]:
    for warp in np.unique(lanes // _WARP):
        yield addresses[lanes // _WARP == warp].astype(np.int64)


def _ways(addresses: Array, width: int) -> int:
    """How many words of one bank an access of a warp asks for at once, at most."""
    together = _WARP * _WORD // max(width, _WORD)
    most = 0
    for first in range(0, len(addresses), together):
        part = addresses[first : first + together, None] // _WORD + np.arange(width // _WORD)
        most = max(most, *np.bincount(np.unique(part) % _BANKS).tolist())
    return most


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
def test_stores_fill_their_sectors_and_lanes_ask_at_most_two_words_of_a_bank(
    out_dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sectors, stored, ways = [0], [0], [0]
    write, put, get = Memory.write, Shared.write, Shared.read

    def writes(self: Memory, addresses: Array, lanes: Array, words: Array) -> None:
        width = words.shape[1] * words.itemsize
        for own in _by_warp(addresses - _START, lanes):
            sectors[0] += len(np.unique((own[:, None] + np.arange(width)) // _SECTOR))
            stored[0] += len(own) * width
        write(self, addresses, lanes, words)

    def puts(self: Shared, addresses: Array, lanes: Array, words: Array) -> None:
        for own in _by_warp(addresses, lanes):
            ways[0] = max(ways[0], _ways(own, words.shape[1] * words.itemsize))
        put(self, addresses, lanes, words)

    def gets(self: Shared, addresses: Array, lanes: Array, width: int, word: int) -> Array:
        for own in _by_warp(addresses, lanes):
            ways[0] = max(ways[0], _ways(own, width))
        return get(self, addresses, lanes, width, word)

    monkeypatch.setattr(Memory, "write", writes)
    monkeypatch.setattr(Shared, "write", puts)
    monkeypatch.setattr(Shared, "read", gets)
    family, config = FAMILIES["hopper"], KernelConfig(128, 64, 64, 8, 1, 2)
    problem = GemmProblem(128, 64, 64, out_dtype=out_dtype, arch="sm_90a", specialisation="exact")
    kernel = Kernel(ptx_of(render(family.template, family.constants(problem, config)), "sm_90a"))
    kernel.late = True
    loaded = LoadedKernel(b"", kernel.program.name, launch_of(family, problem, config), problem, kernel)
    launched(problem, kernel, loaded, *operands_of(problem))
    assert stored[0] == 128 * 64 * problem.output.itemsize
    assert sectors[0] * _SECTOR == stored[0]
    assert 1 <= ways[0] <= 2
