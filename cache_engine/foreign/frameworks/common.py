"""What the sources share: walking a place, stamps, reading a part."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from cache_engine.foreign.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.foreign.values import Entry, Fault, Part, PartKind, Place, Seen, State, Unchanged, id_of, name_of
from cache_engine.model.outcome import Failure

MOST_SUBFOLDERS = 10_000
"""The most places that are found below one directory."""

ReadEntry = Callable[[Folder, str, str | None], Entry | Unchanged | None]
"""Reads the entry of this name in a folder, if it is one; with the stamp that is known of it."""


def listed(place: Place, known: Mapping[str, str], read: ReadEntry) -> Iterator[Seen]:
    """What each name directly below a place is; what vanishes is left out, what cannot be read is a finding."""
    with Folder(place.path) as root:
        for item in root:
            name = item.name
            try:
                found = read(root, name, known.get(id_of(name)))
            except FileNotFoundError:
                continue
            except Unread as error:
                yield error.finding(name)
                continue
            if found is not None:
                yield found


def stamp_of(status: os.stat_result) -> str:
    """Changes when a file or folder does."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def times_of(status: os.stat_result) -> tuple[float, float | None]:
    """When a file was written, and when it was last read, if the file system noted that later."""
    return status.st_mtime, status.st_atime if status.st_atime > status.st_mtime else None


def read_part(place: Place, part: Part) -> bytes | Failure:
    """The bytes of a part that is a file."""
    try:
        with Folder(place.path) as root:
            return root.read(name_of(part.file), MOST_BINARY_BYTES)
    except FileNotFoundError:
        return Failure(f"{part.file} is gone; scan the cache again")
    except (OSError, Unread) as error:
        return Failure(f"cannot read {part.file}: {error}")


def subfolders(top: Path, *pattern: str) -> Iterator[Path]:
    """The folders whose names match a pattern for each level below ``top``; links are not followed."""
    found = 0
    try:
        with os.scandir(top) as items:
            names = sorted(item.name for item in items if item.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        if not fnmatchcase(name, pattern[0]):
            continue
        below = [top / name] if len(pattern) == 1 else subfolders(top / name, *pattern[1:])
        for path in below:
            found += 1
            if found > MOST_SUBFOLDERS:
                return
            yield path


def stray_file(root: Folder, name: str) -> Entry:
    """A file where the framework has none: listed with its size and age; raises ``Unread`` for what is no file."""
    status = root.stat(name)
    if not stat.S_ISREG(status.st_mode):
        raise Unread(Fault.NOT_A_FILE, "it is a link or a device")
    created_at, last_used_at = times_of(status)
    return Entry(
        id=id_of(name),
        stamp=stamp_of(status),
        parts=(Part("file", PartKind.OTHER, status.st_size, id_of(name)),),
        state=State.UNREAD,
        created_at=created_at,
        last_used_at=last_used_at,
        unread={"name": "the framework keeps no such file there"},
    )
