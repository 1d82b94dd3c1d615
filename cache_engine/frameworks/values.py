"""Values of other frameworks' caches: places, entries, parts, findings, plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote_to_bytes

Value = str | int | float | bool


class PartKind(StrEnum):
    """The purpose of an entry's file or column; the value is the text shown."""

    SOURCE = "source"
    IR = "IR"
    PTX = "PTX"
    BINARY = "binary"
    METADATA = "metadata"
    INDEX = "index"
    """Names the files that belong together."""
    HOST = "host library"
    TEMPORARY = "temporary"
    OTHER = "other"


class State(StrEnum):
    """Whether the framework would use an entry; the value is the text shown."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    UNREAD = "unread"
    """Of a layout that is not known: only its size and age are."""


class Fault(StrEnum):
    """A reason why something in a cache could not be read, or is not as it should be; the value is the text shown."""

    FORBIDDEN = "permission denied"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not a regular file"
    TOO_LARGE = "too large"
    TOO_MANY = "too many files"
    DAMAGED = "damaged"
    PARTIAL = "partial entry"
    LOCKED = "locked"
    PLUGIN = "plug-in failed"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, or a file, that a framework caches kernels in.

    Attributes:
        origin: how it was found: ``default``, the name of an environment variable, ``given``, or the framework whose
            directory it is in.
        replaced_by: the environment variable that has the framework use another directory here; empty if it uses this
            one, or if the user names this one.
    """

    kind: str
    path: Path
    origin: str
    replaced_by: str = ""

    @property
    def path_text(self) -> str:
        """The path as ``id_of`` writes it, which every index and page can hold; ``name_of`` makes the path of it."""
        return id_of(str(self.path))


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an entry, or one column. ``file`` is its path below the place; empty for a column."""

    name: str
    kind: PartKind
    size_bytes: int
    file: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel of a cache, or another thing that the framework stores under one key.

    ``id`` names it in its place: a path below it, or a key, as ``id_of`` writes it. Facts that are not known are
    ``None``; the source's ``unknowable`` says why for all of its entries, ``unread`` why for this one. ``stamp``
    changes when the entry does. ``digest`` is that of the binary's bytes; ``config`` has what was chosen: warps,
    stages, tiles. Times are seconds since 1970, UTC. ``elsewhere`` is a path of another directory that its index names.
    """

    id: str
    stamp: str
    parts: tuple[Part, ...]
    state: State = State.COMPLETE
    name: str | None = None
    version: str | None = None
    compiler: str | None = None
    arch: str | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None
    spill_bytes: int | None = None
    code_bytes: int | None = None
    compile_ms: float | None = None
    created_at: float | None = None
    last_used_at: float | None = None
    digest: str | None = None
    config: Mapping[str, Value] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all parts."""
        return sum(part.size_bytes for part in self.parts)

    def part(self, kind: PartKind) -> Part | None:
        """The first part of a kind."""
        return next((part for part in self.parts if part.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """An entry whose stamp is the one that the caller knows."""

    id: str


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """Something of a place that could not be read, or is not as it should be. ``id`` is empty for the place itself."""

    fault: Fault
    id: str
    detail: str


Seen = Entry | Unchanged | ScanFinding
"""The results of a scan."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the inputs that decided an entry's key; ``group`` says where it is from, as the framework puts it."""

    name: str
    value: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class KeyFactors:
    """The inputs of a key, as far as the cache states them; ``hidden`` names those that it does not state."""

    factors: tuple[Factor, ...]
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of one entry. Paths are below the place, written as ``id_of`` does.

    Attributes:
        first: files that are unlinked first; without them the framework no longer finds the entry.
        folder: what is deleted after the plan's ``wait_s``, unless anything in it changed meanwhile; it has nothing but
            this entry. Empty where ``first`` is the whole entry.
        size_bytes: what that frees.
        parts: where only these files of the folder go, and the entry stays.
        rewritten: an index file and its new content, which does not name ``parts``; it is replaced first.
        state: of the folder as the plan was made (``deleting.state_of``); nothing is done if it is another.
    """

    id: str
    first: tuple[str, ...]
    folder: str
    size_bytes: int
    parts: tuple[str, ...] = ()
    rewritten: tuple[str, bytes] | None = None
    state: tuple[tuple[str, int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries that are rows of an SQLite database: a file of the place, a table, and its column with their ids."""

    file: str
    table: str
    key: str


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """A plan that deletes entries so that no process that uses them fails.

    Attributes:
        wait_s: how long a process may take from finding an entry to having read it.
        left: the entries that stay, each with the reason.
        rows: where the entries are, if that is in a database; then there is nothing to wait for.
        keeps_folders: whether folders stay that have nothing left: a process may have made one to write into it now.
        directory: device and inode of the directory that was looked at; nothing is done in another one.
    """

    deletions: tuple[Deletion, ...]
    wait_s: float = 0.0
    left: Mapping[str, str] = field(default_factory=dict)
    rows: Rows | None = None
    keeps_folders: bool = False
    directory: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes that the plan frees."""
        return sum(deletion.size_bytes for deletion in self.deletions)


_KEY = re.compile(r"[0-9a-f]{12,}")


def key_of(id: str) -> str:
    """The part of an entry's id that no other in its folder has: its name there, or the key of ``NAME.KEY``."""
    name = id.rpartition("/")[2]
    key = name.rpartition(".")[2]
    return key if _KEY.fullmatch(key) else name


_STRANGE = re.compile(r"[\x00-\x1f\x7f%\ud800-\udfff]")
MOST_NAME = 1_000
"""Letters of the name of a kernel that are shown. Those of templates may have thousands."""


def id_of(name: str) -> str:
    """The text that names a file: its path, with control characters, ``%`` and bytes that are not UTF-8 as ``%XX``."""
    return _STRANGE.sub(lambda sign: "".join(f"%{byte:02X}" for byte in sign[0].encode(errors="surrogateescape")), name)


def first_of(names: Sequence[str]) -> str | None:
    """The first of the names of kernels, as it is shown; ``None`` where there is none."""
    return id_of(names[0][:MOST_NAME]) if names else None


def name_of(id: str) -> str:
    """The path that ``id_of`` made a text of."""
    return unquote_to_bytes(id).decode(errors="surrogateescape") if "%" in id else id
