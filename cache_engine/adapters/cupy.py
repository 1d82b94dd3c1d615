"""CuPy keeps its kernels in our store, once ``use_store()`` was called in the process.

CuPy has no public way for that. Its private one (``_set_kernel_cache_backend``) is used where it is as in the versions
that this was tested with; anywhere else CuPy's own cache stays in use. Keys are CuPy's. Whatever fails in the store is
a warning in the log, and a miss: CuPy compiles.
"""

from __future__ import annotations

import inspect
import logging
import time
from pathlib import Path
from typing import Any

from cache_engine.adapted.groups import Group
from cache_engine.adapters.shelf import Shelf, shelf

_log = logging.getLogger(__name__)

_FRAMEWORK, _PART, _SOURCE = "cupy", "program", "program.source"
_MAJOR = "14."
_METHODS = {"load": ["self", "name"], "save": ["self", "name", "cubin", "source"]}
_MOST_COMPILING = 1000


def use_store(dir: str | Path | None = None) -> bool:
    """Lets CuPy keep its kernels in the store in ``dir``, by default that of the settings.

    Returns:
        Whether it does: not where no store can be used, nor with a version of CuPy that differs from the known ones.
    """
    stored = shelf(dir)
    if stored is None:
        return False
    import cupy

    try:
        from cupy.cuda import _compiler_cache, compiler

        base, register = _compiler_cache.KernelCacheBackend, compiler._set_kernel_cache_backend  # noqa: SLF001
        is_known = cupy.__version__.startswith(_MAJOR) and base.__abstractmethods__ == frozenset(_METHODS)
        is_known &= all(list(inspect.signature(getattr(base, name)).parameters) == _METHODS[name] for name in _METHODS)
    except (ImportError, AttributeError, TypeError, ValueError):
        is_known = False
    if not is_known:
        _log.warning("CuPy %s is not a version whose cache can be replaced; it uses its own", cupy.__version__)
        return False
    backend = type("StoreBackend", (_Backend, base), {})
    register(backend(stored, cupy.__version__))
    return True


class _Backend:
    """The methods of CuPy's ``KernelCacheBackend``."""

    def __init__(self, stored: Shelf, version: str) -> None:
        self._shelf, self._version = stored, version
        self._missed_at: dict[str, float] = {}

    def load(self, name: str) -> bytes | None:
        """A program as CuPy gave it, every byte checked; ``None`` when it is to be compiled."""
        try:
            stored = self._shelf.get(_FRAMEWORK, name, _PART)
            if stored is not None:
                return stored.group.files[_PART]
        except Exception as error:  # damage, a disk that fails, a format from the future: CuPy compiles
            _log.warning("a program of CuPy is compiled again: %s", error)
        if len(self._missed_at) < _MOST_COMPILING:
            self._missed_at[name] = time.perf_counter()
        return None

    def save(self, name: str, cubin: Any, source: str) -> None:
        """Stores a program, with its source. The time since it was missed is that of its compile."""
        missed_at = self._missed_at.pop(name, None)
        stages_ms = {} if missed_at is None else {"compile": (time.perf_counter() - missed_at) * 1e3}
        try:
            files = {_PART: bytes(cubin), _SOURCE: source.encode(errors="replace")}
            self._shelf.put(Group(_FRAMEWORK, name, _PART, files, time.time(), stages_ms, self._version))
        except Exception as error:  # a full disk, a read-only store: whatever it is, the program is compiled and works
            _log.warning("a program of CuPy is not stored: %s", error)
