"""The program cache of cuda.core: a file for each program, whose name is the digest of its key.

Source of the layout: ``cuda/core/utils/_program_cache/_file_stream.py`` of cuda.core 1.2.2. It sets the
time of access itself on each read, and evicts by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.doctor import network_file_system, read_mounts
from cache_engine.foreign.facts import entry_of, image_facts, is_ptx, kernels_in, ptx_facts, without_binary
from cache_engine.foreign.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.foreign.frameworks.common import read_part, stamp_of, stray_file, times_of, walk
from cache_engine.foreign.values import (
    DeletePlan,
    Deletion,
    Entry,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Seen,
    State,
    Unchanged,
    first_of,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

_ENTRY = re.compile(r"entries/[0-9a-f]{2}/[0-9a-f]{30,126}")
_AREA = re.compile(r"entries|entries/[0-9a-f]{2}|tmp")
_ELF = b"\x7fELF"


class CudaCore:
    """The source ``cuda_core``."""

    kind = "cuda_core"
    title = "cuda.core"
    unknowable: Mapping[str, str] = {
        "version": "cuda.core does not store its version",
        "compile_ms": "cuda.core does not store how long a compile took",
        "spill_bytes": "cuda.core does not store the report of ptxas",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The default; other directories are the program's own choice."""
        below = "cuda-python/program-cache"
        return where.places(self.kind, f".cache/{below}", XDG_CACHE_HOME=below)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, _entry, lambda path: _AREA.fullmatch(path) is not None)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``."""
        return read_part(place, part)

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """None: cuda.core stores only the digest of them."""
        return Failure("cuda.core stores only the digest of a key's inputs")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A file each, as cuda.core itself evicts: a reader opens it at once, and takes a missing one for a miss."""
        if network := network_file_system(place.path, read_mounts()):
            return Failure(f"it is on {network}, where what a process reads may vanish")
        whole = [entry for entry in entries if _ENTRY.fullmatch(name_of(entry.id))]
        left = {entry.id: "it is no entry of cuda.core's" for entry in entries if entry not in whole}
        deletions = tuple(Deletion(entry.id, (entry.id,), "", entry.size_bytes) for entry in whole)
        return DeletePlan(deletions, left=left, keeps_folders=True)


def _entry(folder: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged:
    status = folder.stat(name)
    if known == stamp_of(status):
        return Unchanged(id_of(path))
    if not _ENTRY.fullmatch(path):
        return stray_file(folder, name, path)
    facts, unread, part = _facts(folder, path, name)
    created_at, last_used_at = times_of(status)
    facts |= {
        "id": id_of(path),
        "stamp": stamp_of(status),
        "parts": (Part(*part, status.st_size, id_of(path)),),
        "created_at": created_at,
        "last_used_at": last_used_at,
    }
    return entry_of(facts, unread)


def _facts(folder: Folder, path: str, name: str) -> tuple[dict[str, Any], dict[str, str], tuple[str, PartKind]]:
    """What is known, why the rest is not, and what kind of file it is: its first bytes tell."""
    try:
        data = folder.read(name, MOST_BINARY_BYTES)
    except Unread as error:
        return {"state": State.UNREAD}, {"name": str(error), **without_binary(str(error))}, ("file", PartKind.OTHER)
    if data.startswith(_ELF):
        facts, unread = image_facts(data, id_of(path))
        names = kernels_in(data)
        return (
            {**facts, "name": first_of(names)},
            {"name": "it has no kernel", **unread},
            ("cubin", PartKind.BINARY),
        )
    if is_ptx(data):
        return *ptx_facts(data), ("ptx", PartKind.PTX)
    if not data:  # cuda.core 1.2 returns it all the same
        why = "it is empty: cuda.core takes it for a hit of 0 bytes"
        return {}, {"name": why, **without_binary(why)}, ("file", PartKind.BINARY)
    why = "it is neither a CUBIN nor PTX"
    return {}, {"name": why, **without_binary(why)}, ("file", PartKind.OTHER)
