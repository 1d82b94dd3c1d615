"""cuda.core keeps its programs in our store: ``program.compile("cubin", cache=ProgramCache())``.

``ProgramCache`` is a ``ProgramCacheResource`` of cuda.core, next to its own ``FileStreamProgramCache``. Keys are
cuda.core's. Whatever fails in the store is a warning in the log, and a miss: cuda.core compiles.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from cuda.core import ObjectCode, __version__
from cuda.core.utils import ProgramCacheResource

from cache_engine.adapted.groups import Group
from cache_engine.adapters.shelf import shelf

_log = logging.getLogger(__name__)

_FRAMEWORK, _PART = "cuda_core", "program"
_MOST_COMPILING = 1000


class ProgramCache(ProgramCacheResource):  # type: ignore[misc] # cuda.core may be missing where types are checked
    """Compiled programs in a store. Safe in several threads and processes."""

    def __init__(self, dir: str | Path | None = None) -> None:
        """Opens the store in ``dir``, making it when it does not exist; by default that of the settings.

        Where no store can be used, nothing is cached.
        """
        self._shelf = shelf(dir)
        self._missed_at: dict[str, float] = {}

    def __getitem__(self, key: bytes | str) -> bytes:
        """The bytes of a program, every one checked; raises ``KeyError``."""
        name = _name(key)
        try:
            stored = None if self._shelf is None else self._shelf.get(_FRAMEWORK, name, _PART)
            if stored is not None:
                return stored.group.files[_PART]
        except Exception as error:  # damage, a disk that fails, a format from the future: cuda.core compiles
            _log.warning("a program of cuda.core is compiled again: %s", error)
        if len(self._missed_at) < _MOST_COMPILING:
            self._missed_at[name] = time.perf_counter()
        raise KeyError(key)

    def __setitem__(self, key: bytes | str, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        """Stores a program. The time since it was missed is that of its compile."""
        name, code = _name(key), _bytes(value)
        missed_at = self._missed_at.pop(name, None)
        stages_ms = {} if missed_at is None else {"compile": (time.perf_counter() - missed_at) * 1e3}
        try:
            if self._shelf is not None:
                self._shelf.put(Group(_FRAMEWORK, name, _PART, {_PART: code}, time.time(), stages_ms, __version__))
        except Exception as error:  # a full disk, a read-only store: whatever it is, the program is compiled and works
            _log.warning("a program of cuda.core is not stored: %s", error)

    def __delitem__(self, key: bytes | str) -> None:
        """Deletes a program, unless it is pinned; raises ``KeyError`` when there is none."""
        if self._shelf is None or not self._shelf.delete(_FRAMEWORK, _name(key), _PART):
            raise KeyError(key)

    def __len__(self) -> int:
        """How many programs of cuda.core the store has, whichever process put them there. Reads all groups."""
        return 0 if self._shelf is None else sum(1 for _ in self._shelf.groups(_FRAMEWORK))

    def clear(self) -> None:
        """Deletes all programs of cuda.core from the store, whichever process put them there, but pinned ones."""
        if self._shelf is not None:
            for group in self._shelf.groups(_FRAMEWORK):
                self._shelf.delete(_FRAMEWORK, group.name, _PART)


def _name(key: object) -> str:
    if isinstance(key, str):
        return key.encode().hex()
    if isinstance(key, (bytes, bytearray)):
        return key.hex()
    raise TypeError(f"a key of a program is bytes or str, not {type(key).__name__}")


def _bytes(value: Any) -> bytes:
    """The bytes of a program; of one that is in a file, those of the file."""
    code = value.code if isinstance(value, ObjectCode) else value
    if isinstance(code, str):
        return Path(code).read_bytes()
    if isinstance(code, (bytes, bytearray, memoryview)):
        return bytes(code)
    raise TypeError(f"a program is bytes or an ObjectCode, not {type(value).__name__}")
