"""CuPy's cache: a file for each program, with the digest of its content in front.

Source of the layout: ``cupy/cuda/_compiler_cache.py`` and ``cupy/cuda/compiler.py`` of CuPy 14.2.0.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cache_engine.compilers.elf import lacks_last_byte
from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.facts import entry_of, image_facts, kernels_in, without_binary
from cache_engine.foreign.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.foreign.frameworks.common import read_part, stamp_of, stray_file, times_of, walk
from cache_engine.foreign.values import (
    MOST_NAME,
    DeletePlan,
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
)
from cache_engine.model.outcome import Failure

_NAME = re.compile(r"[0-9a-f]{32,64}\.(cubin|ltoir|hsaco)")
_DIGEST_BYTES = 40  # of SHA-1, in hexadecimal digits; 32 in versions before 11, whose files are not read
_NAMES_MAGIC = b"\x93CUPYNE\x00"
_MOST_NAMES = 10_000


class CuPy:
    """The source ``cupy``."""

    kind = "cupy"
    title = "CuPy"
    unknowable: Mapping[str, str] = {
        "version": "CuPy does not store its version",
        "compile_ms": "CuPy does not store how long a compile took",
        "spill_bytes": "CuPy does not store the report of ptxas",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """Where ``CUPY_CACHE_DIR`` says, else the default."""
        return where.places(self.kind, ".cupy/kernel_cache", CUPY_CACHE_DIR="")

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, _entry, lambda _: False)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``. Of a program the CUBIN alone, without the digest and the names in front.

        CuPy cuts off its last byte, a zero, without which NVIDIA's tools read nothing of it; it is put there again.
        """
        data = read_part(place, part)
        if isinstance(data, Failure) or part.kind != PartKind.BINARY:
            return data
        return with_last_byte(program_in(data[_DIGEST_BYTES:])[1])

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """None: CuPy stores only the digest of them."""
        return Failure("CuPy stores only the digest of a key's inputs; the source is stored where it was asked to")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """None: CuPy looks whether a file exists, and then opens it."""
        return Failure("CuPy fails where a file vanishes between its look and its opening, so no way is safe")


def _entry(root: Folder, _: str, name: str, known: str | None) -> Entry | Unchanged | None:
    status = root.stat(name)
    if known == stamp_of(status):
        return Unchanged(id_of(name))
    if not _NAME.fullmatch(name):
        # The source of a program is a part of it, unless the program is gone.
        if name.endswith(".cu") and _NAME.fullmatch(name.removesuffix(".cu")) and _is_there(root, name[:-3]):
            return None
        return stray_file(root, name)
    if not stat.S_ISREG(status.st_mode):
        return stray_file(root, name)
    parts = [Part(name.rpartition(".")[2], PartKind.BINARY, status.st_size, id_of(name))]
    if (source := _size(root, f"{name}.cu")) is not None:
        parts.append(Part("source", PartKind.SOURCE, source, id_of(f"{name}.cu")))
    facts, unread = _facts(root, name)
    created_at, last_used_at = times_of(status)
    facts |= {
        "id": id_of(name),
        "stamp": stamp_of(status),
        "parts": tuple(parts),
        "created_at": created_at,
        "last_used_at": last_used_at,
    }
    return entry_of(facts, unread)


def _facts(root: Folder, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        data = root.read(name, MOST_BINARY_BYTES)
    except Unread as error:
        return {"state": State.UNREAD}, {"name": str(error), **without_binary(str(error))}
    payload = data[_DIGEST_BYTES:]
    # The digest is CuPy's own check for damage; what fails it is compiled again.
    if hashlib.sha1(payload, usedforsecurity=False).hexdigest().encode() != data[:_DIGEST_BYTES]:
        why = "its digest is not that of its content: CuPy compiles this program again"
        return {"state": State.PARTIAL}, {"name": why, **without_binary(why)}
    instances, image = program_in(payload)
    facts, unread = image_facts(image, id_of(name))
    kernels = instances or kernels_in(image)
    config = {"kernels": len(kernels)} if len(kernels) > 1 else {}
    return {**facts, "name": first_of(kernels), "config": config}, {
        "name": f"{id_of(name)}: it has no kernel",
        **unread,
    }


def program_in(payload: bytes) -> tuple[tuple[str, ...], bytes]:
    """The names of the instances of templates that are in front of a CUBIN, if any, as far as shown; and the CUBIN."""
    if not payload.startswith(_NAMES_MAGIC):
        return (), payload
    at, found = len(_NAMES_MAGIC), []
    try:
        (count,) = struct.unpack_from("<I", payload, at)
        at += 4
        for _ in range(min(count, _MOST_NAMES)):
            (size,) = struct.unpack_from("<I", payload, at)
            found.append(payload[at + 4 : at + 4 + min(size, MOST_NAME)].decode(errors="replace"))
            at += 4 + size
    except struct.error:
        return (), payload
    return tuple(found), payload[at:]


def with_last_byte(image: bytes) -> bytes:
    """A CUBIN as NVIDIA's tools read it: CuPy leaves out its last byte, a zero."""
    return image + b"\0" if lacks_last_byte(image) else image


def _size(root: Folder, name: str) -> int | None:
    try:
        status = root.stat(name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _is_there(root: Folder, name: str) -> bool:
    return _size(root, name) is not None
