"""Readers that look only at names, sizes and ages, because the entries are libraries, or of an unknown format.

The directories are from the documentation of JAX (persistent compilation cache) and CUDA (``CUDA_CACHE_PATH``).
TensorRT has no default directory. Only JAX's reader was tested on a cache that its framework made.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import fields, replace

from cache_engine.frameworks.folder import Folder
from cache_engine.frameworks.readers.reader import Reader, stamp_of, stray_file
from cache_engine.frameworks.values import Entry, KeyFactors, Part, PartKind, Place, Unchanged, id_of
from cache_engine.model.outcome import Failure

WHY = "only names, sizes and ages are looked at"
_FACTS = {field.name for field in fields(Entry)} - {
    "id", "stamp", "parts", "state", "config", "unread", "created_at", "last_used_at", "elsewhere",
}  # fmt: skip


class Sized(Reader):
    """A reader that looks only at names, sizes and ages.

    Attributes:
        others: names in the cache's directory that are not entries: caches of other readers, and locks.
        used: two endings of names: that of a file which the framework writes at each use of an entry, and that of the
            entry.
    """

    others: tuple[str, ...] = ()
    used: tuple[str, str] | None = None
    stores = ("version", "compile_ms", "spill_bytes")  # whether they do is not looked at
    unknown: Mapping[str, str] = dict.fromkeys(_FACTS, WHY)

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """The entry of a file or folder.

        A file that the framework writes at each use of an entry is a part of that entry, and no entry itself.
        """
        if path in self.others:
            return None
        name = path.rpartition("/")[2]
        entry = stray_file(above, name, path, WHY)
        if self.used is not None:
            mark, end = self.used
            if name.endswith(mark) and _status(above, name.removesuffix(mark) + end) is not None:
                return None  # a part of that entry
            if name.endswith(end):
                entry = _with_mark(entry, above, name.removesuffix(end) + mark)
        return entry

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """A failure: the inputs of a key are not read."""
        return Failure(f"of {self.title}'s caches {WHY}")


def _with_mark(entry: Entry, folder: Folder, name: str) -> Entry:
    status = _status(folder, name)
    if status is None:
        return entry
    part = Part("last use", PartKind.METADATA, status.st_size, id_of(name))
    stamp = f"{entry.stamp} {stamp_of(status)}"
    return replace(entry, parts=(*entry.parts, part), stamp=stamp, last_used_at=status.st_mtime)


def _status(folder: Folder, name: str) -> os.stat_result | None:
    """The status of a regular file; ``None`` if no file has this name."""
    try:
        status = folder.stat(name)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


class Jax(Sized):
    """The reader of JAX's cache: a file for each program.

    If JAX limits the cache's size, each program has a second file with the time of its last use, and the cache a lock.
    """

    kind = "jax"
    title = "JAX"
    variables: Mapping[str, str] = {"JAX_COMPILATION_CACHE_DIR": ""}
    others = (".lockfile",)
    used = ("-atime", "-cache")


class ComputeCache(Sized):
    """The reader of the driver's cache: code that the driver compiled from PTX."""

    kind = "compute_cache"
    title = "CUDA driver"
    default = ".nv/ComputeCache"
    variables: Mapping[str, str] = {"CUDA_CACHE_PATH": ""}
    areas = re.compile(r"[^/]+(/[^/]+)?")


class TensorRT(Sized):
    """The reader of TensorRT's engines and timing caches, in directories that the user names."""

    kind = "tensorrt"
    title = "TensorRT"
