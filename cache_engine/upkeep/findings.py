"""What a check of a store finds: the kinds of damage, each with its remedy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.errors import CorruptEntry, Misplaced, Truncated, Untrusted
from cache_engine.store.layout import StoreLayout


class Kind(StrEnum):
    """What can be wrong; the value is how people read it."""

    CORRUPT_RECORD = "corrupt record"
    CORRUPT_BLOB = "corrupt blob"
    TRUNCATED = "truncated"
    SWAPPED = "swapped"
    MISSING_BLOB = "record without blob"
    ORPHAN_BLOB = "blob without record"
    MISNAMED = "misnamed file"
    FOREIGN_OWNER = "foreign owner"
    FORBIDDEN = "not permitted to be read"
    UNREADABLE = "unreadable"
    STALE_TEMPORARY = "stale temporary"
    CORRUPT_SNAPSHOT = "corrupt sums of the journal"
    CORRUPT_JOURNAL = "damaged lines of the journal"
    CORRUPT_TIMINGS = "corrupt timings"
    CORRUPT_EVALUATIONS = "corrupt evaluations"
    CORRUPT_JOB = "corrupt job"
    FOREIGN_FILE = "file of another user"
    UNKNOWN_FILE = "unknown file"
    UNKNOWN_FORMAT = "unknown format version"


_AGAIN = "quarantine the entry; it is compiled again when next asked for"
REMEDIES = {
    Kind.CORRUPT_RECORD: _AGAIN,
    Kind.CORRUPT_BLOB: _AGAIN,
    Kind.TRUNCATED: _AGAIN,
    Kind.SWAPPED: _AGAIN,
    Kind.MISSING_BLOB: "quarantine the record; the kernel is compiled again when next asked for",
    Kind.ORPHAN_BLOB: "quarantine the blob",
    Kind.MISNAMED: "quarantine the file",
    Kind.FOREIGN_OWNER: _AGAIN,
    Kind.FORBIDDEN: _AGAIN,
    Kind.UNREADABLE: "nothing: look at the disk",
    Kind.STALE_TEMPORARY: "delete the file: its writer is gone",
    Kind.CORRUPT_SNAPSHOT: "quarantine the file; counts from before it was last written are lost",
    Kind.CORRUPT_JOURNAL: "copy the file to quarantine, and add its sound lines up",
    Kind.CORRUPT_TIMINGS: "copy the device's damaged files to quarantine, and go on with the timings that are sound",
    Kind.CORRUPT_EVALUATIONS: "copy the damaged files to quarantine, and go on with the results that are sound",
    Kind.CORRUPT_JOB: "quarantine the file",
    Kind.FOREIGN_FILE: "quarantine the file",
    Kind.UNKNOWN_FILE: "nothing: move the file elsewhere; no store makes it",
    Kind.UNKNOWN_FORMAT: "nothing: it may be a newer version's",
}
ENTRY_KINDS = frozenset(kind for kind, remedy in REMEDIES.items() if remedy == _AGAIN) | {Kind.MISSING_BLOB}
RESULT_KINDS = frozenset({Kind.CORRUPT_TIMINGS, Kind.CORRUPT_EVALUATIONS})
JOURNAL_KINDS = frozenset({Kind.CORRUPT_SNAPSHOT, Kind.CORRUPT_JOURNAL})
_NOTES = frozenset({Kind.UNKNOWN_FORMAT, Kind.UNKNOWN_FILE})
_UNREPAIRED = _NOTES | {Kind.UNREADABLE}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what.
        path: the file, relative to the store.
        key: the entry concerned, empty when none is.
        cause: the details.
    """

    kind: Kind
    path: str
    key: str
    cause: str

    @property
    def remedy(self) -> str:
        """What repair would do."""
        return REMEDIES[self.kind]

    @property
    def is_damage(self) -> bool:
        """Whether it is; a file of another version, or of no store at all, is a note, not damage."""
        return self.kind not in _NOTES

    @property
    def repairable(self) -> bool:
        """Whether repair would do anything."""
        return self.kind not in _UNREPAIRED


def finding_at(layout: StoreLayout, kind: Kind, path: Path, key: str, cause: str) -> Finding:
    """A finding about a file of a store."""
    return Finding(kind, str(path.relative_to(layout.root)), key, cause)


def names_in(folder: Path) -> list[str]:
    """Names of the files in a folder, if there is one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def kind_of(error: CorruptEntry | OSError, otherwise: Kind) -> Kind:
    """The kind of damage that an error stands for; ``otherwise`` where it does not say more."""
    match error:
        case Misplaced():
            return Kind.SWAPPED
        case Truncated():
            return Kind.TRUNCATED
        case Untrusted():
            return Kind.FOREIGN_OWNER
        case PermissionError():
            return Kind.FORBIDDEN
        case OSError():
            return Kind.UNREADABLE
    return otherwise


def cause_of(error: CorruptEntry | OSError) -> object:
    """What an error says, for people."""
    return error.strerror if isinstance(error, OSError) else error
