"""Problems of another framework's cache, and their cures. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.frameworks.deletion import DELETED
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.values import Entry, PartKind, Place, ScanFinding, Seen, State, name_of
from cache_engine.inputs import others_may_change
from cache_engine.model.architecture import ARCHITECTURES, runs_on

LEFT_AFTER_S = 600.0
"""Seconds after its last change until a temporary file is reported: a running compile would have ended by then."""


class Ailment(StrEnum):
    """A kind of problem; the value is the text shown."""

    PARTIAL = "partial entry"
    LEFTOVER = "leftover"
    EMPTY = "empty file"
    ELSEWHERE = "points elsewhere"
    OTHER_GPU = "for another GPU"
    UNSAFE = "others may write"
    NETWORK = "network file system"
    UNREAD = "unread"


CURES = {
    Ailment.PARTIAL: "the framework compiles it again when it needs it; else: gemm-cache caches clean --state partial",
    Ailment.LEFTOVER: "a killed process left it; delete it, or its entry: gemm-cache caches clean",
    Ailment.EMPTY: "the framework may load it as it is and fail: delete the entry, which is compiled again",
    Ailment.ELSEWHERE: "the directory was moved or copied: delete the entry, which is compiled again, or move it back",
    Ailment.OTHER_GPU: "of no use here: gemm-cache caches clean --arch TARGET, unless other machines share it",
    Ailment.UNSAFE: "whoever can write here runs code as you: chmod -R go-w, and use a directory that you own",
    Ailment.NETWORK: "files vanish and appear late there: use a local directory, and share by copying it (rsync -t)",
    Ailment.UNREAD: "see the reason; what cannot be read, the framework cannot read either",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem of a cache. ``id`` names the entry; it is empty for a problem of the whole cache."""

    place: Place
    id: str
    ailment: Ailment
    detail: str

    @property
    def cure(self) -> str:
        """The next step for the user."""
        return CURES[self.ailment]


def examine(
    place: Place, found: Iterable[Seen], *, runs_here: Callable[[str], bool] | None, mounts: str
) -> Iterator[Diagnosis]:
    """Yields the problems of a cache and of its entries.

    Args:
        runs_here: tells whether code for a target runs on this machine's GPU; ``None`` if the GPU is unknown.
        mounts: the content of ``/proc/self/mounts``.
    """
    network = network_file_system(place.path, mounts)
    if network:
        yield Diagnosis(place, "", Ailment.NETWORK, f"it is on {network}")
    yield from _unsafe(place, place.path, "")
    for seen in found:
        if isinstance(seen, ScanFinding):
            yield Diagnosis(place, seen.id, Ailment.UNREAD, f"{seen.fault}: {seen.detail}")
        elif isinstance(seen, Entry):
            yield from examine_entry(place, seen, runs_here, network)


def examine_entry(
    place: Place, entry: Entry, runs_here: Callable[[str], bool] | None, network: str
) -> Iterator[Diagnosis]:
    """Yields the problems of one entry.

    ``network`` is the kind of network file system that holds it; empty for a local disk.
    """
    if entry.id.startswith(DELETED):
        yield Diagnosis(place, entry.id, Ailment.LEFTOVER, "a cleaning was killed")
        return
    if entry.state == State.PARTIAL:
        yield Diagnosis(place, entry.id, Ailment.PARTIAL, entry.unread.get("name", "a file of it is missing"))
    for part in entry.parts:
        if part.kind == PartKind.TEMPORARY:
            if _is_old(place, part.file):
                yield Diagnosis(place, entry.id, Ailment.LEFTOVER, part.file)
        elif part.size_bytes == 0 and part.kind != PartKind.OTHER and entry.state == State.COMPLETE:
            yield Diagnosis(place, entry.id, Ailment.EMPTY, part.file or part.name)
        if part.kind == PartKind.HOST and part.file:
            yield from _unsafe(place, place.path / name_of(part.file), entry.id)
            if network:
                yield Diagnosis(place, entry.id, Ailment.NETWORK, f"{part.file} is a library for one kind of host")
    if entry.elsewhere is not None:
        yield Diagnosis(place, entry.id, Ailment.ELSEWHERE, entry.elsewhere)
    if runs_here is not None and entry.arch is not None and not runs_here(entry.arch):
        yield Diagnosis(place, entry.id, Ailment.OTHER_GPU, entry.arch)


def _is_old(place: Place, file: str) -> bool:
    above, _, last = name_of(file).rpartition("/")
    try:
        with Folder(place.path) as root, root.enter(above) as folder:
            return folder.stat(last).st_mtime < time.time() - LEFT_AFTER_S
    except (OSError, Unread):
        return False


def _unsafe(place: Place, path: Path, id: str) -> Iterator[Diagnosis]:
    try:
        why = others_may_change(os.stat(path))
    except OSError:  # gone; that it cannot be opened is a finding of the scan
        return
    if why:
        yield Diagnosis(place, id, Ailment.UNSAFE, f"{path.name} {why}")


_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "afs", "9p", "virtiofs", "orangefs",
     "glusterfs", "wekafs"}
)  # fmt: skip
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def network_file_system(path: Path, mounts: str) -> str:
    """The kind of network file system that holds a path; empty for a local one."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1]
        for escape, sign in _ESCAPES.items():
            point = point.replace(escape, sign)
        # Of two at one point the later hides the earlier.
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind if kind in _NETWORK or (kind.startswith("fuse.") and kind != "fuse.fuse-overlayfs") else ""


def code_runs_on(gpu: str) -> Callable[[str], bool]:
    """A function that tells whether code for a target runs on this GPU; it returns true for unknown targets."""
    plain = gpu.rstrip("af")
    return lambda target: target not in ARCHITECTURES or plain in {each.name for each in runs_on(target)}


def read_mounts() -> str:
    """The mount points and their file systems; empty if the system does not tell."""
    try:
        return Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return ""
