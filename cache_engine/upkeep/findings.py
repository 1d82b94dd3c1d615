"""The findings of a check: the kinds of damage, each with its remedy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.errors import CorruptEntry, Misplaced, Truncated, Untrusted
from cache_engine.store.layout import StoreLayout


class FindingKind(StrEnum):
    """The kinds of damage; the value is the text shown."""

    CORRUPT_RECORD = "corrupt record"
    CORRUPT_BLOB = "corrupt blob"
    TRUNCATED = "truncated"
    SWAPPED = "swapped"
    MISSING_BLOB = "record without blob"
    ORPHAN_BLOB = "blob without record"
    MISNAMED = "misnamed file"
    FOREIGN_OWNER = "wrong owner"
    FORBIDDEN = "permission denied"
    UNREADABLE = "unreadable"
    STALE_TEMPORARY = "stale temporary"
    CORRUPT_SNAPSHOT = "corrupt journal snapshot"
    CORRUPT_DEMAND = "corrupt demand ledger"
    CORRUPT_JOURNAL = "damaged journal lines"
    CORRUPT_LOG = "damaged decisions"
    CORRUPT_TIMINGS = "corrupt timings"
    CORRUPT_EVALUATIONS = "corrupt evaluations"
    CORRUPT_JOB = "corrupt job"
    CORRUPT_NOTE = "corrupt note"
    CORRUPT_GROUP = "corrupt group"
    CORRUPT_PROOF = "corrupt proof"
    FOREIGN_FILE = "file of another user"
    OPEN_FOLDER = "folder open to others"
    FOREIGN_FOLDER = "folder of another user"
    UNKNOWN_FILE = "unknown file"
    UNKNOWN_FORMAT = "unknown format version"


_AGAIN = "quarantine the entry; it is recompiled on next use"
REMEDIES = {
    FindingKind.CORRUPT_RECORD: _AGAIN,
    FindingKind.CORRUPT_BLOB: _AGAIN,
    FindingKind.TRUNCATED: _AGAIN,
    FindingKind.SWAPPED: _AGAIN,
    FindingKind.MISSING_BLOB: "quarantine the record; the kernel is recompiled on next use",
    FindingKind.ORPHAN_BLOB: "quarantine the blob",
    FindingKind.MISNAMED: "quarantine the file",
    FindingKind.FOREIGN_OWNER: _AGAIN,
    FindingKind.FORBIDDEN: _AGAIN,
    FindingKind.UNREADABLE: "none: check the disk",
    FindingKind.STALE_TEMPORARY: "delete the file: its writer is gone",
    FindingKind.CORRUPT_SNAPSHOT: "quarantine the file; the counts in it are lost",
    FindingKind.CORRUPT_DEMAND: "quarantine the file; the counts in it are lost",
    FindingKind.CORRUPT_JOURNAL: "copy the file to quarantine, and fold its sound lines",
    FindingKind.CORRUPT_LOG: "copy the file to quarantine, and keep its sound lines",
    FindingKind.CORRUPT_TIMINGS: "copy the device's damaged files to quarantine, and keep the sound timings",
    FindingKind.CORRUPT_EVALUATIONS: "copy the damaged files to quarantine, and keep the sound results",
    FindingKind.CORRUPT_JOB: "quarantine the file",
    FindingKind.CORRUPT_NOTE: "quarantine the file",
    FindingKind.CORRUPT_GROUP: "quarantine the file; its framework compiles the kernel again on next use",
    FindingKind.CORRUPT_PROOF: "quarantine the file; the GPU proves the family again",
    FindingKind.FOREIGN_FILE: "quarantine the file",
    FindingKind.OPEN_FOLDER: "take the right to write from its group and all others",
    FindingKind.FOREIGN_FOLDER: "none: make yourself its owner with chown, or move it elsewhere",
    FindingKind.UNKNOWN_FILE: "none: it is not a store's file; move it elsewhere",
    FindingKind.UNKNOWN_FORMAT: "none: possibly written by a newer version",
}
ENTRY_KINDS = frozenset(kind for kind, remedy in REMEDIES.items() if remedy == _AGAIN) | {FindingKind.MISSING_BLOB}
RESULT_KINDS = frozenset({FindingKind.CORRUPT_TIMINGS, FindingKind.CORRUPT_EVALUATIONS})
SUMS_KINDS = frozenset({FindingKind.CORRUPT_SNAPSHOT, FindingKind.CORRUPT_DEMAND})
JOURNAL_KINDS = SUMS_KINDS | {FindingKind.CORRUPT_JOURNAL}
_NOTES = frozenset({FindingKind.UNKNOWN_FORMAT, FindingKind.UNKNOWN_FILE})
_UNREPAIRED = _NOTES | {FindingKind.UNREADABLE, FindingKind.FOREIGN_FOLDER}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that a check found.

    Attributes:
        kind: the kind of damage.
        path: the file, relative to the store.
        key: the entry, empty when the file belongs to none.
        cause: the details of the damage, in words.
    """

    kind: FindingKind
    path: str
    key: str
    cause: str

    @property
    def remedy(self) -> str:
        """The action that repair would take."""
        return REMEDIES[self.kind]

    @property
    def is_damage(self) -> bool:
        """Whether the finding is damage.

        A file of another format version, or one that is not a store's, is only a note.
        """
        return self.kind not in _NOTES

    @property
    def repairable(self) -> bool:
        """Whether ``integrity.repair`` can remedy the finding."""
        return self.kind not in _UNREPAIRED


def finding_at(layout: StoreLayout, kind: FindingKind, path: Path, key: str, cause: str) -> Finding:
    """A finding about a file of a store."""
    return Finding(kind, str(path.relative_to(layout.root)), key, cause)


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder; empty if the folder does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def kind_of(error: CorruptEntry | OSError, otherwise: FindingKind) -> FindingKind:
    """The kind of damage that an error means; ``otherwise`` if the error is not specific."""
    match error:
        case Misplaced():
            return FindingKind.SWAPPED
        case Truncated():
            return FindingKind.TRUNCATED
        case Untrusted():
            return FindingKind.FOREIGN_OWNER
        case PermissionError():
            return FindingKind.FORBIDDEN
        case OSError():
            return FindingKind.UNREADABLE
    return otherwise


def cause_of(error: CorruptEntry | OSError) -> object:
    """The cause of an error, as text for people."""
    return error.strerror if isinstance(error, OSError) else error
