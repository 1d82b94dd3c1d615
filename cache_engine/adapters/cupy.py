"""CuPy keeps its kernels in our store, once ``use_store()`` was called in the process.

CuPy has no public way for that. Its private one (``_set_kernel_cache_backend``) is used where it is as in the versions
that this was tested with; anywhere else CuPy's own cache stays in use. Keys are CuPy's. Whatever fails in the store is
a warning in the log, and a miss: CuPy compiles.
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
    register(backend(Programs(stored, "cupy", "CuPy", cupy.__version__)))
    return True


class _Backend:
    """The methods of CuPy's ``KernelCacheBackend``."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def load(self, name: str) -> bytes | None:
        """A program as CuPy gave it, every byte checked; ``None`` when it is to be compiled."""
        return self._programs.get(name)

    def save(self, name: str, cubin: Any, source: str) -> None:
        """Stores a program, with its source."""
        self._programs.put(name, cubin, source=source)
