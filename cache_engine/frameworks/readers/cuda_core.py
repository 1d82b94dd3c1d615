"""The program cache of cuda.core: a file for each program, whose name is the digest of its key.

Source of the layout: ``cuda/core/utils/_program_cache/_file_stream.py`` of cuda.core 1.2.2. It sets the
time of access itself on each read, and evicts by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cache_engine.frameworks.facts import image_facts, is_ptx, kernels_in, ptx_facts
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import Known, Reader, made, nothing_known, plan_local, stamp_of, stray_file
from cache_engine.frameworks.values import (
    DeletePlan,
    Deletion,
    Entry,
    Part,
    PartKind,
    Place,
    State,
    Unchanged,
    first_of,
    id_of,
)
from cache_engine.model.outcome import Failure

_BELOW = "cuda-python/program-cache"


class CudaCore(Reader):
    """The source ``cuda_core``. Directories other than the default are the program's own choice."""

    kind = "cuda_core"
    title = "cuda.core"
    default = f".cache/{_BELOW}"
    variables: Mapping[str, str] = {"XDG_CACHE_HOME": _BELOW}
    areas = re.compile(r"entries|entries/[0-9a-f]{2}|tmp")
    entries = re.compile(r"entries/[0-9a-f]{2}/[0-9a-f]{30,126}")

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged:
        """A file."""
        name = path.rpartition("/")[2]
        status = above.stat(name)
        if known == stamp_of(status):
            return Unchanged(id_of(path))
        if not self.entries.fullmatch(path):
            return stray_file(above, name, path)
        (facts, unread), label, kind = _facts(above, path, name)
        facts |= {"parts": (Part(label, kind, status.st_size, id_of(path)),)}
        return made(path, stamp_of(status), status, facts, unread)

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A file each, as cuda.core itself evicts: a reader opens it at once, and takes a missing one for a miss."""

        def deletion(each: Entry) -> Deletion:
            return Deletion(each.id, (each.id,), "", each.size_bytes)

        return plan_local(place, entries, self.entries, "it is no entry of cuda.core's", deletion)


def _facts(folder: Folder, path: str, name: str) -> tuple[Known, str, PartKind]:
    """The known facts, why the rest is unknown, and the kind of file, by its first bytes."""
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
