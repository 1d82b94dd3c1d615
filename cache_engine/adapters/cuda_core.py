"""Stores cuda.core's programs in our store: ``program.compile("cubin", cache=ProgramCache())``.

``ProgramCache`` is a ``ProgramCacheResource`` of cuda.core, like its own ``FileStreamProgramCache``. Keys are
cuda.core's. A failure of the store is a warning in the log and a miss: cuda.core then compiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda.core import ObjectCode, __version__
from cuda.core.utils import ProgramCacheResource

from cache_engine.adapters.shelf import PROGRAM, Programs, shelf

_FRAMEWORK = "cuda_core"


class ProgramCache(ProgramCacheResource):  # type: ignore[misc] # cuda.core may be missing where types are checked
    """A cache of cuda.core's compiled programs, in a store of ours. Safe in several threads and processes."""

    def __init__(self, dir: str | Path | None = None) -> None:
        """Opens the store in ``dir``, creating it if it does not exist; by default the store of the settings.

        If no store can be used, nothing is cached.
        """
        self._programs = Programs(shelf(dir), _FRAMEWORK, "cuda.core", __version__)

    def __getitem__(self, key: bytes | str) -> bytes:
        """The bytes of a program, verified by checksum; raises ``KeyError`` if it is not stored or is damaged."""
        code = self._programs.get(_name(key))
        if code is None:
            raise KeyError(key)
        return code

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        """Stores a program, with the time since its miss as its compile time."""
        self._programs.put(_name(key), _bytes(value))

    def __delitem__(self, key: bytes | str) -> None:
        """Deletes a program, unless it is pinned; raises ``KeyError`` if it is not stored."""
        stored = self._programs.shelf
        if stored is None or not stored.delete(_FRAMEWORK, _name(key), PROGRAM):
            raise KeyError(key)

    def __len__(self) -> int:
        """The number of cuda.core's programs in the store, whichever process stored them.

        Reads the records of all of them.
        """
        stored = self._programs.shelf
        return 0 if stored is None else sum(1 for _ in stored.groups(_FRAMEWORK))

    def clear(self) -> None:
        """Deletes all of cuda.core's programs from the store, whichever process stored them, except pinned ones."""
        stored = self._programs.shelf
        if stored is not None:
            for group in stored.groups(_FRAMEWORK):
                stored.delete(_FRAMEWORK, group.name, PROGRAM)


def _name(key: object) -> str:
    if isinstance(key, str):
        return key.encode().hex()
    if isinstance(key, (bytes, bytearray)):
        return key.hex()
    raise TypeError(f"a key of a program is bytes or str, not {type(key).__name__}")


def _bytes(value: Any) -> bytes:
    """The bytes of a program; if it is in a file, the file's bytes."""
    code = value.code if isinstance(value, ObjectCode) else value
    if isinstance(code, str):
        return Path(code).read_bytes()
    if isinstance(code, (bytes, bytearray, memoryview)):
        return bytes(code)
    raise TypeError(f"a program is bytes or an ObjectCode, not {type(value).__name__}")
