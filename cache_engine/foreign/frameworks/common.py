"""What the sources share: walking a place, stamps, reading a part."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from cache_engine.foreign.facts import entry_of, without_binary
from cache_engine.foreign.folder import MOST_BINARY_BYTES, MOST_FILES, Folder, Unread
from cache_engine.foreign.values import Entry, Fault, Part, PartKind, Place, Seen, State, Unchanged, id_of, name_of
from cache_engine.model.outcome import Failure

MOST_SUBFOLDERS = 10_000
"""The most places that are found below one directory."""

MOST_DEPTH = 32
"""The deepest folder of an entry: four times the usual."""

ReadEntry = Callable[[Folder, str, str, str | None], Entry | Unchanged | None]
"""Reads an entry, if it is one: the folder it is in, its path below the place, its name there, its known stamp."""


def walk(place: Place, known: Mapping[str, str], read: ReadEntry, areas: Callable[[str], bool]) -> Iterator[Seen]:
    """What each name in a place is; what vanishes is left out, what cannot be read is a finding.

    Args:
        areas: whether a folder of this path below the place is no entry, but has entries in it.
    """
    with Folder(place.path) as root:
        yield from _walk(root, "", known, read, areas)


def _walk(
    folder: Folder, above: str, known: Mapping[str, str], read: ReadEntry, areas: Callable[[str], bool]
) -> Iterator[Seen]:
    for item in folder:
        path = f"{above}{item.name}"
        try:
            if areas(path) and stat.S_ISDIR(folder.stat(item.name).st_mode):
                with folder.enter(item.name) as below:
                    yield from _walk(below, f"{path}/", known, read, areas)
                continue
            found = read(folder, path, item.name, known.get(id_of(path)))
        except FileNotFoundError:
            continue
        except Unread as error:
            yield error.finding(path)
            continue
        if found is not None:
            yield found


def stamp_of(status: os.stat_result) -> str:
    """Changes when a file or folder does."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def folder_stamp(folder: Folder) -> str:
    """The stamp of a folder. Every file that is renamed into it changes that, but not what is written in place."""
    return stamp_of(folder.status)


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


def files_below(folder: Folder) -> list[tuple[str, os.stat_result]]:
    """Every regular file of a folder and of those in it, by its path below it; what vanishes meanwhile is left out.

    Raises:
        Unread: when there are more than ``MOST_FILES``, or deeper than ``MOST_DEPTH``, or a folder cannot be read.
    """
    found: list[tuple[str, os.stat_result]] = []
    folders = [""]
    while folders:
        above = folders.pop()
        try:
            with folder.enter(above) if above else folder.again() as opened:
                listing = opened.list()
        except FileNotFoundError:
            continue
        prefix = f"{above}/" if above else ""
        found += [(f"{prefix}{name}", status) for name, status in listing.files.items()]
        folders += [f"{prefix}{name}" for name in sorted(listing.folders, reverse=True)]
        if len(found) + len(folders) > MOST_FILES:
            raise Unread(Fault.TOO_MANY, f"it has more than {MOST_FILES:,} files")
        if listing.folders and prefix.count("/") >= MOST_DEPTH:
            raise Unread(Fault.TOO_MANY, f"its folders are more than {MOST_DEPTH} deep")
    return found


def stray_file(
    folder: Folder, name: str, path: str = "", why: str = "the framework has no file of this name there"
) -> Entry:
    """A file where the framework has none, or a folder: listed with its size and age, and not read.

    Args:
        path: below the place, where that is not the name.
        why: it is not read.

    Raises:
        Unread: for what is neither a file nor a folder, or may not be listed.
    """
    path = path or name
    status = folder.stat(name)
    if stat.S_ISDIR(status.st_mode):
        with folder.enter(name) as below:
            parts = [
                Part(id_of(file), PartKind.OTHER, each.st_size, id_of(f"{path}/{file}"))
                for file, each in files_below(below)
            ]
    elif stat.S_ISREG(status.st_mode):
        parts = [Part("file", PartKind.OTHER, status.st_size, id_of(path))]
    else:
        raise Unread(Fault.NOT_A_FILE, "it is a link or a device")
    created_at, last_used_at = times_of(status)
    facts = {
        "id": id_of(path),
        "stamp": stamp_of(status),
        "parts": tuple(parts),
        "state": State.UNREAD,
        "created_at": created_at,
        "last_used_at": last_used_at,
    }
    return entry_of(facts, {"name": why, **without_binary(why)})
