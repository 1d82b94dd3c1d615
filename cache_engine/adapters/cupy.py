"""Stores CuPy's kernels in our store, once ``use_store()`` was called in the process.

CuPy has no public interface for that. Its private function ``_set_kernel_cache_backend`` is used if it looks as in the
versions of CuPy that we have tested; otherwise CuPy's own cache stays in use. Keys are CuPy's. A failure of the store
is a warning in the log and a miss: CuPy then compiles.
"""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

from cache_engine.adapters.shelf import Programs, shelf

_log = logging.getLogger(__name__)

_MAJOR = "14."
_METHODS = {"load": ["self", "name"], "save": ["self", "name", "cubin", "source"]}


def use_store(dir: str | Path | None = None) -> bool:
    """Makes CuPy store its kernels in the store in ``dir``, by default that of the settings.

    Returns:
        Whether CuPy now uses the store. False if no store can be used, or if CuPy's version differs from the known
        ones.
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
    register(backend(Programs(stored, "cupy", "CuPy", cupy.__version__)))
    return True


class _Backend:
    """The methods of CuPy's ``KernelCacheBackend``."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def load(self, name: str) -> bytes | None:
        """A program's bytes as CuPy stored them, verified by checksum; ``None`` if CuPy must compile it."""
        return self._programs.get(name)

    def save(self, name: str, cubin: Any, source: str) -> None:
        """Stores a program and its source."""
        self._programs.put(name, cubin, source=source)
