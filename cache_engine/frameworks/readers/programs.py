"""The caches of CuPy and cuda.core: one file for each program.

A file of CuPy begins with the digest of the rest. Source of the layout: ``cupy/cuda/_compiler_cache.py`` and
``cupy/cuda/compiler.py`` of CuPy 14.2.0.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
from collections.abc import Mapping, Sequence

from cache_engine.compilers.elf import lacks_last_byte
from cache_engine.frameworks.facts import image_facts, is_ptx, kernels_in, ptx_facts
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import Known, Reader, made, nothing_known, plan_local, stamp_of, stray_file
from cache_engine.frameworks.values import (
    MOST_NAME,
    DeletePlan,
    Deletion,
    Entry,
    KeyFactors,
    Part,
    PartKind,
    Place,
    State,
    Unchanged,
    first_of,
    id_of,
)  # fmt: skip
from cache_engine.model.outcome import Failure

_DIGEST_BYTES = 40  # of SHA-1, in hexadecimal digits; 32 in versions before 11, whose files are not read
_NAMES_MAGIC = b"\x93CUPYNE\x00"
_MOST_NAMES = 10_000


class CuPy(Reader):
    """The reader of CuPy's cache."""

    kind = "cupy"
    title = "CuPy"
    default = ".cupy/kernel_cache"
    variables: Mapping[str, str] = {"CUPY_CACHE_DIR": ""}
    entries = re.compile(r"[0-9a-f]{32,64}\.(cubin|ltoir|hsaco)")

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """The entry of a CUBIN's file; the program's source, in another file, is a part of the same entry."""
        status = above.stat(path)
        if known == stamp_of(status):
            return Unchanged(id_of(path))
        if not self.entries.fullmatch(path) or not stat.S_ISREG(status.st_mode):
            # The source of a program is a part of it, unless the program is gone.
            program = path.removesuffix(".cu")
            is_part = program != path and self.entries.fullmatch(program) and _size(above, program) is not None
            return None if is_part else stray_file(above, path, path)
        parts = [Part(path.rpartition(".")[2], PartKind.BINARY, status.st_size, id_of(path))]
        if (source := _size(above, f"{path}.cu")) is not None:
            parts.append(Part("source", PartKind.SOURCE, source, id_of(f"{path}.cu")))
        facts, unread = _facts(above, path)
        return made(path, stamp_of(status), status, {**facts, "parts": tuple(parts)}, unread)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """The bytes of a part; for a program, only the CUBIN, without the digest and the names before it.

        CuPy cuts off the CUBIN's last byte, a zero, without which NVIDIA's tools read nothing; the zero is added here.
        """
        data = super().read(place, entry, part)
        if isinstance(data, Failure) or part.kind != PartKind.BINARY:
            return data
        return with_last_byte(program_in(data[_DIGEST_BYTES:])[1])

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """A failure: CuPy stores only the digest of a key's inputs."""
        return Failure("CuPy stores only the digest of a key's inputs; the source is stored where it was asked to")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A failure, because deleting is not safe: CuPy checks whether a file exists, and then opens it."""
        return Failure("CuPy fails where a file vanishes between its look and its opening, so no way is safe")


def _facts(root: Folder, name: str) -> Known:
    try:
        data = root.read(name, MOST_BINARY_BYTES)
    except Unread as error:
        return nothing_known(str(error), State.UNREAD)
    payload = data[_DIGEST_BYTES:]
    # The digest is CuPy's own check for damage; what fails it is compiled again.
    if hashlib.sha1(payload, usedforsecurity=False).hexdigest().encode() != data[:_DIGEST_BYTES]:
        why = "its digest is not that of its content: CuPy compiles this program again"
        return nothing_known(why, State.PARTIAL)
    instances, image = program_in(payload)
    facts, unread = image_facts(image, id_of(name))
    kernels = instances or kernels_in(image)
    config = {"kernels": len(kernels)} if len(kernels) > 1 else {}
    unread = {"name": f"{id_of(name)}: it has no kernel", **unread}
    return {**facts, "name": first_of(kernels), "config": config}, unread


def program_in(payload: bytes) -> tuple[tuple[str, ...], bytes]:
    """The names of template instances in a file's payload, cut where too long to show; and the CUBIN after them."""
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
    """A CUBIN that NVIDIA's tools can read: CuPy leaves out its last byte, a zero, which is added here."""
    return image + b"\0" if lacks_last_byte(image) else image


def _size(root: Folder, name: str) -> int | None:
    """The size of a regular file in bytes; ``None`` if no file has this name."""
    try:
        status = root.stat(name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


# ---- cuda.core: a file for each program, whose name is the digest of its key ----
#
# Source of the layout: ``cuda/core/utils/_program_cache/_file_stream.py`` of cuda.core 1.2.2. It sets the time of
# access itself on each read, and evicts by it.

_BELOW = "cuda-python/program-cache"


class CudaCore(Reader):
    """The reader of cuda.core's cache in its default directory; each program may choose another directory."""

    kind = "cuda_core"
    title = "cuda.core"
    default = f".cache/{_BELOW}"
    variables: Mapping[str, str] = {"XDG_CACHE_HOME": _BELOW}
    areas = re.compile(r"entries|entries/[0-9a-f]{2}|tmp")
    entries = re.compile(r"entries/[0-9a-f]{2}/[0-9a-f]{30,126}")

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged:
        """The entry of a file."""
        name = path.rpartition("/")[2]
        status = above.stat(name)
        if known == stamp_of(status):
            return Unchanged(id_of(path))
        if not self.entries.fullmatch(path):
            return stray_file(above, name, path)
        (facts, unread), label, kind = _code_facts(above, path, name)
        facts |= {"parts": (Part(label, kind, status.st_size, id_of(path)),)}
        return made(path, stamp_of(status), status, facts, unread)

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete files one by one, as cuda.core itself does: it treats a missing file as a miss."""

        def deletion(each: Entry) -> Deletion:
            return Deletion(each.id, (each.id,), "", each.size_bytes)

        return plan_local(place, entries, self.entries, "it is no entry of cuda.core's", deletion)


def _code_facts(folder: Folder, path: str, name: str) -> tuple[Known, str, PartKind]:
    """The known facts, the reasons why others are unknown, and the kind of file by its first bytes."""
    try:
        data = folder.read(name, MOST_BINARY_BYTES)
    except Unread as error:
        return nothing_known(str(error), State.UNREAD), "file", PartKind.OTHER
    if data.startswith(b"\x7fELF"):
        facts, unread = image_facts(data, id_of(path))
        known = {**facts, "name": first_of(kernels_in(data))}, {"name": "it has no kernel", **unread}
        return known, "cubin", PartKind.BINARY
    if is_ptx(data):
        return ptx_facts(data), "ptx", PartKind.PTX
    if not data:  # cuda.core 1.2 returns it all the same
        return nothing_known("it is empty: cuda.core takes it for a hit of 0 bytes"), "file", PartKind.BINARY
    return nothing_known("it is neither a CUBIN nor PTX"), "file", PartKind.OTHER
