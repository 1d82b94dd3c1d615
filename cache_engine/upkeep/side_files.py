"""Checks all files of a store that belong to no entry: the journal, results, jobs, locks and single files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from cache_engine.errors import CorruptEntry, LockTimeout, Untrusted
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import judge
from cache_engine.frameworks.bundles import UnknownGroup, read_group
from cache_engine.inputs import others_may_change
from cache_engine.model.job import MOST_BYTES, decode_job
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import copy_to_quarantine, read_file
from cache_engine.store.journal import SNAPSHOT, UnknownSnapshot, damaged_decisions, damaged_lines, fold, load_snapshot
from cache_engine.store.journal.demand import load_demand
from cache_engine.store.journal.lines import LARGEST_BYTES
from cache_engine.store.layout import (
    StoreLayout,
    fingerprint_of_results_name,
    is_decisions_name,
    is_journal_name,
    is_lock_name,
    is_note_name,
    is_run_name,
    job_of_name,
)
from cache_engine.store.lock import NO_ROOM, file_lock
from cache_engine.store.notes import UnknownNote, check_note_file
from cache_engine.store.proofs import UnknownProof, read_proof
from cache_engine.store.results import ResultFile, UnknownResults, empty_snapshot, stored_fingerprints
from cache_engine.store.timings import Timings, judge_of
from cache_engine.upkeep.findings import RESULT_KINDS, SUMS_KINDS, Finding, FindingKind, finding_at, names_in

_LOCK_TIMEOUT_S = 30.0


def check_side_files(
    layout: StoreLayout, *, trust: bool, on_group: Callable[[], None] = lambda: None
) -> Iterator[Finding]:
    """Yields the problems of all files except entries and temporary files. Changes nothing.

    Args:
        trust: whether to accept files that users other than the present one and root can change.
        on_group: called after each kernel of another framework.
    """
    own = {path.name for path in (*layout.folders, *layout.later_folders, *layout.single_files)}
    for name in sorted(set(names_in(layout.root)) - own):
        yield finding_at(layout, FindingKind.UNKNOWN_FILE, layout.root / name, "", "unexpected file name")
    for path in layout.single_files:
        yield from _check_file(layout, path, trust) if path == layout.demand else _regular(layout, path, True)
    for path in (*layout.folders, *layout.later_folders):
        if os.path.lexists(path) and not path.is_dir():
            yield finding_at(layout, FindingKind.MISNAMED, path, "", "it is not a folder")
    for folder, is_named in (
        (layout.locks, is_lock_name),
        (layout.journal, is_journal_name),
        (layout.jobs, job_of_name),
        (layout.evaluations, fingerprint_of_results_name),
        (layout.timings, fingerprint_of_results_name),
        (layout.decisions, is_decisions_name),
        (layout.pins, is_key),
        (layout.notes, is_note_name),
        (layout.groups, is_key),
        (layout.proofs, is_key),
        (layout.runs, is_run_name),
    ):
        for name in sorted(names_in(folder)):
            if is_named(name):
                yield from _check_file(layout, folder / name, trust)
            else:
                cause = f"unexpected file name in {folder.name}"
                yield finding_at(layout, FindingKind.MISNAMED, folder / name, "", cause)
            if folder == layout.groups:
                on_group()
    for kind in (FindingKind.CORRUPT_EVALUATIONS, FindingKind.CORRUPT_TIMINGS):
        yield from check_results(layout, kind)


def _check_file(layout: StoreLayout, path: Path, trust: bool) -> Iterator[Finding]:
    irregular = list(_regular(layout, path, trust))
    if path.parent in (layout.evaluations, layout.timings):
        # ``check_results`` reports problems of their content.
        irregular = [finding for finding in irregular if finding.kind is FindingKind.FOREIGN_FILE]
    yield from irregular
    if irregular:
        return
    if path.parent == layout.journal or path == layout.demand:
        yield from _check_journal_file(layout, path)
    else:
        yield from check_content(layout, path)


def _regular(layout: StoreLayout, path: Path, trust: bool) -> Iterator[Finding]:
    """A finding if the path is not a regular file, or if other users may change it."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        yield finding_at(layout, FindingKind.MISNAMED, path, "", "it is not a regular file")
    elif not trust and others_may_change(status):
        yield finding_at(layout, FindingKind.FOREIGN_FILE, path, "", f"it {others_may_change(status)}")


def _check_journal_file(layout: StoreLayout, path: Path) -> Iterator[Finding]:
    found = partial(finding_at, layout, path=path, key="")
    try:
        if path.name == SNAPSHOT:
            load_snapshot(layout.journal)
            return
        if path == layout.demand:
            load_demand(layout)
            return
        damaged, lines = damaged_lines(path)
        if damaged:
            yield found(FindingKind.CORRUPT_JOURNAL, cause=f"{damaged:,} of {lines:,} lines are damaged")
    except UnknownSnapshot as error:
        yield found(FindingKind.UNKNOWN_FORMAT, cause=str(error))
    except CorruptEntry as error:
        yield found(FindingKind.CORRUPT_JOURNAL, cause=str(error))
    except (ValueError, RecursionError) as error:
        yield found(
            FindingKind.CORRUPT_DEMAND if path == layout.demand else FindingKind.CORRUPT_SNAPSHOT, cause=str(error)
        )
    except OSError as error:
        yield found(FindingKind.UNREADABLE, cause=str(error.strerror))


def check_content(layout: StoreLayout, path: Path) -> Iterator[Finding]:
    """Yields the fault of a job, a note, a file of decisions, a proof, or another framework's kernel in the store."""
    name, found = path.name, partial(finding_at, layout, path=path, key="")
    # ``_regular`` has checked who owns the file.
    readers: dict[Path, tuple[FindingKind, Callable[[], object]]] = {
        layout.jobs: (FindingKind.CORRUPT_JOB, lambda: _read_job(path)),
        layout.notes: (FindingKind.CORRUPT_NOTE, lambda: check_note_file(layout, name)),
        layout.decisions: (FindingKind.CORRUPT_LOG, lambda: _read_decisions(path)),
        layout.groups: (FindingKind.CORRUPT_GROUP, lambda: read_group(layout, CacheKey(name), trust=True)),
        layout.proofs: (FindingKind.CORRUPT_PROOF, lambda: read_proof(layout, CacheKey(name))),
    }
    kind, read = readers.get(path.parent, (FindingKind.UNREADABLE, lambda: None))
    try:
        read()
    except (UnknownGroup, UnknownNote, UnknownProof) as error:
        yield found(FindingKind.UNKNOWN_FORMAT, cause=str(error))
    except CorruptEntry as error:
        yield found(kind, cause=str(error))
    except OSError as error:
        yield found(FindingKind.UNREADABLE, cause=str(error.strerror))


def _read_job(path: Path) -> None:
    data = read_file(path, MOST_BYTES + 1, trust=True) if path.suffix == ".json" else None
    if data is not None:
        decode_job(data)


def _read_decisions(path: Path) -> None:
    damaged, lines = damaged_decisions(path)
    if damaged:
        raise CorruptEntry(f"{damaged:,} of {lines:,} lines are damaged or from the future")


def check_results(layout: StoreLayout, kind: FindingKind) -> Iterator[Finding]:
    """Yields the faults in the evaluator's results of every accelerator, or in the timings of every device."""
    there = layout.for_timings() if kind is FindingKind.CORRUPT_TIMINGS else layout
    for fingerprint in stored_fingerprints(there):
        judging = judge_of(fingerprint) if kind is FindingKind.CORRUPT_TIMINGS else judge
        new = empty_snapshot("", "", fingerprint, {})
        file = ResultFile(there, new, judging, durable=False, lock_timeout_s=_LOCK_TIMEOUT_S)
        found = partial(finding_at, layout, path=there.results_file(fingerprint), key="")
        try:
            with ExitStack() as held:
                with _where_it_can_be_written():
                    held.enter_context(file_lock(there.results_lock(fingerprint), _LOCK_TIMEOUT_S, shared=True))
                damaged = file.damage()
        except UnknownResults as error:
            yield found(FindingKind.UNKNOWN_FORMAT, cause=str(error))
        except (LockTimeout, OSError) as error:
            yield found(FindingKind.UNREADABLE, cause=getattr(error, "strerror", None) or str(error))
        else:
            for path, damage in damaged.items():
                if not isinstance(damage, Untrusted):  # ``_check_file`` reports those
                    yield finding_at(layout, kind, path, "", str(damage))


@contextmanager
def _where_it_can_be_written() -> Iterator[None]:
    """In the body of the ``with``, ignores that no lock can be taken because the disk is full or read-only.

    Nothing replaces files on such a disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, *NO_ROOM):
            raise


def mend_journal(store: DiskStore, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Quarantines the journal's damaged files; first adds the sound lines of a damaged file to the journal's sums.

    Raises:
        OSError: when reading or writing fails.
    """
    layout, damaged = store.layout, []
    for finding in findings:
        path = layout.root / finding.path
        if not list(_check_journal_file(layout, path)):
            continue
        if finding.kind in SUMS_KINDS:
            store.quarantine_file(path)
            yield finding
        else:
            copy_to_quarantine(layout, path, durable=True, most_bytes=LARGEST_BYTES)
            damaged.append(finding)
    if damaged:
        fold(layout.journal, layout.temp, lambda _: True)
    yield from (finding for finding in damaged if not list(_check_journal_file(layout, layout.root / finding.path)))


def results_of(finding: Finding) -> str:
    """The fingerprint of the accelerator or device in a finding about results; empty for other findings."""
    named = fingerprint_of_results_name(os.path.basename(finding.path)) if finding.kind in RESULT_KINDS else None
    return "" if named is None else named[0]


def mend_results(layout: StoreLayout, finding: Finding) -> None:
    """Repairs the file of results that a finding names: keeps its sound entries and drops the damaged ones.

    Raises:
        UnknownResults, LockTimeout, OSError: when the results cannot be read or written.
    """
    results = Timings(layout) if finding.kind is FindingKind.CORRUPT_TIMINGS else Evaluations(layout)
    results.mend(results_of(finding))
