"""What is done with a store other than getting kernels from it: looking into it, and keeping it in order.

Rooms that no hit needs are imported where they are entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache_engine.config import Settings
from cache_engine.errors import KeyNotFound, StoreUnusable
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import Statistics
from cache_engine.model.key import check_prefix
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.pack import Pack
from cache_engine.store.timings import Timings
from cache_engine.upkeep import cleaning as housekeeping
from cache_engine.upkeep.admission import local_user
from cache_engine.upkeep.cleaning import Leftover
from cache_engine.upkeep.plan import EvictionPlan, Limits

if TYPE_CHECKING:
    from cache_engine.evaluations import Evaluations
    from cache_engine.mirror.sync import Mirror
    from cache_engine.upkeep.integrity import Finding
    from cache_engine.upkeep.packs import Exported, Imported


class StoreView:
    """A store to look into and to keep in order. ``engine.Cache`` is one that gets kernels as well."""

    def __init__(
        self, store: DiskStore | None, settings: Settings, journal: Journal, is_stale: Callable[[Record], bool]
    ) -> None:
        """Looks into an opened store, or into none.

        Args:
            is_stale: tells of a record whether its entry can never be hit here.
        """
        self.settings = settings
        self._store = store
        self.journal = journal
        self._is_stale = is_stale

    @property
    def store(self) -> DiskStore:
        """Entries on disk.

        Raises:
            StoreUnusable: when caching is switched off.
        """
        if self._store is None:
            raise StoreUnusable("caching is switched off (enable_caching), so there is no store to look into")
        return self._store

    @property
    def layout(self) -> StoreLayout:
        """The paths of the store; raises as ``store``."""
        return self.store.layout

    @cached_property
    def mirror(self) -> Mirror:
        """The DuckDB copy of this store."""
        from cache_engine.mirror.sync import Mirror

        return Mirror(self.store)

    @cached_property
    def evaluations(self) -> Evaluations:
        """Results of the evaluator; written at once when the cache is closed, else at the end of the process."""
        from cache_engine.evaluations import Evaluations

        s = self.settings
        return Evaluations(
            self.layout,
            durable=s.durability == "durable",
            lock_timeout_s=s.lock_timeout_s,
            compressed=s.compress_results,
        )

    @cached_property
    def timings(self) -> Timings:
        """Measurements of this store's kernels."""
        s = self.settings
        return Timings(self.layout, durable=s.durability == "durable", lock_timeout_s=s.lock_timeout_s)

    def find(self, prefix: str) -> Record:
        """The record whose key starts with ``prefix``.

        Raises:
            UsageError: when it cannot be the start of a key.
            KeyNotFound: when no entry or several have it.
        """
        wanted = check_prefix(prefix)
        keys = [key for key in self.store.keys(wanted[:2]) if key.startswith(wanted)]
        if not keys:
            raise KeyNotFound(f"no entry has a key that starts with {wanted}")
        if len(keys) > 1:
            raise KeyNotFound(f"{len(keys)} entries have a key that starts with {wanted}; give more digits")
        record = self.store.record(keys[0])
        if record is None:
            raise KeyNotFound(f"the entry of {wanted} was made by another version of this program")
        return record

    def records(self) -> Iterator[Record]:
        """All records, read from disk in the order of their keys."""
        return self.store.records()

    def text(self, record: Record, part: str) -> str:
        """One of an entry's texts: ``source``, ``ptx``, ``log``, or ``sass``, which is disassembled now.

        Raises:
            CorruptEntry: when it is missing or damaged.
            ToolMissing: when the disassembler is not installed.
        """
        if part == "sass":
            from cache_engine.compilers.inspect import sass

            return sass(self.store.section(record, CUBIN))
        return self.store.section(record, part).decode("utf-8", "replace")

    def search(self, text: str, limit: int = 50) -> list[dict[str, Any]]:
        """Rows of entries whose name, key, target or family holds every word of ``text``, the latest used first.

        A word that is a model's name stands for the shapes of that model.
        """
        from cache_engine.catalogue import named_shapes
        from cache_engine.mirror import queries

        words, shapes = named_shapes(text)
        self.mirror.sync()
        with self.mirror.read() as connection:
            return queries.kernels(connection, queries.KernelFilter(words, shapes=shapes), limit=limit)

    def stats(self) -> Statistics:
        """The store's state and history; this process's own counts included."""
        self.journal.flush()
        entries, bytes_on_disk = housekeeping.count(self.layout)
        totals = read_journal(self.layout.journal).totals
        return Statistics(entries, bytes_on_disk, self.settings.max_entries, self.settings.max_bytes, totals)

    def plan_cleaning(self, limits: Limits | None = None) -> EvictionPlan:
        """What cleaning would evict now; without ``limits``, by the settings. Changes nothing."""
        self.journal.flush()
        limits = self.policy() if limits is None else limits
        return housekeeping.plan_cleaning(self.store, limits, is_stale=self._is_stale)

    def find_leftovers(self) -> list[Leftover]:
        """Files of no entry that any cleaning removes: what killed writers left, and what was set aside long ago."""
        return housekeeping.find_leftovers(self.store)

    def clean(self, limits: Limits | None = None, *, dry_run: bool = False) -> EvictionPlan:
        """Evicts what ``plan_cleaning`` names, unless ``dry_run``; returns that plan."""
        chosen = self.plan_cleaning(limits)
        if not dry_run:
            housekeeping.apply(self.store, self.journal, chosen, by=local_user())
        return chosen

    def policy(self) -> Limits:
        """The limits that the settings set."""
        s = self.settings
        return Limits(
            expire_days=s.expire_days,
            max_entries=s.max_entries,
            max_bytes=s.max_bytes,
            max_disk_share=s.max_disk_share,
            down_to=s.eviction_threshold,
        )

    def verify(self, *, repair: bool = False, share: float = 1.0) -> list[Finding]:
        """What is wrong with the store; with ``repair``, each finding's remedy is applied as well.

        Args:
            share: the share of entries to read, chosen at random.
        """
        from cache_engine.upkeep import integrity

        findings = list(integrity.check(self.store, share=share, trust=self.settings.trust_store))
        if repair:
            integrity.repair(self.store, self.journal, findings, by=local_user())
        return findings

    def export(self, path: str | Path, *, replace: bool = False) -> Exported:
        """Writes all entries to a pack; see ``transfer.export_pack``."""
        from cache_engine.upkeep.packs import export_pack

        return export_pack(self.store, Path(path), replace=replace)

    def import_pack(self, path: str | Path, *, dry_run: bool = False) -> Imported:
        """Takes the entries of a pack into the store; see ``transfer.import_pack``."""
        from cache_engine.upkeep.packs import import_pack

        pack = Pack(Path(path), trust=self.settings.trust_store)
        return import_pack(self.store, self.journal, pack, dry_run=dry_run, by=local_user())
