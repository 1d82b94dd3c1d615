"""Values that describe other frameworks' caches: places, entries, parts, findings, plans."""

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
    """A file that names the files that belong together."""
    HOST = "host library"
    TEMPORARY = "temporary"
    OTHER = "other"


class State(StrEnum):
    """Whether the framework would use an entry; the value is the text shown."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    UNREAD = "unread"
    """An entry of an unknown layout: only its size and age are known."""


class Fault(StrEnum):
    """A reason why something in a cache could not be read or is not as it should be; the value is the text shown."""

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
    """A cache: the directory or file in which a framework stores its kernels.

    Attributes:
        origin: how the cache was found: ``default``, the name of an environment variable, ``given``, or the framework
            whose directory it is in.
        replaced_by: the environment variable that makes the framework use another directory; empty if the framework
            uses this cache, or if the user names it.
    """

    kind: str
    path: Path
    origin: str
    replaced_by: str = ""

    @property
    def path_text(self) -> str:
        """The path as ``id_of`` writes it, which every index and page can hold; ``name_of`` converts it back."""
        return id_of(str(self.path))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an entry: a file or a database column.

    ``file`` is its path below the cache's directory; empty for a column.
    """

    name: str
    kind: PartKind
    size_bytes: int
    file: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel of a cache, or another thing that the framework stores under one key.

    ``id`` names the entry in its cache: its path, or a key, as ``id_of`` writes it. Unknown facts are ``None``; the
    reasons are in the reader's ``unknowable`` for all of its entries, and in ``unread`` for this entry. ``stamp``
    changes when the entry does. ``digest`` is that of the binary's bytes. ``config`` is what was chosen: warps, stages,
    tiles. Times are seconds since 1970, UTC. ``elsewhere`` is a path in another directory that the entry's index names.
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
        """The sum of all parts' sizes, in bytes."""
        return sum(part.size_bytes for part in self.parts)

    def part(self, kind: PartKind) -> Part | None:
        """The first part of a kind; ``None`` if there is none."""
        return next((part for part in self.parts if part.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Unchanged:
    """An entry with the stamp that the caller knows from an earlier scan, so it has not changed since."""

    id: str


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """Something in a cache that could not be read or is not as it should be. ``id`` is empty for the whole cache."""

    fault: Fault
    id: str
    detail: str


Seen = Entry | Unchanged | ScanFinding
"""The kinds of results of a scan."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the inputs that decided an entry's key; ``group`` says where the framework takes it from."""

    name: str
    value: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class KeyFactors:
    """The inputs of a key that the cache states; ``hidden`` names those that it does not state."""

    factors: tuple[Factor, ...]
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of one entry. Paths are below the cache's directory, written as ``id_of`` does.

    Attributes:
        first: the files to unlink first; without them the framework no longer finds the entry.
        folder: the entry's folder, which is deleted after the plan's ``wait_s``, unless its content has changed
            meanwhile. Empty if ``first`` is the whole entry.
        size_bytes: the bytes that the deletion frees.
        parts: if not empty, delete only these files of the folder; the entry stays.
        rewritten: an index file and its new content, which does not name ``parts``; it is replaced first.
        state: the folder's state when the plan was made (``deletion.state_of``); if it has changed, nothing is done.
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
    """The place of entries that are rows of an SQLite database: the file, the table, and the column with the ids."""

    file: str
    table: str
    key: str


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """A plan that deletes entries so that no process that uses them fails.

    Attributes:
        wait_s: seconds that a process may take from finding an entry to having read it.
        left: the entries that stay, each with the reason.
        rows: the database rows, if the entries are in a database; then there is nothing to wait for.
        keeps_folders: whether to keep folders that become empty; a process may just have made such a folder to write
            into.
        directory: device and inode of the cache's directory when the plan was made; nothing is deleted in another.
    """

    deletions: tuple[Deletion, ...]
    wait_s: float = 0.0
    left: Mapping[str, str] = field(default_factory=dict)
    rows: Rows | None = None
    keeps_folders: bool = False
    directory: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes that carrying out the plan frees."""
        return sum(deletion.size_bytes for deletion in self.deletions)


_KEY = re.compile(r"[0-9a-f]{12,}")


def key_of(id: str) -> str:
    """The end of an entry's id that is unique in its folder: the file name or, for a name ``NAME.KEY``, the key."""
    name = id.rpartition("/")[2]
    key = name.rpartition(".")[2]
    return key if _KEY.fullmatch(key) else name


_STRANGE = re.compile(r"[\x00-\x1f\x7f%\ud800-\udfff]")
MOST_NAME = 1_000
"""The most letters of a kernel's name that are shown. Names of templates may have thousands."""


def id_of(name: str) -> str:
    """A text for a path: control characters, ``%`` and bytes that are not UTF-8 become ``%XX``."""
    return _STRANGE.sub(lambda sign: "".join(f"%{byte:02X}" for byte in sign[0].encode(errors="surrogateescape")), name)


def first_of(names: Sequence[str]) -> str | None:
    """The first of several kernels' names, cut to ``MOST_NAME`` letters; ``None`` without names."""
    return id_of(names[0][:MOST_NAME]) if names else None


def name_of(id: str) -> str:
    """The path for which ``id_of`` returned this text."""
    return unquote_to_bytes(id).decode(errors="surrogateescape") if "%" in id else id
