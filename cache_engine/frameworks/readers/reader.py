"""The common part of the readers: a ``Reader`` walks through a cache, finds the entries, and reads their parts.

The subclass for a framework states the differences: where the directories are, what an entry is, and how to parse it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.doctor import network_file_system, read_mounts
from cache_engine.frameworks.facts import entry_of, without_binary
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, MOST_FILES, Folder, Listing, Unread
from cache_engine.frameworks.values import (
    DeletePlan,
    Deletion,
    Entry,
    Fault,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Seen,
    State,
    Unchanged,
    id_of,
    name_of,
)  # fmt: skip
from cache_engine.model.outcome import Failure

MOST_SUBFOLDERS = 10_000
"""The most caches that are found below one directory."""

MOST_DEPTH = 32
"""The greatest depth of an entry's folders: four times the usual."""

NONE = re.compile("/")
"""A pattern that matches no path of a cache, since no path begins with a slash."""

STRAY = "the framework has no file of this name there"
_SELDOM_STORED = {
    "version": "its version",
    "compile_ms": "how long a compile took",
    "spill_bytes": "the report of ptxas",
}

Match = re.Match[str] | None
Known = tuple[dict[str, Any], dict[str, str]]
"""Known facts, as fields of ``Entry``; and for each unknown fact, the reason in words."""
Timed = tuple[os.stat_result | None, dict[str, Any], dict[str, str]]
"""The status of the file whose times are those of the entry, or ``None``; then facts and reasons as in ``Known``."""


class NoEntry(Exception):
    """A file or folder has an entry's name but is not an entry; the text says why it is not read."""


class Reader:
    """A base class for readers of caches whose entries are files and folders; it implements ``CacheReader``.

    Attributes:
        default: the directory that the framework uses if no variable is set, below the home directory; or ``None``.
        variables: environment variables, as ``Surroundings.places`` takes them.
        areas: a pattern for the paths of folders that are not entries, but contain entries.
        entries: a pattern for the paths of entries. Other files are listed with their size and age, and not read.
        kinds: the purpose of each of an entry's files, by its name or by the ending of its name.
        stores: those facts that this framework stores and most others do not.
        unknown: other fields of ``Entry`` that are unknown for all entries, each with the reason.
    """

    kind = title = ""
    default: str | None = None
    variables: Mapping[str, str] = {}
    areas = entries = NONE
    kinds: Mapping[str, PartKind] = {}
    stores: tuple[str, ...] = ()
    unknown: Mapping[str, str] = {}

    @property
    def unknowable(self) -> Mapping[str, str]:
        """The fields of ``Entry`` that are unknown for all entries of this framework, each with the reason."""
        seldom = {fact: what for fact, what in _SELDOM_STORED.items() if fact not in self.stores}
        return {**{fact: f"{self.title} does not store {what}" for fact, what in seldom.items()}, **self.unknown}

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The places where this framework may have a cache; they need not exist."""
        return where.places(self.kind, self.default, **self.variables)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """Yields the entries of a cache.

        Files that vanish meanwhile are left out; a file that cannot be read is a finding.
        """
        with Folder(place.path) as root:
            yield from self._walk(place, root, "", known)

    def _walk(self, place: Place, folder: Folder, above: str, known: Mapping[str, str]) -> Iterator[Seen]:
        for item in folder:
            path = f"{above}{item.name}"
            try:
                if self.areas.fullmatch(path) and stat.S_ISDIR(folder.stat(item.name).st_mode):
                    with folder.enter(item.name) as below:
                        yield from self._walk(place, below, f"{path}/", known)
                    continue
                found = self.entry(place, folder, path, known.get(id_of(path)))
            except FileNotFoundError:
                continue
            except Unread as error:
                yield error.finding(path)
                continue
            if found is not None:
                is_known = isinstance(found, Entry) and found.stamp == known.get(found.id)
                yield Unchanged(found.id) if is_known else found

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """The entry with this path; by default, a folder is an entry. ``None`` for a file that is not to be listed.

        Args:
            path: the path below the cache's directory.
            known: the stamp that the entry had at the last scan, if it had one.

        Raises:
            FileNotFoundError: when the entry has vanished.
            Unread: when the entry cannot be read.
        """
        name, found = path.rpartition("/")[2], self.entries.fullmatch(path)
        if found is None:
            return stray_file(above, name, path)
        try:
            opened = above.enter(name)
        except Unread as error:
            if error.fault != Fault.NOT_A_FILE:
                raise
            return stray_file(above, name, path)
        with opened as folder:
            if (stamp := stamp_of(folder.status)) == known:  # not of what is written in place
                return Unchanged(id_of(path))
            try:
                return self.folder_entry(folder, path, stamp, found)
            except NoEntry as error:
                return stray_file(above, name, path, str(error) or STRAY)

    def folder_entry(self, folder: Folder, path: str, stamp: str, found: Match = None) -> Entry:
        """The entry of a folder. ``found`` is the match of the pattern ``entries``. Raises ``NoEntry``."""
        listing = folder.list()
        times, facts, unread = self.facts(folder, path, listing, found)
        return made(path, stamp, times or folder.status, {"parts": self.parts(path, listing), **facts}, unread)

    def facts(self, folder: Folder, path: str, listing: Listing, found: Match) -> Timed:
        """The facts about the entry in a folder, with the status of the file that dates it; by default no facts.

        Raises:
            NoEntry: when the folder is no entry.
        """
        return None, {}, {}

    def parts(self, path: str, listing: Listing) -> tuple[Part, ...]:
        """The files of a folder as parts of an entry."""
        return tuple(self.part(path, file, status.st_size) for file, status in listing.files.items())

    def part(self, path: str, file: str, size_bytes: int) -> Part:
        """A part of the entry with this path: one of its files."""
        kind = self.kinds.get(file) or self.kinds.get(file.rpartition(".")[2], PartKind.OTHER)
        return Part(id_of(file), kind, size_bytes, id_of(f"{path}/{file}"))

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """The bytes of one part of an entry, or the reason why they cannot be read."""
        try:
            with Folder(place.path) as root:
                return root.read(name_of(part.file), MOST_BINARY_BYTES)
        except FileNotFoundError:
            return Failure(f"{part.file} is gone; scan the cache again")
        except (OSError, Unread) as error:
            return Failure(f"cannot read {part.file}: {error}")

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The inputs that decided an entry's key, or the reason why they cannot be read."""
        try:
            with Folder(place.path) as root:
                return self.factors(root, entry)
        except (OSError, Unread) as error:
            return Failure(f"cannot read {entry.id}: {error}")

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of an entry's key, read from the open cache; may raise ``OSError`` and ``Unread``."""
        return Failure(f"{self.title} stores only the digest of a key's inputs")

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete entries safely, or the reason why there is none."""
        return Failure(f"for {self.title}'s cache no way of deleting is known that no reader of it notices")


def made(path: str, stamp: str, times: os.stat_result, facts: Mapping[str, Any], unread: Mapping[str, str]) -> Entry:
    """Makes an entry from its path, stamp, facts and reasons for unknown facts.

    ``times`` is a file's status. The file's last write is when the entry was made; its last read, if the file system
    notes reads, is when the entry was used.
    """
    last_used_at = times.st_atime if times.st_atime > times.st_mtime else None
    known = {"id": id_of(path), "stamp": stamp, "created_at": times.st_mtime, "last_used_at": last_used_at, **facts}
    return entry_of(known, unread)


def nothing_known(why: str, state: State = State.COMPLETE) -> Known:
    """The facts about an entry whose content is not read: its state; for all other facts, the reason ``why``."""
    return {"state": state}, {"name": why, **without_binary(why)}


def stamp_of(status: os.stat_result) -> str:
    """A text that changes when a file changes or, for a folder, when a file is renamed into it."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def part_named(entry: Entry, name: str) -> Part | None:
    """The entry's first part with this name; ``None`` if it has none."""
    return next((part for part in entry.parts if part.name == name), None)


def plan_local(
    place: Place, entries: Sequence[Entry], which: re.Pattern[str], others: str, deletion: Callable[[Entry], Deletion]
) -> DeletePlan | Failure:
    """A plan that deletes entries while programs run, for a framework that treats a missing entry as a miss.

    A ``Failure`` on a network file system: there, an entry may vanish while a program reads it.

    Args:
        which: a pattern for the paths of entries that can be deleted in this way.
        others: the reason why all other entries stay.
        deletion: a function that returns the deletion of one entry.
    """
    if network := network_file_system(place.path, read_mounts()):
        return Failure(f"it is on {network}, where what a process reads may vanish")
    chosen = [entry for entry in entries if which.fullmatch(name_of(entry.id))]
    left = {entry.id: others for entry in entries if entry not in chosen}
    return DeletePlan(tuple(map(deletion, chosen)), left=left, keeps_folders=True)


def subfolders(top: Path, *pattern: str) -> Iterator[Path]:
    """The folders whose names match one pattern for each level below ``top``; links are not followed."""
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
    """All regular files of a folder and its subfolders, each by its path; files that vanish meanwhile are left out.

    Raises:
        Unread: when there are more than ``MOST_FILES``, when folders are nested deeper than ``MOST_DEPTH``, or when a
            folder cannot be read.
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


def stray_file(folder: Folder, name: str, path: str, why: str = STRAY) -> Entry:
    """The entry of a file or folder that does not belong to the framework: its size and age; the content is not read.

    Args:
        path: the path below the cache's directory.
        why: the reason why its content is not read.

    Raises:
        Unread: when it is neither a file nor a folder, or must not be listed.
    """
    status = folder.stat(name)
    stamp = stamp_of(status)
    if stat.S_ISDIR(status.st_mode):
        with folder.enter(name) as below:
            parts = [
                Part(id_of(file), PartKind.OTHER, each.st_size, id_of(f"{path}/{file}"))
                for file, each in files_below(below)
            ]
        stamp += f" {len(parts)}-{sum(part.size_bytes for part in parts)}"  # its time tells nothing of folders in it
    elif stat.S_ISREG(status.st_mode):
        parts = [Part("file", PartKind.OTHER, status.st_size, id_of(path))]
    else:
        raise Unread(Fault.NOT_A_FILE, "it is a link or a device")
    facts, unread = nothing_known(why, State.UNREAD)
    return made(path, stamp, status, {**facts, "parts": tuple(parts)}, unread)


# ---- Readers that look only at names, sizes and ages, because the entries are libraries, or of an unknown format ----
# The directories are from the documentation of JAX (persistent compilation cache) and CUDA (``CUDA_CACHE_PATH``).
# TensorRT has no default directory. Only JAX's reader was tested on a cache that its framework made.

WHY = "only names, sizes and ages are looked at"
_FACTS = {field.name for field in fields(Entry)} - {
    "id", "stamp", "parts", "state", "config", "unread", "created_at", "last_used_at", "elsewhere",
}  # fmt: skip


class Sized(Reader):
    """A reader that looks only at names, sizes and ages.

    Attributes:
        others: names in the cache's directory that are not entries: caches of other readers, and locks.
        used: two endings of file names: of the file that the framework writes at each use of an entry, and of the
            entry itself.
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
