"""Surveys of a store: the facts about each entry that ``plan`` needs; and checks of one entry."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from operator import attrgetter

from msgspec.structs import replace as changed

from cache_engine.compilers.elf import cubin_fault
from cache_engine.errors import CompilerMissing, CorruptEntry, GemmCacheError
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundles import UnknownGroup, read_group
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.artifact import Record
from cache_engine.model.events import EntryUsage
from cache_engine.model.gemm import Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import SCHEMA, CacheKey, is_key
from cache_engine.store.codec import check_key
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import shards_in
from cache_engine.store.journal import read_journal
from cache_engine.store.journal.decisions import demoted_keys
from cache_engine.store.layout import StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.notes import pinned_keys
from cache_engine.upkeep.plan import VALUE, EntryFacts, EvictionPlan, Limits, plan

NONE_STALE: Callable[[Record], bool] = lambda _: False  # noqa: E731 (a default with a name)


def survey(layout: StoreLayout) -> list[EntryFacts]:
    """The facts about every entry, from file sizes, file times, pins, the log and the journal. Opens no record."""
    return _survey(layout, read_journal(layout.journal).usage)


class Survey:
    """The state of a store's entries at one moment; plans made from it share the records that they read.

    A plan reads the records of the entries that it would evict, since an entry of another format version stays and one
    that serves any size goes last. It reads all records if the limits or the order need them.

    Attributes:
        made_at: when the survey was made, in seconds since 1970.
    """

    def __init__(
        self, store: DiskStore, now: float | None = None, is_stale: Callable[[Record], bool] = NONE_STALE
    ) -> None:
        """Reads the status of every entry's files, and the journal. Changes nothing.

        Args:
            is_stale: whether no request on this machine can ever hit the entry of a record; called only if the limits
                need it.
        """
        self._store, self._is_stale = store, is_stale
        self.made_at = time.time() if now is None else now
        self._identities = store.layout.identities()
        usage = read_journal(store.layout.journal).usage
        self._usage = {(used.key, used.made_at): used for used in usage}
        self._entries = {entry.key: entry for entry in _survey(store.layout, usage)}
        self._read: set[str] = set()
        self._checked: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def plan(self, limits: Limits, on_record: Callable[[int], None] = lambda _: None) -> EvictionPlan:
        """The entries that a cleaning with these limits would evict. Changes nothing.

        Args:
            on_record: called with the number of records read so far for this plan, at most the number of entries.
        """
        if limits.max_disk_share is not None:
            limits = replace(limits, free_bytes=shutil.disk_usage(self._store.layout.root).free)
        done = 0
        if limits.stale_toolchain or limits.archs or limits.foreign_format or limits.order == VALUE:
            done = self._learn(self._entries, limits, done, on_record)
        while True:
            chosen = plan(self._entries.values(), limits, self.made_at)
            unread = [victim.key for victim in chosen.victims if victim.key not in self._read]
            if not unread:
                return replace(chosen, store=self._identities)
            done = self._learn(unread, limits, done, on_record)

    def _hits(self, key: str, made_at: float) -> float:
        used = self._usage.get((key, made_at))
        return 0.0 if used is None else used.recent_hits(self.made_at)

    def _learn(self, keys: Iterable[str], limits: Limits, done: int, on_record: Callable[[int], None]) -> int:
        """Reads the records of ``keys`` that were not read yet, or not checked for staleness if the limits need that.

        Returns:
            ``done`` plus the number of records read.
        """
        stale = limits.stale_toolchain
        unknown = [key for key in keys if key not in (self._checked if stale else self._read)]
        for number, key in enumerate(unknown, start=done + 1):
            checked = self._is_stale if stale else NONE_STALE
            self._entries[key] = _with_record_facts(self._store, self._entries[key], checked, self._hits)
            on_record(number)
        self._read.update(unknown)
        if stale:
            self._checked.update(unknown)
        return done + len(unknown)


def plan_cleaning(
    store: DiskStore, limits: Limits, now: float | None = None, is_stale: Callable[[Record], bool] = NONE_STALE
) -> EvictionPlan:
    """The entries that a cleaning with these limits would evict now. Changes nothing."""
    return Survey(store, now, is_stale).plan(limits)


def count(layout: StoreLayout) -> tuple[int, int]:
    """The number of entries in the store, kernels of other frameworks included, and the sum of their bytes on disk."""
    sizes = [stored_bytes for _, stored_bytes, _ in _scan(layout)]
    return len(sizes), sum(sizes)


def _scan(layout: StoreLayout) -> Iterator[tuple[str, int, float]]:
    """The key, bytes on disk and time of publishing of every entry.

    The bytes are those of record and blob. Other frameworks' kernels are included.
    """
    for name, status in _files(layout.groups):
        if is_key(name):
            yield name, status.st_size, status.st_mtime
    for shard in shards_in(layout.metadata, links=layout.trust):
        blob_bytes: dict[str, int] = {}
        for name, status in _files(layout.kernels / shard):
            key = key_of_blob_name(name, shard)
            if key is not None:
                blob_bytes[key] = blob_bytes.get(key, 0) + status.st_size
        for name, status in _files(layout.metadata / shard):
            key = key_of_record_name(name, shard)
            if key is not None:
                yield key, status.st_size + blob_bytes.get(key, 0), status.st_mtime


def _files(folder: os.PathLike[str]) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield entry.name, status


def last_uses(layout: StoreLayout) -> dict[str, float]:
    """The time of each key's last use, according to the journal, in seconds since 1970."""
    return {key: last for key, (last, _) in _last_two_uses(read_journal(layout.journal).usage).items()}


def _survey(layout: StoreLayout, usage: list[EntryUsage]) -> list[EntryFacts]:
    used, pinned, demoted = _last_two_uses(usage), pinned_keys(layout), demoted_keys(layout)
    entries = []
    for key, stored_bytes, published_at in _scan(layout):
        last, before = used.get(key, (0.0, 0.0))
        last_used_at = max(published_at, last)
        used_before_at = before if before > 0 else -math.inf
        entries.append(
            EntryFacts(
                key,
                stored_bytes,
                last_used_at,
                used_before_at=used_before_at,
                pinned=key in pinned,
                is_demoted=key in demoted,
            )
        )
    return entries


def _last_two_uses(usage: list[EntryUsage]) -> dict[str, tuple[float, float]]:
    """For each key, the time of the last use, and of the second last use of its present entry; 0 for none."""
    uses: dict[str, tuple[float, float]] = {}
    for used in sorted(usage, key=lambda used: used.made_at):
        last, _ = uses.get(used.key, (0.0, 0.0))
        uses[used.key] = max(last, used.last_used_at), used.previous_used_at
    return uses


def _with_record_facts(
    store: DiskStore,
    entry: EntryFacts,
    is_stale: Callable[[Record], bool],
    hits: Callable[[str, float], float],
) -> EntryFacts:
    """The facts about an entry, completed from its record; if that has another format version, ``foreign`` is set."""
    key = CacheKey(entry.key)
    try:
        record = store.record(key)
        group = read_group(store.layout, key, trust=store.layout.trust) if record is None else None
    except UnknownGroup:
        return changed(entry, foreign=True)
    except (CorruptEntry, OSError):
        return entry
    if group is not None:
        hits_of_it = hits(key, group.made_at)
        return changed(
            entry, arch=describe(group).arch or "", hits=hits_of_it, compile_s=(group.compile_ms or 0.0) / 1e3
        )
    if record is None:
        return changed(entry, foreign=store.has_unknown_format(key))
    return changed(
        entry,
        arch=record.arch,
        stale=_is_stale(record, is_stale),
        hits=hits(record.key, record.created_at),
        compile_s=record.compile_ms / 1e3,
        is_floor=record.problem.specialisation == Specialisation.DYNAMIC,
    )


def _is_stale(record: Record, is_stale: Callable[[Record], bool]) -> bool:
    """Whether no request on this machine can ever hit an entry.

    An entry whose compiler is not installed here is not stale, because other machines may hit it.
    """
    try:
        return is_stale(record)
    except CompilerMissing:
        return False


# ---- Checks that an entry is consistent: its record with the components of its key, its code with its target ----
#
# Checksums prove that bytes are unchanged. This proves that they belong together, no matter which program wrote them.
# ``verify``, ``pack`` and ``verify --restore`` do both checks. A hit in a pack does only the second, which
# takes 1 µs; the first takes as long as the hit (30 µs). A hit on disk does neither: a stored entry was compiled here
# or passed both.

# The specialisation decides which sizes are constants, so a record and its key must also agree on the set of sizes.
_SIZES = ("M", "N", "K", "M_MOST")
# Constants that every version with this schema derives from a problem in the same way. Others, such as the widths of
# reads, follow from rules that may change.
_OF_THE_PROBLEM = frozenset(
    {*_SIZES, "IN_TYPE", "OUT_TYPE", "INPUT_PRECISION", "A_TRANSPOSED", "B_TRANSPOSED", "WARPS"}
    | {"WITH_ALPHA", "WITH_BETA", "WITH_BIAS", "ACTIVATION", "SCALED", "B_SCALE_COLUMNS", "SCALE_TYPE"}
    | {"MASKED"}
)
_TILES = tuple(field.name.upper() for field in fields(KernelConfig))
_tiles_of = attrgetter(*(field.name for field in fields(KernelConfig)))
# Components that every key with this schema has, with the constants of its problem.
_ALWAYS = frozenset({"template", "compiler_version", "compiler_build", "flags", "KERNEL_NAME"})


def check_record(record: Record) -> None:
    """Checks that the record's components hash to its key and are complete, and that its fields agree with them.

    Raises:
        CorruptEntry: naming the field that does not agree.
    """
    check_key(record)
    components = dict(record.components)
    if len(components) < len(record.components) or "schema" not in components:
        count = Counter(label for label, _ in record.components)
        label, times = next(one for one in {"schema": count["schema"], **count}.items() if one[1] != 1)
        raise CorruptEntry(f"the key of {record.key[:12]} has {times} components {label!r}, not one")
    components.setdefault("CLUSTER", "1")  # which keys leave out where it is 1
    if components["schema"] != SCHEMA:
        return  # the labels of another scheme may mean something else
    for label, value in (("family", record.family), ("compiler", record.compiler), ("arch", record.arch)):
        _compare(record, label, value, components.get(label))
    constants = _constants(record)
    tiles = zip(_TILES, map(str, _tiles_of(record.config)), strict=True)
    expected = {"compiler_version": record.compiler_version, "KERNEL_NAME": record.name, **dict(tiles)}
    for label, value in {**expected, **(constants or {})}.items():
        if value != components.get(label, value):
            _compare(record, label, value, components[label])
    if constants is not None:
        for label in (*_SIZES, *constants):
            if constants.get(label) != components.get(label):
                _compare(record, label, constants.get(label), components.get(label))
        missing = sorted(_ALWAYS - components.keys())
        if missing:
            raise CorruptEntry(f"the key of {record.key[:12]} has no component {missing[0]!r}")


def check_code(record: Record, cubin: bytes) -> None:
    """Checks that the compiled code is for the record's target.

    Raises:
        CorruptEntry: with the reason as its text.
    """
    fault = cubin_fault(cubin, record.arch)
    if fault:
        raise CorruptEntry(f"the code of {record.key[:12]} is not for its target: {fault}")


def _constants(record: Record) -> dict[str, str] | None:
    """The constants that the key of the record's problem must have; ``None`` if this program cannot derive them."""
    try:
        family = FAMILIES[record.family]
        constants = family.constants(record.problem.on(record.arch), record.config)
    except (KeyError, GemmCacheError):
        return None
    return {label: str(value) for label, value in constants.items() if label in _OF_THE_PROBLEM}


def _compare(record: Record, label: str, said: str | None, hashed: str | None) -> None:
    if said != hashed:
        raise CorruptEntry(
            f"record of {record.key[:12]} contradicts its key: {label} is {said!r} in the record, {hashed!r} in the key"
        )
