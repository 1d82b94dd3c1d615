"""How many words of one bank of shared memory an access of a warp asks for at once; each word costs a turn.

And how many sectors of global memory it touches.

Source: CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks" (32 banks, 4 bytes wide) and "Coalesced Access
to Global Memory" (sectors of 32 bytes). A warp accesses 8 bytes a lane in two parts, and 16 bytes a lane in four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.ptx.shared import Shared

Array = npt.NDArray[Any]
_BANKS, _WORD, _WARP = 32, 4, 32
SECTOR = 32


class Conflicts:
    """Those of all launches, from here on.

    Attributes:
        most: words of one bank that a part of an access asked for, at most, by what it was, with bytes: ``read 16``,
            ``write 4``, ``copy 16``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        read, write, copy = Shared.read, Shared.write, Shared.copy

        def reads(shared: Shared, addresses: Array, lanes: Array, width: int, word: int) -> Array:
            self._note("read", addresses, lanes, width)
            return read(shared, addresses, lanes, width, word)

        def writes(shared: Shared, addresses: Array, lanes: Array, words: Array) -> None:
            self._note("write", addresses, lanes, words.shape[1] * words.itemsize)
            write(shared, addresses, lanes, words)

        def copies(shared: Shared, addresses: Array, lanes: Array, words: Array) -> None:
            self._note("copy", addresses, lanes, words.shape[1] * words.itemsize)
            copy(shared, addresses, lanes, words)

        for name, patched in (("read", reads), ("write", writes), ("copy", copies)):
            monkeypatch.setattr(Shared, name, patched)

    def _note(self, what: str, addresses: Array, lanes: Array, width: int) -> None:
        for part in _parts(addresses, lanes, width):
            words = part[:, None] // _WORD + np.arange(max(1, width // _WORD))
            ways = int(np.bincount(np.unique(words) % _BANKS).max())
            self.most[f"{what} {width}"] = max(self.most[f"{what} {width}"], ways)


def sectors_of(addresses: Array, lanes: Array, width: int) -> int:
    """How many sectors the accesses touch, warp by warp, where address 0 is where one begins."""
    touched = (addresses.astype(np.int64)[:, None] + np.arange(width)) // SECTOR
    return sum(len(np.unique(touched[lanes // _WARP == warp])) for warp in np.unique(lanes // _WARP))


def _parts(addresses: Array, lanes: Array, width: int) -> Iterator[Array]:
    """Addresses that a warp accesses at once."""
    together = _WARP * _WORD // max(width, _WORD)
    for warp in np.unique(lanes // _WARP):
        own = addresses[lanes // _WARP == warp].astype(np.int64)
        for first in range(0, len(own), together):
            yield own[first : first + together]
