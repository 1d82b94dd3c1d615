"""Caches of which only names, sizes and ages are looked at: their entries are pickles, libraries, or unknown.

Their directories are taken from the documentation of JAX (persistent compilation cache), Inductor
(``TORCHINDUCTOR_CACHE_DIR``) and CUDA (``CUDA_CACHE_PATH``). TensorRT has no default directory.
Of these frameworks only JAX made a cache here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.folder import Folder
from cache_engine.foreign.frameworks.common import read_part, stamp_of, stray_file, subfolders, walk
from cache_engine.foreign.frameworks.triton import INDUCTOR_IN_VLLM, inductor_places, vllm_places
from cache_engine.foreign.values import DeletePlan, Entry, KeyFactors, Part, PartKind, Place, Seen, Unchanged, id_of
from cache_engine.model.outcome import Failure

WHY = "only names, sizes and ages are looked at"
_FACTS = {field.name for field in fields(Entry)} - {
    "id", "stamp", "parts", "state", "config", "unread", "created_at", "last_used_at", "elsewhere",
}  # fmt: skip


@dataclass(frozen=True)
class Sized:
    """A source of this kind.

    Attributes:
        found: where the framework has its cache, and the directories that the user names.
        areas: whether a folder of this path below the place has entries in it.
        others: names in it that are no entries: places of other sources, and locks.
        used: how the name of a file ends that is written at each use of an entry, and how that of the entry does.
    """

    kind: str
    title: str
    found: Callable[[Surroundings], Iterable[Place]]
    areas: Callable[[str], bool]
    others: tuple[str, ...] = ()
    used: tuple[str, str] | None = None

    @property
    def unknowable(self) -> Mapping[str, str]:
        """Every fact."""
        return dict.fromkeys(_FACTS, WHY)

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """See ``Source.discover``."""
        return self.found(where)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, self._entry, self.areas)

    def _entry(self, folder: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged | None:
        if path in self.others:
            return None
        entry = stray_file(folder, name, path, WHY)
        if self.used is not None:
            mark, end = self.used
            if name.endswith(mark) and _status(folder, name.removesuffix(mark) + end) is not None:
                return None  # a part of that entry
            if name.endswith(end):
                entry = _with_mark(entry, folder, name.removesuffix(end) + mark)
        return Unchanged(id_of(path)) if entry.stamp == known else entry

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``."""
        return read_part(place, part)

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """None."""
        return Failure(f"of {self.title}'s caches {WHY}")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """None."""
        return Failure(f"for {self.title}'s cache no way of deleting is known that no reader of it notices")


def _with_mark(entry: Entry, folder: Folder, name: str) -> Entry:
    """An entry with the file that is written at each use of it, if there is one."""
    status = _status(folder, name)
    if status is None:
        return entry
    part = Part("last use", PartKind.METADATA, status.st_size, id_of(name))
    stamp = f"{entry.stamp} {stamp_of(status)}"
    return replace(entry, parts=(*entry.parts, part), stamp=stamp, last_used_at=status.st_mtime)


def _status(folder: Folder, name: str) -> os.stat_result | None:
    """That of a regular file; ``None`` where there is none of this name."""
    try:
        status = folder.stat(name)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _inductor(path: str) -> bool:
    """Triton's kernels are a place of their own; the others are two folders deep."""
    return path.count("/") < 2 and not path.startswith("triton")


def jax() -> Sized:
    """A file for each program; with a limit of size another with the time of its last use, and a lock."""

    def found(where: Surroundings) -> Iterable[Place]:
        return where.places("jax", None, JAX_COMPILATION_CACHE_DIR="")

    return Sized("jax", "JAX", found, lambda _: False, (".lockfile",), ("-atime", "-cache"))


def inductor() -> Sized:
    """Pickles of graphs, and generated code."""

    def found(where: Surroundings) -> Iterable[Place]:
        yield from inductor_places(where)
        for place in vllm_places(where):  # vLLM sets the variable, whatever it was
            for pattern in INDUCTOR_IN_VLLM:
                for path in subfolders(place.path, *pattern):
                    yield Place("inductor", path, "vLLM", place.replaced_by)

    return Sized("inductor", "Inductor", found, _inductor, ("triton",))


def compute_cache() -> Sized:
    """What the driver compiled from PTX."""

    def found(where: Surroundings) -> Iterable[Place]:
        return where.places("compute_cache", ".nv/ComputeCache", CUDA_CACHE_PATH="")

    return Sized("compute_cache", "CUDA driver", found, lambda path: path.count("/") < 2)


def tensorrt() -> Sized:
    """Engines and timing caches, where the user names a directory of them."""
    return Sized("tensorrt", "TensorRT", lambda where: where.named("tensorrt"), lambda _: False)
