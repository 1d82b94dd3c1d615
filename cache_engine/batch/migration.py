"""Migration of a store's entries after an upgrade: a plan, and compiling the kernels whose keys have changed.

An entry is carried over if its request still has the same key. The key is a hash of everything that made the code, so
code of another toolchain or template does not belong to the new key. An entry that is carried over is written again if
its format is an older one, unless it is signed: a signature holds for the bytes that were signed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from cache_engine.batch.warm import side_by_side
from cache_engine.cache.cache import Cache
from cache_engine.cache.miss import make_artifact
from cache_engine.cache.queue import Priority
from cache_engine.cache.selection import Selection
from cache_engine.cache.stages import StageClock
from cache_engine.errors import CompileError, CorruptEntry, GemmCacheError, NotHereError, StoreError, UsageError
from cache_engine.model.artifact import CUBIN, LOG, PTX, SOURCE, Artifact, Record
from cache_engine.model.key import CacheKey
from cache_engine.model.measurement import GIVEN
from cache_engine.model.outcome import in_words
from cache_engine.store.codec import FORMAT, decode_record, decode_section, signed_part, stored_bytes
from cache_engine.store.lock import file_lock

CARRIED, SUPERSEDED, AGAIN, FOREIGN, UNKNOWN, DAMAGED = (
    "carried over",
    "superseded",
    "compiled again",
    "another format",
    "unknown",
    "damaged",
)
"""The fates of an entry in a migration.

Superseded: the store already has another entry that serves the entry's request.
"""


@dataclass(frozen=True, slots=True, order=True)
class EntryKind:
    """The properties that entries with the same fate share.

    Attributes:
        fate: one of the constants above.
        reason: why the entry is not carried over; empty if it is.
        format: the version of the record.
        key_schema: the version of the way to make keys; empty where the record cannot be read.
        created_by: the program that made the entries; empty where the record cannot be read.
    """

    fate: str
    reason: str
    format: int
    key_schema: str = ""
    created_by: str = ""


@dataclass(slots=True)
class Sum:
    """The number of entries of one kind, and their bytes on disk; unreadable records count no bytes."""

    entries: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The entries by kind, the kernels to compile (each once), and the entries to write in the present format."""

    sums: dict[EntryKind, Sum] = field(default_factory=lambda: defaultdict(Sum))
    again: dict[CacheKey, Selection] = field(default_factory=dict)
    older: list[CacheKey] = field(default_factory=list)


def plan_migration(cache: Cache, on_entry: Callable[[], None] = lambda: None) -> MigrationPlan:
    """Plans a migration: decides the fate of each entry. Reads every record; changes nothing.

    Args:
        on_entry: called for each entry.
    """
    plan = MigrationPlan()
    there = set(cache.store.keys())
    for key in sorted(there):
        kind, size = _kind(cache, key, there, plan.again)
        plan.sums[kind].entries += 1
        plan.sums[kind].stored_bytes += size
        if kind.fate == CARRIED and kind.format < FORMAT:
            plan.older.append(key)
        on_entry()
    return plan


def migrate(
    cache: Cache, plan: MigrationPlan, jobs: int | None = None, on_done: Callable[[], None] = lambda: None
) -> dict[CacheKey, str]:
    """Carries out a plan; returns, by key, the reason for each kernel that could not be stored.

    Writes entries in the present format, and compiles and stores kernels. Deletes no kernel. May be interrupted at any
    point: the next plan has the entries that are left.

    Args:
        jobs: how many kernels to compile at a time; by default one per processor.
        on_done: called after each kernel.

    Raises:
        NotHereError: when no kernel can be compiled, because a compiler or package is not installed.
    """
    failed = {}
    for key in plan.older:
        try:
            _write_again(cache, key)
        except (StoreError, OSError) as error:
            failed[key] = in_words(error)
    chosen = list(plan.again.values())
    gets = [
        partial(
            cache.get_or_compile,
            one.problem,
            family=one.family.name,
            compiler=one.compiler.name,
            config=one.config if one.config_from == GIVEN else None,
            priority=Priority.WARM,
        )
        for one in chosen
    ]
    for number, got in side_by_side(gets, jobs):
        trouble = str(got) if isinstance(got, GemmCacheError) else str(got.unpublished or "")
        if trouble:
            failed[chosen[number].key] = trouble
        on_done()
    return failed


def _write_again(cache: Cache, key: CacheKey) -> None:
    """Writes an entry in the present format, after checking every byte; leaves a signed entry as it is."""
    with file_lock(cache.layout.key_lock(key), cache.settings.lock_timeout_s):
        stored = cache.store.stored(key)
        if stored is None or signed_part(stored[0])[1]:
            return
        record = decode_record(key, stored[0])
        cubin, ptx, source, log = (
            decode_section(key, record.blob, name, stored[1]) for name in (CUBIN, PTX, SOURCE, LOG)
        )
        artifact = Artifact(cubin, ptx, source, log, record.resources)
        cache.store.publish(key, artifact, lambda blob: msgspec.structs.replace(record, blob=blob))


def _kind(cache: Cache, key: CacheKey, there: set[CacheKey], again: dict[CacheKey, Selection]) -> tuple[EntryKind, int]:
    """The kind of an entry, which says the entry's fate, and the entry's size in bytes.

    If its kernel must be compiled, adds it to ``again``.
    """
    foreign = cache.store.foreign_format(key)
    if foreign is not None:
        return EntryKind(FOREIGN, "only another version of this program reads it", foreign), 0
    try:
        record = cache.store.record(key)
    except (CorruptEntry, OSError):
        record = None
    if record is None:
        return EntryKind(DAMAGED, "gemm-cache verify says how", FORMAT), 0
    fate, reason = _fate(cache, record, there, again)
    schema = dict(record.components).get("schema", "")
    version = cache.store.format(key) or FORMAT
    return EntryKind(fate, reason, version, schema, record.created_by), stored_bytes(record)


def _fate(cache: Cache, record: Record, there: set[CacheKey], again: dict[CacheKey, Selection]) -> tuple[str, str]:
    config = record.config if record.config_from == GIVEN else None
    try:
        problem = record.problem.on(record.arch)
        selection = cache.select(problem, family=record.family, compiler=record.compiler, config=config)
    except GemmCacheError as error:
        return UNKNOWN, str(error)
    if selection.key == record.key:
        return CARRIED, ""
    reason = _changed(record, selection)
    if selection.key in there:
        return SUPERSEDED, reason
    again[selection.key] = selection
    return AGAIN, reason


def _changed(record: Record, selection: Selection) -> str:
    """The names of the key components that differ between a record and its request's present key.

    Constants are in capital letters; they change with the config.
    """
    before, now = dict(record.components), dict(selection.prefix.with_constants(selection.constants))
    labels = [label for label in {**now, **before} if before.get(label) != now.get(label)]
    named = [label.replace("_", " ") for label in labels if not label.isupper()]
    return f"changed: {', '.join(named)}" if named else "another config is chosen"


# ---- Compiling again what another machine made, and comparing the bytes: a signature cannot prove them ----


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """The result of a rebuild.

    Attributes:
        is_same: whether the new code equals the old, byte for byte; ``None`` where the kernel could not be compiled
            here.
        why: why the code differs or the kernel could not be compiled; empty where the code is the same.
    """

    is_same: bool | None
    why: str = ""


def rebuild(cache: Cache, record: Record, cubin: bytes) -> RebuildResult:
    """Compiles a kernel again from its record's inputs, and compares the code with ``cubin``. Stores nothing."""
    try:
        problem = record.problem.on(record.arch)
        made = cache.selector.select_installed(problem, record.family, record.compiler, record.config)
        if made.key != record.key:
            return RebuildResult(None, "its toolchain, flags or template are not those of this machine")
        code = make_artifact(made, StageClock()).cubin
    except (UsageError, NotHereError) as error:
        return RebuildResult(None, str(error))
    except CompileError as error:
        return RebuildResult(False, f"it does not compile: {error}")
    if code == cubin:
        return RebuildResult(True)
    return RebuildResult(False, f"compiled here it is other code: {len(code):,} bytes, there {len(cubin):,}")
