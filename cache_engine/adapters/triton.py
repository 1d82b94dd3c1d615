"""Triton keeps its kernels in our store: ``TRITON_CACHE_MANAGER=cache_engine.adapters.triton:CacheManager``.

Only Triton imports this. It makes one manager for each key. For a kernel it asks ``get_group`` first; if that finds
nothing, it compiles, gives each part to ``put``, and their paths to ``put_group``. It reads parts by their paths, so
they are written to a folder of this process, which is deleted at its end.

Libraries for the host, which Triton loads into the process, and results of tuning are asked for with ``get_file``:
those stay in Triton's directory, and so does all that the store cannot take. Whatever fails here is a warning in the
log.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime import cache as triton_cache

from cache_engine.adapters.groups import (
    Group,
    files_below,
    group_key,
    is_plain,
    note_use,
    put_group,
    read_group,
    write_files,
)
from cache_engine.config import Settings
from cache_engine.errors import CorruptEntry
from cache_engine.process import run_at_end
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout

_log = logging.getLogger(__name__)

_FRAMEWORK = "triton"
# What a process would load and run. A kernel of a CPU backend is such a file.
_OF_HOST = (".so", ".pyd", ".dylib", ".dll")


class CacheManager(triton_cache.CacheManager):  # type: ignore[misc] # Triton has no types
    """The cache of one key of Triton."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        """Touches no file of Triton.

        Args:
            key: Triton's.
            override, dump: Triton's own directories for debugging are meant, and used.
        """
        self._key = key
        self._store = None if override or dump else _store()
        self._make_own = partial(triton_cache.FileCacheManager, key, override=override, dump=dump)
        self._own: Any = None
        self._is_kernel = False
        self._parts: Path | None = None
        self._paths: dict[str, str] = {}

    def get_file(self, filename: str) -> str | None:
        """The path of one file; ``None`` if it is not stored."""
        found: str | None = self._paths.get(filename) or self._triton_s.get_file(filename)
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keeps a part of a kernel for ``put_group``, or a file of its own in Triton's directory; returns its path."""
        if self._is_kernel and is_plain(filename) and not filename.endswith(_OF_HOST):
            # Some parts are objects of the compiler, whose text is meant.
            content = data if isinstance(data, bytes) else str(data).encode()
            try:
                if self._parts is None:
                    self._parts = Path(tempfile.mkdtemp(dir=_folder()))
                self._paths |= write_files(self._parts, {filename: content})
                return self._paths[filename]
            except OSError as error:
                _log.warning("a part of a kernel of Triton goes to its own directory: %s", error)
        path: str = self._triton_s.put(data, filename, binary=binary)
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of a kernel's parts by name, with their bytes checked; ``None`` when it is to be compiled."""
        if self._store is not None:
            self._is_kernel = True
            try:
                found = self._stored_group(self._store[0], filename)
            except CorruptEntry as error:
                _log.warning("a kernel of Triton is compiled again: %s", error)
                return None
            except Exception as error:  # a disk that fails, a format from the future: whatever it is, Triton goes on
                _log.warning("a kernel of Triton is not read from the store: %s", error)
                self._is_kernel, found = False, None
            if found is not None:
                return found
            if not (knobs.cache.dir and Path(knobs.cache.dir, self._key).is_dir()):
                return None  # Triton's own manager would make an empty folder
        own: dict[str, str] | None = self._triton_s.get_group(filename)
        return own

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        """Stores a kernel, whose parts were ``put``. If the store cannot take it, Triton's directory does."""
        if self._store is None or not self._is_kernel:
            self._triton_s.put_group(filename, group)
            return
        files: dict[str, bytes] = {}
        try:
            files = {name: Path(path).read_bytes() for name, path in group.items()}
            if not any(name.endswith(_OF_HOST) for name in files):
                layout, is_durable = self._store
                put_group(layout, Group(_FRAMEWORK, self._key, filename, files), durable=is_durable)
                return
        except Exception as error:  # a full disk, a read-only store: whatever it is, the kernel is compiled and works
            _log.warning("a kernel of Triton goes to its own directory: %s", error)
        try:
            if files:
                own = self._triton_s
                own.put_group(filename, {name: own.put(data, name) for name, data in files.items()})
        except OSError as error:
            _log.warning("a kernel of Triton is not stored: %s", error)

    @property
    def _triton_s(self) -> Any:
        """Triton's own manager, which makes a folder for the key."""
        if self._own is None:
            self._own = self._make_own()
        return self._own

    def _stored_group(self, layout: StoreLayout, filename: str) -> dict[str, str] | None:
        key = group_key(_FRAMEWORK, self._key, filename)
        group = read_group(layout, key, trust=layout.trust)
        if group is None:
            return None
        note_use(layout, key)
        self._paths = files_below(_folder(), group.files)
        return self._paths


@cache
def _store() -> tuple[StoreLayout, bool] | None:
    """The store of the settings, and whether to sync what is written; ``None`` where no store can be used."""
    try:
        settings = Settings.load()
        if settings.uses_directory:
            return open_store(settings.directory(), trust=settings.trust_store), settings.is_durable
    except Exception as error:  # a setting, a directory, a disk: whatever it is, Triton works without
        _log.warning("kernels of Triton go to its own directory: %s", error)
    return None


_folders: dict[int, Path] = {}
"""By process: a fork must not use that of its parent, which deletes it."""


def _folder() -> Path:
    """Where this process has parts of kernels.

    Raises:
        OSError: when it cannot be made.
    """
    me = os.getpid()
    if me not in _folders:
        _folders[me] = Path(tempfile.mkdtemp(prefix="gemm-cache-kernels-"))
        run_at_end(partial(_delete, _folders[me], me))
    return _folders[me]


def _delete(folder: Path, of_process: int) -> None:
    if os.getpid() == of_process:
        shutil.rmtree(folder, ignore_errors=True)
