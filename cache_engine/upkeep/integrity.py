"""Checks and repairs a store. ``check`` only reads; ``repair`` never deletes damaged files.

It moves them to ``quarantine/``. It deletes only temporary files whose writers have ended. It removes other users'
right to write to the store's folders.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.inputs import others_may_change
from cache_engine.model.events import CORRUPT, REPAIR, SET_ASIDE
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import MAX_RECORD_BYTES, UnknownFormat, check_blob, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file, shards_in
from cache_engine.store.journal import Journal, mend_decisions
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.lock import file_lock
from cache_engine.store.ownership import close_folder
from cache_engine.upkeep.cleanup import is_abandoned, is_orphan, remove_temporary
from cache_engine.upkeep.findings import (
    ENTRY_KINDS,
    JOURNAL_KINDS,
    RESULT_KINDS,
    Finding,
    FindingKind,
    cause_of,
    finding_at,
    kind_of,
    names_in,
)
from cache_engine.upkeep.parallel import in_processes
from cache_engine.upkeep.side_files import (
    check_content,
    check_results,
    check_side_files,
    mend_journal,
    mend_results,
    results_of,
)
from cache_engine.upkeep.survey import check_code, check_record

__all__ = ["Finding", "FindingKind", "RepairAct", "check", "plan_repair", "repair"]

_LOCK_TIMEOUT_S = 30.0
_ACTS = {
    FindingKind.STALE_TEMPORARY: "delete",
    FindingKind.OPEN_FOLDER: "close",
    **dict.fromkeys((FindingKind.CORRUPT_JOURNAL, FindingKind.CORRUPT_LOG, *RESULT_KINDS), "copy"),
}


@dataclass(frozen=True, slots=True)
class RepairAct:
    """The act of repair for one finding (``quarantine``, ``copy``, ``delete``, ``close`` or ``leave``), and its files.

    ``copy`` copies a file to quarantine and leaves its sound part in place; ``close`` corrects the mode of a folder.
    ``files`` are paths in the store, each with its size in bytes.
    """

    finding: Finding
    act: str
    files: tuple[tuple[str, int], ...]

    @property
    def stored_bytes(self) -> int:
        """The sum of the sizes of ``files``, in bytes."""
        return sum(size for _, size in self.files)


def check(
    store: DiskStore, on_entry: Callable[[], None] = lambda: None, *, share: float = 1.0, trust: bool = False,
    processes: int = 1,
) -> Iterator[Finding]:  # fmt: skip
    """Reads records and blobs of a store and yields the problems found, in the order of keys. Changes nothing.

    Args:
        on_entry: called for each entry that was read, and each kernel of another framework.
        share: the share of entries to read, chosen at random. All other files are always read.
        trust: accept files that other users own or can change.
        processes: the most child processes that read; with 1, this process reads everything.
    """
    layout = store.layout
    for folder in (layout.metadata, layout.kernels):
        for name in sorted(set(names_in(folder)) - set(SHARDS)):
            yield finding_at(layout, FindingKind.MISNAMED, folder / name, "", "unexpected folder name")
    shards = shards_in(layout.metadata, layout.kernels, links=True)
    look = partial(_check_shard, store, share=share, trust=trust)
    for found, entries in in_processes(look, shards, tuple[list[Finding], int], processes):
        for _ in range(entries):
            on_entry()
        yield from found
    for name in sorted(names_in(layout.temp)):
        finding = _check_temporary(layout, name)
        if finding is not None:
            yield finding
    yield from check_side_files(layout, trust=trust, on_group=on_entry)


def _check_shard(store: DiskStore, shard: str, *, share: float, trust: bool) -> tuple[list[Finding], int]:
    """The findings in one folder of records and the matching folder of blobs; and the number of records read."""
    layout, entries = store.layout, 0
    found = [
        finding for folder in (layout.metadata, layout.kernels)
        for finding in _check_folder(layout, folder / shard, trust)
    ]  # fmt: skip
    if any(finding.kind is FindingKind.MISNAMED for finding in found):
        return found, 0  # a link may lead to files that are not the store's
    named: set[str] = set()
    skipped: set[CacheKey | None] = set()
    for name in sorted(names_in(layout.metadata / shard)):
        if share < 1 and random.random() >= share:  # noqa: S311 (a sample, not a secret)
            skipped.add(key_of_record_name(name, shard))
            continue
        finding = _check_record(layout, shard, name, named, trust)
        found += [] if finding is None else [finding]
        entries += 1
    for name in sorted(set(names_in(layout.kernels / shard)) - named):
        finding = _check_blob_name(store, shard, name, skipped)
        found += [] if finding is None else [finding]
    return found, entries


def plan_repair(store: DiskStore, findings: Iterable[Finding]) -> list[RepairAct]:
    """The act that ``repair`` would do now for each finding, with the files that it would touch. Changes nothing."""
    layout = store.layout
    acts = []
    for finding in findings:
        paths = [layout.root / finding.path]
        if finding.kind in ENTRY_KINDS:
            key = CacheKey(finding.key)
            record = Path(layout.record_path(key))
            paths = [record, *(layout.kernels / key[:2] / blob for blob in _blobs_of(layout, key[:2], record.name))]
        act = _ACTS.get(finding.kind, "quarantine") if finding.repairable else "leave"
        files = []
        for path in paths if act in ("quarantine", "copy", "delete") else ():
            with suppress(OSError):
                files.append((str(path.relative_to(layout.root)), path.lstat().st_size))
        acts.append(RepairAct(finding, act, tuple(files)))
    return acts


def repair(store: DiskStore, journal: Journal, findings: Iterable[Finding], *, by: str = "") -> list[Finding]:
    """Applies the remedy of each finding; returns the repaired findings.

    Findings may be old: each is checked again under its key's lock, and skipped if it is no longer true.

    Args:
        by: the user who repairs, for the audit log.

    Raises:
        LockTimeout: when other maintenance is running.
        OSError: when reading or writing fails.
    """
    layout = store.layout
    findings = list(findings)
    of_journal = [finding for finding in findings if finding.kind in JOURNAL_KINDS]
    done: set[Finding] = set()
    mended: set[tuple[FindingKind, str]] = set()  # kinds of results, and their fingerprints
    with file_lock(layout.maintenance_lock, _LOCK_TIMEOUT_S):
        try:
            # Before this process writes an event, which would hold a damaged file of the journal open.
            done.update(mend_journal(store, of_journal))
            for finding in of_journal:
                if finding in done:
                    journal.event(SET_ASIDE, detail=f"{finding.path}: {finding.kind}: {finding.cause}")
            for finding in findings:
                if not finding.repairable or finding.kind in JOURNAL_KINDS:
                    continue
                key = CacheKey(finding.key)
                with file_lock(layout.key_lock(key), _LOCK_TIMEOUT_S) if key else nullcontext():
                    if (finding.kind, results_of(finding)) in mended:
                        done.add(finding)  # with the other files of the same results
                    elif _still_holds(store, finding):
                        _repair_one(store, journal, finding)
                        done.add(finding)
                        mended |= {(finding.kind, results_of(finding))} if finding.kind in RESULT_KINDS else set()
        finally:
            if done:
                journal.event(REPAIR, detail=f"{len(done)} of {len(findings)} findings", by=by)
    return [finding for finding in findings if finding in done]


def _repair_one(store: DiskStore, journal: Journal, finding: Finding) -> None:
    """Applies the remedy of one finding."""
    layout, path = store.layout, store.layout.root / finding.path
    if finding.kind in ENTRY_KINDS:
        store.quarantine(CacheKey(finding.key))
        journal.event(CORRUPT, key=finding.key, detail=f"{finding.kind}: {finding.cause}")
        return
    if finding.kind is FindingKind.STALE_TEMPORARY:
        remove_temporary(path)
        return
    if finding.kind is FindingKind.OPEN_FOLDER:
        close_folder(path)
        return
    if finding.kind in RESULT_KINDS:
        mend_results(layout, finding)
    elif finding.kind is FindingKind.CORRUPT_LOG:
        mend_decisions(layout, path)
    else:
        store.quarantine_file(path)
    journal.event(SET_ASIDE, key=finding.key, detail=f"{finding.path}: {finding.kind}: {finding.cause}")


def _still_holds(store: DiskStore, finding: Finding) -> bool:
    """Whether a finding is still true. Call this under the lock of the finding's key, if it has a key."""
    layout = store.layout
    path = layout.root / finding.path
    if finding.kind in ENTRY_KINDS:
        key = CacheKey(finding.key)
        trust = layout.trust or finding.kind is not FindingKind.FOREIGN_OWNER
        again = _check_record(layout, key[:2], Path(layout.record_path(key)).name, set(), trust)
        return again is not None and again.kind in ENTRY_KINDS
    if finding.kind is FindingKind.ORPHAN_BLOB:
        # The record may name it now.
        named: set[str] = set()
        _check_record(layout, path.parent.name, f"{finding.key}.json", named, True)
        return path.name not in named and os.path.lexists(path)
    if finding.kind is FindingKind.STALE_TEMPORARY:
        return _check_temporary(layout, path.name) is not None
    if finding.kind is FindingKind.OPEN_FOLDER:
        return any(again.kind is finding.kind for again in _check_folder(layout, path, trust=False))
    if finding.kind in (FindingKind.CORRUPT_GROUP, FindingKind.CORRUPT_PROOF):
        return any(again.kind is finding.kind for again in check_content(layout, path))
    if finding.kind in RESULT_KINDS:
        return any(again.path == finding.path for again in check_results(layout, finding.kind))
    return os.path.lexists(path)


def _check_folder(layout: StoreLayout, path: Path, trust: bool) -> Iterator[Finding]:
    """Yields a finding if a path is not a folder, or is one in which other users can delete or add files."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        yield finding_at(layout, FindingKind.UNREADABLE, path, "", str(error.strerror))
        return
    if not stat.S_ISDIR(status.st_mode) and not (trust and path.is_dir()):
        yield finding_at(layout, FindingKind.MISNAMED, path, "", "it is not a folder")
    elif not trust and others_may_change(status):
        kind = FindingKind.OPEN_FOLDER if status.st_uid == os.geteuid() else FindingKind.FOREIGN_FOLDER
        yield finding_at(layout, kind, path, "", f"it {others_may_change(status)}")


def _check_record(layout: StoreLayout, shard: str, name: str, named: set[str], trust: bool) -> Finding | None:
    """The fault of one record or its blob; ``None`` if both are sound.

    Adds the names of blobs that are not orphans to ``named``.
    """
    key = key_of_record_name(name, shard)
    if key is None:
        misnamed = layout.metadata / shard / name
        return finding_at(layout, FindingKind.MISNAMED, misnamed, "", "unexpected file name in a folder of records")
    path = layout.record_path(key)

    def found(kind: FindingKind, at: str, cause: object) -> Finding:
        # The repair of a record includes its blobs.
        named.update(_blobs_of(layout, shard, name))
        return finding_at(layout, kind, Path(at), key, str(cause))

    try:
        data = read_file(path, MAX_RECORD_BYTES + 1, trust=trust)
        if data is None:
            return None  # evicted meanwhile
        if len(data) > MAX_RECORD_BYTES:
            return found(FindingKind.CORRUPT_RECORD, path, f"it is larger than {MAX_RECORD_BYTES:,} bytes")
        record = decode_record(key, data)
        check_record(record)
    except UnknownFormat as error:
        return found(FindingKind.UNKNOWN_FORMAT, path, error)
    except (CorruptEntry, OSError) as error:
        return found(kind_of(error, FindingKind.CORRUPT_RECORD), path, cause_of(error))
    blob_path = layout.blob_path(key, record.blob.digest)
    blob_name = os.path.basename(blob_path)
    named.add(blob_name)
    try:
        blob = read_file(blob_path, record.blob.stored_bytes + 1, trust=trust)
        if blob is None:
            if read_file(path, MAX_RECORD_BYTES + 1, trust=trust) != data:
                return _check_record(layout, shard, name, named, trust)  # replaced or evicted meanwhile
            return found(FindingKind.MISSING_BLOB, path, f"{blob_name} does not exist")
        check_code(record, check_blob(key, record.blob, blob))
    except (CorruptEntry, OSError) as error:
        return found(kind_of(error, FindingKind.CORRUPT_BLOB), blob_path, cause_of(error))
    return None


def _blobs_of(layout: StoreLayout, shard: str, name: str) -> list[str]:
    """The blobs that belong to the key in a record's name."""
    key = key_of_record_name(name, shard)
    return [
        blob for blob in names_in(layout.kernels / shard) if key is not None and key_of_blob_name(blob, shard) == key
    ]


def _check_blob_name(store: DiskStore, shard: str, name: str, skipped: Collection[CacheKey | None]) -> Finding | None:
    """The fault of a blob that no record has named so far: a wrong name, or no record for it.

    ``None`` if it has no fault, or if its key is in ``skipped``, the keys whose records were not read.
    """
    layout, path = store.layout, store.layout.kernels / shard / name
    key = key_of_blob_name(name, shard)
    if key is None:
        return finding_at(layout, FindingKind.MISNAMED, path, "", "unexpected file name in a folder of blobs")
    if key in skipped or not is_orphan(store, key, path):
        return None
    why = "the record names another blob" if os.path.lexists(layout.record_path(key)) else "no record names it"
    return finding_at(layout, FindingKind.ORPHAN_BLOB, path, key, why)


def _check_temporary(layout: StoreLayout, name: str) -> Finding | None:
    path = layout.temp / name
    if path.is_dir() and not path.is_symlink():
        return finding_at(layout, FindingKind.MISNAMED, path, "", "unexpected folder")
    if not is_abandoned(path):
        return None
    return finding_at(layout, FindingKind.STALE_TEMPORARY, path, "", "its writer is no longer running")
