"""What an access of a warp asks of memory: words of one bank of shared memory, and sectors of global memory.

Source: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks" (32 banks, 4 bytes wide) and "Coalesced Access
to Global Memory" (sectors of 32 bytes). A warp accesses 8 bytes a lane in two parts, and 16 bytes a lane in four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_BANKS, _WORD, _WARP = 32, 4, 32
SECTOR = 32


def by_warp(addresses: Array, lanes: Array) -> Iterator[Array]:
    """The addresses that each warp's lanes access at once."""
    for warp in np.unique(lanes // _WARP):
        yield addresses[lanes // _WARP == warp].astype(np.int64)


def ways_of(addresses: Array, width: int) -> int:
    """How many words of one bank an access of a warp asks for at once, at most."""
    together = _WARP * _WORD // max(width, _WORD)
    most = 0
    for first in range(0, len(addresses), together):
        part = addresses[first : first + together, None] // _WORD + np.arange(max(1, width // _WORD))
        most = max(most, int(np.bincount(np.unique(part) % _BANKS).max()))
    return most


def sectors_of(addresses: Array, width: int) -> int:
    """How many sectors an access of a warp touches. Counted from a place where one begins."""
    return len(np.unique((addresses[:, None] + np.arange(width)) // SECTOR))
