"""Every path of a store. No other module builds one.

::

    store.json                  marks the directory as a store, with its format version
    kernels/ab/<key>-<digest>   blobs: compiled code with PTX, source and log; the digest is the blob's
    metadata/ab/<key>.json      records; an entry exists if its record does
    temp/                       files being written, on the file system of their destination; tickets of compiles
    journal/                    usage and events: one append-only file per writer at a time, and a snapshot
    locks/                      lock files, never deleted
    quarantine/                 damaged files, for inspection
    jobs/                       jobs started from the dashboard
    evaluations/                results of the evaluator, a JSON file for each accelerator
    timings/                    measurements of kernels, likewise for each device; created with the first
    demand.json                 what was asked for, from the journal's folded files; created by the first fold
    decisions/                  the log of decisions, in two files; created with the first
    pins/                       an empty file for each pinned key; created with the first
    notes/                      notes and tags of kernels, and saved views, a file for each; created with the first
    groups/                     kernels of other frameworks, a file for each; created with the first
    proofs/                     proofs of kernel families, a file for each device and toolchain; created with the first
    runs/                       reports of gemm-cache run, the last 50; created with the first
    digests.json                digests of files that compilers read, by path; may be deleted at any moment
    mirror.duckdb               the index; may be deleted at any moment
    population                  estimated number of entries and bytes; may be deleted at any moment
    cleaned                     empty; its mtime is the time of the last automatic cleaning

``ab`` stands for the first two digits of the key.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from cache_engine.errors import StoreError
from cache_engine.model.key import CacheKey, is_key

JOURNAL_SNAPSHOT, JOURNAL_OPEN, JOURNAL_FOLDING = "snapshot.json", ".jsonl", ".folding"
_DECISIONS = ("log.jsonl", "log.older.jsonl")
SHARDS = tuple(f"{number:02x}" for number in range(256))


Identities = tuple[tuple[int, int] | None, ...]


class TicketName(NamedTuple):
    """The parts of the name of a ticket, the file of a process that compiles or waits to compile (``cache.queue``).

    Attributes:
        state: what the process does, one of ``cache.queue.State``.
        priority: one of ``cache.queue.Priority``.
        since_us: when the ticket was made, in microseconds since 1970.
        key: the key of the kernel.
        pid: the process id of the ticket's owner.
        token: distinguishes tickets that are otherwise the same.
    """

    state: str
    priority: int
    since_us: int
    key: CacheKey
    pid: int
    token: str


class Below:
    """A path of ``StoreLayout``, by its name below the store's directory."""

    def __init__(self, name: str) -> None:
        """Takes the name."""
        self._name = name

    def __get__(self, layout: StoreLayout, _: object) -> Path:
        """The path in a store."""
        return layout.root / self._name


class StoreLayout(msgspec.Struct, frozen=True):
    """Paths below ``root``, which is absolute.

    The methods ``results_…`` name files of results. There is one set for each subject, which a fingerprint identifies:
    the evaluations of an accelerator or, in the layout of ``for_timings``, the timings of a device. With ``trust``, the
    store reads files even if other users can change them.
    """

    root: Path
    results: str = "evaluations"
    trust: bool = False

    marker = Below("store.json")
    """The file that marks a store."""
    kernels = Below("kernels")
    """The folder of blobs."""
    metadata = Below("metadata")
    """The folder of records."""
    temp = Below("temp")
    """The folder of files that are being written."""
    journal = Below("journal")
    """The folder of usage and events."""
    locks = Below("locks")
    """The folder of lock files."""
    quarantine = Below("quarantine")
    """The folder of damaged files."""
    jobs = Below("jobs")
    """The folder of jobs."""
    evaluations = Below("evaluations")
    """The folder of the evaluator's results."""
    timings = Below("timings")
    """The folder of measurements of kernels, created with the first measurement."""
    decisions = Below("decisions")
    """The folder of the log of decisions, created with the first decision."""
    decisions_log = Below(f"decisions/{_DECISIONS[0]}")
    """The file that decisions are appended to."""
    older_decisions_log = Below(f"decisions/{_DECISIONS[1]}")
    """The file of decisions older than those in ``decisions_log``."""
    decisions_lock = Below("locks/decisions.lock")
    """The lock of the log of decisions: shared to append to a file, exclusive to rename or repair one."""

    def for_timings(self) -> StoreLayout:
        """A layout of the same store whose ``results_…`` methods name timings."""
        return msgspec.structs.replace(self, results=self.timings.name)

    @property
    def results_folder(self) -> Path:
        """The folder of results: evaluations, or timings in the layout of ``for_timings``."""
        return self.root / self.results

    demand = Below("demand.json")
    """The file with the demand from the journal's folded files.

    It is at the top of the store, because the repair of an older version would remove it from ``journal``.
    """
    index = Below("mirror.duckdb")
    """The DuckDB file of the index."""
    index_log = Below("mirror.duckdb.wal")
    """The write-ahead log of the index, which DuckDB writes."""
    population = Below("population")
    """The file with the estimated size of the store."""
    cleaned = Below("cleaned")
    """The file whose mtime is the time of the last automatic cleaning."""
    digests = Below("digests.json")
    """The file with the stored digests of files that compilers read (``frameworks.nvcc.inputs``)."""

    @property
    def single_files(self) -> tuple[Path, ...]:
        """Every file that may be directly in the store's directory."""
        return (self.marker, self.demand, self.population, self.cleaned, self.digests, self.index, self.index_log)

    def identities(self) -> Identities:
        """Device and inode number of the store's directory and each folder of entries; ``None`` if one is missing."""
        found: list[tuple[int, int] | None] = []
        for path in (self.root, self.metadata, self.kernels, self.groups, self.quarantine):
            try:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino))
            except FileNotFoundError:
                found.append(None)
        return tuple(found)

    def check_identities(self, known: Identities) -> None:
        """Refuses a store whose directory or a folder was replaced, for example by a link.

        Raises:
            StoreError: when the identities differ from ``known``; a plan made before is then for other files.
        """
        for before, now in zip(known, self.identities(), strict=False):
            if before is not None and before != now:
                raise StoreError(f"another store took the place of {self.root}; nothing was deleted: look at it again")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder of a new store."""
        return (
            self.kernels,
            self.metadata,
            self.temp,
            self.journal,
            self.locks,
            self.quarantine,
            self.jobs,
            self.evaluations,
        )

    pins = Below("pins")
    """The folder of pinned keys, created with the first pin."""

    def pin_path(self, key: CacheKey) -> str:
        """The file that pins an entry."""
        return f"{self.root}/pins/{key}"

    notes = Below("notes")
    """The folder of notes and saved views, created with the first."""

    def note_path(self, key: CacheKey) -> str:
        """The file with the note and the tags of an entry."""
        return f"{self.root}/notes/{key}.json"

    def view_path(self, name: str) -> str:
        """The file of the saved view with this name, which may have any letters."""
        return f"{self.root}/notes/view-{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    notes_lock = Below("locks/notes.lock")
    """The lock that a process holds while it changes a note or a saved view."""
    groups = Below("groups")
    """The folder of kernels of other frameworks, created with the first such kernel."""

    def group_path(self, key: CacheKey) -> str:
        """The path of the file with the kernel of another framework that has this key."""
        return f"{self.root}/groups/{key}"

    proofs = Below("proofs")
    """The folder of proofs: whether a kernel family computed right on a device; created with the first proof."""

    def proof_path(self, name: CacheKey) -> str:
        """The path of the proof with this identity (``model.proof.identity``)."""
        return f"{self.root}/proofs/{name}"

    runs = Below("runs")
    """The folder of reports of ``gemm-cache run``, created with the first report."""

    def run_path(self, started_at: float, pid: int) -> Path:
        """The path of the report of a run; sorted by name, the newest report is the last."""
        return self.runs / f"{round(max(started_at, 0.0) * 1e3):016x}-{pid}.json"

    @property
    def later_folders(self) -> tuple[Path, ...]:
        """Folders that are created with the first file in them."""
        return (self.timings, self.decisions, self.pins, self.notes, self.groups, self.proofs, self.runs)

    def record_path(self, key: CacheKey) -> str:
        """The path of an entry's record. A string, because every hit calls this and ``Path`` is slower."""
        return f"{self.root}/metadata/{key[:2]}/{key}.json"

    def blob_path(self, key: CacheKey, digest: str) -> str:
        """The path of an entry's blob. The name contains the digest, so a newer blob never overwrites an older one."""
        return f"{self.root}/kernels/{key[:2]}/{key}-{digest[:16]}"

    def key_lock(self, key: CacheKey) -> Path:
        """The lock file for compiling and deleting an entry.

        All keys share 4,096 lock files, since lock files must never be deleted. So compiles of two keys with the same
        lock file wait for each other.
        """
        return self.locks / f"key-{key[:3]}.lock"

    def results_file(self, fingerprint: str) -> Path:
        """The file with the results of a subject (an accelerator or a device); other tools read it too."""
        return self.results_folder / f"gemm_cache_{fingerprint}.json"

    def compressed_results_file(self, fingerprint: str) -> Path:
        """The compressed file with the results of a subject, as version 0.2 could write it."""
        return self.results_folder / f"gemm_cache_{fingerprint}.json.zst"

    def results_log(self, fingerprint: str, generation: int) -> Path:
        """A log of results, as version 0.2 wrote it; the results file with a higher generation contains its results."""
        return self.results_folder / f"gemm_cache_{fingerprint}.{generation}.log"

    def results_lock(self, fingerprint: str) -> Path:
        """The lock of a subject's results, held while their file is replaced."""
        return self.locks / f"results-{fingerprint[:2]}.lock"

    def quarantined(self, name: str, at_ns: int) -> Path:
        """The path in quarantine for a file that is moved there at ``at_ns`` (nanoseconds since 1970).

        A time before 1970 loses its sign.
        """
        return self.quarantine / f"{abs(at_ns):016d}-{name}"

    maintenance_lock = Below("locks/maintenance.lock")
    """The lock file of maintenance: cleaning, repairing and folding the journal."""
    jobs_lock = Below("locks/jobs.lock")
    """The lock file that a process holds while it starts a job."""

    def slot_lock(self, number: int) -> Path:
        """The lock file of a compile slot; only a process that holds a slot's lock compiles."""
        return self.locks / f"slot-{number}.lock"

    def ticket(self, ticket: TicketName) -> Path:
        """The path of a ticket: an empty file, locked by a process that compiles or waits. Its name has the key."""
        return self.temp / "-".join(("ticket", *map(str, ticket)))

    index_lock = Below("locks/mirror.lock")
    """The lock file of the index: shared to read, exclusive to write."""


def key_of_record_name(name: str, shard: str) -> CacheKey | None:
    """The key in the name of a file in ``metadata/<shard>``; ``None`` when it is not a record's name."""
    stem = name[:64]
    return CacheKey(stem) if name[64:] == ".json" and stem[:2] == shard and is_key(stem) else None


def key_of_blob_name(name: str, shard: str) -> CacheKey | None:
    """The key in the name of a file in ``kernels/<shard>``; ``None`` when it is not a blob's name."""
    return CacheKey(name[:64]) if name[:2] == shard and _BLOB.fullmatch(name) else None


def fingerprint_of_results_name(name: str) -> tuple[str, int | None] | None:
    """The fingerprint in the name of a results file; and the generation if the file is a log.

    ``None`` for other names.
    """
    match = re.fullmatch(_RESULTS, name)
    return None if match is None else (match[1], None if match[2] is None else int(match[2]))


def is_lock_name(name: str) -> bool:
    """Whether a file of this name belongs in ``locks``."""
    return name.endswith(".lock")


def is_journal_name(name: str) -> bool:
    """Whether a file of this name belongs in ``journal``: an open file, one being folded, or the snapshot."""
    return name == JOURNAL_SNAPSHOT or name.endswith((JOURNAL_OPEN, JOURNAL_FOLDING))


def ticket_of_name(name: str) -> TicketName | None:
    """The parts of a ticket's name in ``temp``; ``None`` for other names."""
    match = re.fullmatch(_TICKET, name, flags=re.ASCII)
    if match is None:
        return None
    state, priority, since_us, key, pid, token = match.groups()
    return TicketName(state, int(priority), int(since_us), CacheKey(key), int(pid), token)


def is_decisions_name(name: str) -> bool:
    """Whether a file of this name belongs in ``decisions``."""
    return name in _DECISIONS


def key_of_note_name(name: str) -> CacheKey | None:
    """The key in the name of a file in ``notes``; ``None`` for a saved view and for other names."""
    return CacheKey(name[:64]) if name[64:] == ".json" and is_key(name[:64]) else None


def is_note_name(name: str) -> bool:
    """Whether a file of this name belongs in ``notes``."""
    return key_of_note_name(name) is not None or re.fullmatch(_VIEW, name) is not None


def is_run_name(name: str) -> bool:
    """Whether a file of this name belongs in ``runs``."""
    return re.fullmatch(_RUN, name) is not None


def job_of_name(name: str) -> str | None:
    """The id of the job that a file in ``jobs`` belongs to; ``None`` for other names."""
    match = re.fullmatch(_JOB, name)
    return None if match is None else match[1]


def original_of_quarantined(name: str) -> tuple[str, float | None]:
    """The original name of a file in quarantine, and the time of the move (seconds since 1970).

    The time is ``None`` for a file that this program did not move there.
    """
    match = re.fullmatch(_QUARANTINED, name, flags=re.DOTALL)
    if match is not None:
        return match[2], int(match[1]) / 1e9
    match = re.fullmatch(_QUARANTINED_RESULTS, name)
    if match is not None:
        return f"{match[1]}.{match[3]}", int(match[2], 16) / 1e9
    return name, None


_BLOB = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")
_TICKET = r"ticket-([a-z]+)-([0-9])-([0-9]{1,18})-([0-9a-f]{64})-([0-9]{1,10})-([0-9a-f]{8})"
# The names of a job's files: the job, its output, and the request to cancel it.
_JOB = r"([0-9a-f]{1,32}-[0-9a-f]{1,32})\.(?:json|log|cancel)"
_VIEW = r"view-[0-9a-f]{32}\.json"
_RUN = r"[0-9a-f]{16}-[0-9]{1,10}\.json"
_QUARANTINED = r"([0-9]{16,20})-(.+)"
# The names of version 0.1.0 for results files, with the time between name and suffix.
_QUARANTINED_RESULTS = r"(gemm_cache_[0-9a-f]{32})-([0-9a-f]{15,16})\.(json(?:\.zst)?)"
_RESULTS = r"gemm_cache_([0-9a-f]{32})(?:\.json(?:\.zst)?|\.([0-9]{1,18})\.log)"
