"""Stores Triton's kernels in our store: ``TRITON_CACHE_MANAGER=cache_engine.adapters.triton:CacheManager``.

Only Triton imports this module. Triton makes one ``CacheManager`` for each key. For a kernel it calls ``get_group``
first. If that finds nothing, Triton compiles, gives each part to ``put``, and gives the paths of all parts to
``put_group``. Triton reads parts by path, so they are written to a folder of this process, which is deleted when the
process ends.

``get_file`` serves two other kinds of files: libraries for the host, which Triton loads into the process, and results
of tuning. Such files stay in Triton's directory, and so do kernels that the store cannot take. A failure is a warning
in the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from triton import knobs
from triton.runtime import cache as triton_cache

from cache_engine.adapters.shelf import Shelf, add_files, files_of, shelf, write_files
from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import Group, is_plain

_log = logging.getLogger(__name__)

_FRAMEWORK = "triton"
# What a process would load and run. A kernel of a CPU backend is such a file.
_OF_HOST = (".so", ".pyd", ".dylib", ".dll")
_thread = threading.local()  # refers to the lock of the kernel that a thread compiles, or has failed to


class CacheManager(triton_cache.CacheManager):  # type: ignore[misc] # Triton has no types
    """Triton's cache for one key."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        """Stores the arguments; touches no file of Triton.

        Args:
            key: Triton's key.
            override, dump: use Triton's own directories for debugging.
        """
        self._key = key
        self._shelf = None if override or dump else shelf()
        self._make_own = partial(triton_cache.FileCacheManager, key, override=override, dump=dump)
        self._own: Any = None
        self._is_kernel = False
        self._parts: str | None = None
        self._paths: dict[str, str] = {}
        self._stages_ms: dict[str, float] = {}
        self._compiling = ExitStack()
        self._began = time.perf_counter()

    def get_file(self, filename: str) -> str | None:
        """The path of one file, of this manager's kernel or in Triton's directory; ``None`` if it is not stored."""
        found: str | None = self._paths.get(filename) or self._triton_s.get_file(filename)
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Stores a part of a kernel until ``put_group``, or any other file in Triton's directory; returns its path."""
        if self._is_kernel and is_plain(filename) and not filename.endswith(_OF_HOST):
            # Some parts are objects of the compiler, whose text is meant.
            content = data if isinstance(data, bytes) else str(data).encode()
            self._note_stage(filename)
            try:
                if self._parts is None:
                    self._paths |= write_files({filename: content})
                    self._parts = os.path.dirname(self._paths[filename])
                else:
                    self._paths |= add_files(self._parts, {filename: content})
                self._began = time.perf_counter()
                return self._paths[filename]
            except Exception as error:  # a full disk, a TMPDIR that is not there: Triton's directory takes it
                _log.warning("a part of a kernel of Triton goes to its own directory: %s", error)
        path: str = self._triton_s.put(data, filename, binary=binary)
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of a kernel's parts by name, their bytes verified; ``None`` if Triton must compile the kernel."""
        if self._shelf is not None:
            self._is_kernel = True
            try:
                found = self._stored_group(self._shelf, filename)
            except CorruptEntry as error:
                _log.warning("a kernel of Triton is compiled again: %s", error)
                self._began = time.perf_counter()
                return None
            except Exception as error:  # a disk that fails, a format from the future: whatever it is, Triton goes on
                _log.warning("a kernel of Triton is not read from the store: %s", error)
                self._is_kernel, found = False, None
            self._began = time.perf_counter()
            if found is not None:
                return found
            if not (knobs.cache.dir and os.path.isdir(os.path.join(knobs.cache.dir, self._key))):
                # Triton's own manager would make an empty folder.
                return self._after_others(self._shelf, filename) if self._is_kernel else None
        own: dict[str, str] | None = self._triton_s.get_group(filename)
        return own

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        """Stores a kernel, whose parts ``put`` was given.

        If the store cannot take the kernel, it is written to Triton's directory.
        """
        if self._shelf is None or not self._is_kernel:
            self._triton_s.put_group(filename, group)
            return
        with self._compiling:
            self._put_group(self._shelf, filename, group)

    def _put_group(self, stored: Shelf, filename: str, group: dict[str, str]) -> None:
        files: dict[str, bytes] = {}
        try:
            files = {name: Path(path).read_bytes() for name, path in group.items()}
            if not any(name.endswith(_OF_HOST) for name in files):
                made = Group(_FRAMEWORK, self._key, filename, files, time.time(), self._stages_ms)
                stored.put(made, _target(files[filename]))
                return
        except Exception as error:  # a full disk, a read-only store: whatever it is, the kernel is compiled and works
            _log.warning("a kernel of Triton goes to its own directory: %s", error)
        try:
            if files:
                own = self._triton_s
                own.put_group(filename, {name: own.put(data, name) for name, data in files.items()})
        except Exception as error:  # neither takes it, and the kernel is compiled and works
            _log.warning("a kernel of Triton is not stored: %s", error)

    def _after_others(self, stored: Shelf, filename: str) -> dict[str, str] | None:
        """The kernel's files by name, if another process compiled it meanwhile; else ``None``, and others wait for us.

        Other processes that need the kernel wait until this one calls ``put_group``, or until Triton drops this manager
        because the compile failed.
        """
        earlier = getattr(_thread, "compiling", lambda: None)()
        if earlier is not None:  # failed, and something still refers to it
            earlier.close()
        self._compiling = ExitStack()
        _thread.compiling = ref(self._compiling)
        found = None
        try:
            self._compiling.enter_context(stored.lock(_FRAMEWORK, self._key, filename))
            found = self._stored_group(stored, filename)
        except Exception as error:  # no disk for a lock, or another that takes too long: this process compiles too
            _log.info("a kernel of Triton is compiled without waiting for others: %s", error)
        if found is not None:
            self._compiling.close()
        self._began = time.perf_counter()
        return found

    @property
    def _triton_s(self) -> Any:
        """Triton's own cache manager, which makes a folder for the key."""
        if self._own is None:
            self._own = self._make_own()
        return self._own

    def _stored_group(self, stored: Shelf, filename: str) -> dict[str, str] | None:
        found = stored.get(_FRAMEWORK, self._key, filename)
        if found is None:
            return None
        self._paths = files_of(found)
        return self._paths

    def _note_stage(self, filename: str) -> None:
        stage = filename.rpartition(".")[2]
        if stage != "json":  # the metadata, which no stage of the compile makes
            self._stages_ms[stage] = (time.perf_counter() - self._began) * 1e3


def _target(metadata: bytes) -> str:
    """The target that Triton has just compiled for, read from the kernel's metadata."""
    from cache_engine.frameworks.facts import json_object  # not for a hit
    from cache_engine.frameworks.readers.triton import target_of

    return target_of(json_object(metadata)) or ""
