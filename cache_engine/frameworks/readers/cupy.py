"""CuPy's cache: a file for each program, with the digest of its content in front.

Source of the layout: ``cupy/cuda/_compiler_cache.py`` and ``cupy/cuda/compiler.py`` of CuPy 14.2.0.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
from collections.abc import Mapping, Sequence

from cache_engine.compilers.elf import lacks_last_byte
from cache_engine.frameworks.facts import image_facts, kernels_in
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import Known, Reader, made, nothing_known, stamp_of, stray_file
from cache_engine.frameworks.values import (
    MOST_NAME,
    DeletePlan,
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
    """The source ``cupy``."""

    kind = "cupy"
    title = "CuPy"
    default = ".cupy/kernel_cache"
    variables: Mapping[str, str] = {"CUPY_CACHE_DIR": ""}
    entries = re.compile(r"[0-9a-f]{32,64}\.(cubin|ltoir|hsaco)")

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """A file, and the source of the program in another."""
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
        """Of a program the CUBIN alone, without the digest and the names in front.

        CuPy cuts off its last byte, a zero, without which NVIDIA's tools read nothing of it; it is put there again.
        """
        data = super().read(place, entry, part)
        if isinstance(data, Failure) or part.kind != PartKind.BINARY:
            return data
        return with_last_byte(program_in(data[_DIGEST_BYTES:])[1])

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """None: CuPy stores only the digest of them."""
        return Failure("CuPy stores only the digest of a key's inputs; the source is stored where it was asked to")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """None: CuPy looks whether a file exists, and then opens it."""
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
    """The size of a regular file in bytes; ``None`` where no file has this name."""
    try:
        status = root.stat(name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
