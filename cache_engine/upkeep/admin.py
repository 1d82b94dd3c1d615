"""Administration of a store, ``Cache.admin``: cleaning, checking, quarantine, packs, the log of decisions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace as replace_struct

from cache_engine import upkeep
from cache_engine.errors import CorruptEntry, ExtraMissing, KeyNotFound, StoreError, UsageError
from cache_engine.frameworks.bundles import Group, UnknownGroup, group_keys, read_group
from cache_engine.model.artifact import Record
from cache_engine.model.decision import PIN, UNPIN, Decision
from cache_engine.model.events import CLEAN_OTHER, SEEN, EntryUsage
from cache_engine.model.key import CacheKey, check_prefix, is_key
from cache_engine.settings import Settings
from cache_engine.store import notes
from cache_engine.store.codec import signed_part
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.pack import Pack
from cache_engine.store.signatures import proof_for
from cache_engine.units import counted, printable
from cache_engine.upkeep import cleanup
from cache_engine.upkeep.admission import local_user
from cache_engine.upkeep.cleanup import Cleaned, Leftover
from cache_engine.upkeep.decisions import in_words
from cache_engine.upkeep.plan import EvictionPlan, Limits
from cache_engine.upkeep.survey import Survey

if TYPE_CHECKING:
    from cache_engine.frameworks.deletion import Deleted
    from cache_engine.frameworks.values import DeletePlan, Place
    from cache_engine.store.signatures.signers import Signed
    from cache_engine.upkeep.findings import Finding
    from cache_engine.upkeep.integrity import RepairAct
    from cache_engine.upkeep.packs import Exported, Imported, Incoming


class Administered(Protocol):
    """The attributes of an opened cache that ``Admin`` needs."""

    settings: Settings
    journal: Journal

    @property
    def store(self) -> DiskStore:
        """The entries on disk; raises ``StoreUnusable`` where there is no store."""
        ...


class Admin:
    """All methods of a store that no lookup needs. Each method raises ``StoreUnusable`` where there is no store."""

    def __init__(self, cache: Administered, is_stale: Callable[[Record], bool]) -> None:
        """Reads nothing yet; ``is_stale`` says of a record whether no request here can ever hit its entry."""
        self._cache, self._is_stale = cache, is_stale
        self.settings, self.journal = cache.settings, cache.journal

    @property
    def store(self) -> DiskStore:
        """The entries on disk; raises ``StoreUnusable`` where there is no store."""
        return self._cache.store

    def policy(self) -> Limits:
        """The limits in the settings."""
        return Limits.of(self.settings)

    def survey(self) -> Survey:
        """The present state of every entry, from which several plans can be made without reading the store again.

        Changes nothing.
        """
        self.journal.flush()
        return Survey(self.store, is_stale=self._is_stale)

    def plan_cleaning(
        self,
        limits: Limits | None = None,
        survey: Survey | None = None,
        on_record: Callable[[int], None] = lambda _: None,
    ) -> EvictionPlan:
        """The entries that a cleaning would evict by ``limits``; by default, by the limits in the settings.

        Changes nothing.

        Args:
            survey: the state of the entries, as the method ``survey`` returned it; by default, their state now.
            on_record: called with the number of records read so far.
        """
        limits = limits or self.policy()
        if limits.order is None:
            limits = replace(limits, order=self.settings.eviction)
        return (self.survey() if survey is None else survey).plan(limits, on_record)

    def find_leftovers(self) -> list[Leftover]:
        """Files without an entry that any cleaning removes: those of killed writers, and old ones in quarantine."""
        return cleanup.find_leftovers(self.store)

    def clean(self, limits: Limits | None = None, *, dry_run: bool = False, by: str | None = None) -> EvictionPlan:
        """Evicts the entries that ``plan_cleaning`` names, unless ``dry_run``; returns the plan."""
        plan = self.plan_cleaning(limits)
        if not dry_run:
            self.evict(plan, by=by)
        return plan

    def evict(
        self, plan: EvictionPlan, *, by: str | None = None, on_progress: Callable[[int], None] = lambda _: None
    ) -> Cleaned:
        """Evicts the entries of a plan, and deletes the files without an entry that ``find_leftovers`` lists.

        Skips an entry that was used or replaced since the plan was made, unless the plan evicts everything.
        """
        return cleanup.apply(self.store, self.journal, plan, on_progress, by=by or local_user())

    def clean_other(
        self, place: Place, plan: DeletePlan, *, by: str | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Deleted:  # fmt: skip
        """Deletes the entries of a plan from another framework's cache; returns the entries deleted and those left.

        The audit log gets one event before the deletion, with the number of entries to delete, so that a kill leaves a
        trace, and one after it, with the number deleted.
        """
        from cache_engine.frameworks.deletion import Deleted, delete

        self.store  # noqa: B018 (raises where there is none: nothing is deleted without an audit)
        done, by = Deleted(), by or local_user()
        where = f"{place.kind}, {printable(str(place.path))}"
        planned = f"{where}: {counted(len(plan.deletions), 'entry', 'entries')} to delete"
        self.journal.event(CLEAN_OTHER, detail=planned, by=by)
        try:
            return delete(place, plan, done, on_progress)
        finally:
            detail = f"{where}: {counted(len(done.ids), 'entry', 'entries')}"
            self.journal.event(CLEAN_OTHER, stored_bytes=done.size_bytes, detail=detail, by=by)

    def acted(self, kind: str, detail: str, by: str) -> None:
        """Records an action on the whole store in the audit log."""
        self.journal.event(kind, detail=detail, by=by or local_user())

    def find_key(self, prefix: str) -> CacheKey:
        """The key, of our or another framework's kernel, that starts with ``prefix``. Does not read the kernel.

        Raises:
            UsageError: when ``prefix`` cannot be the start of a key.
            KeyNotFound: when no key or several keys start with ``prefix``; the message says how the last entry with
                such a key left the store.
        """
        wanted = check_prefix(prefix)
        ours = (key for key in self.store.keys(wanted[:2]) if key.startswith(wanted))
        found = {*ours, *group_keys(self.store.layout, wanted)}
        if len(found) > 1:
            raise KeyNotFound(f"{len(found)} kernels have key prefix {wanted}; give more digits")
        if not found:
            gone, short = self.departure(wanted), wanted[:12]
            went = f"; {gone.key[:12]} was {gone.words}; gemm-cache log --key {short} has more" if gone else ""
            raise KeyNotFound(f"no kernel has key prefix {wanted}{went}")
        return found.pop()

    def departure(self, prefix: str) -> upkeep.decisions.Departure | None:
        """When and why the last entry with this key prefix left the store; ``None`` if unknown."""
        self.journal.flush()
        return upkeep.decisions.departure(self.store, prefix)

    def adapted(self, key: CacheKey) -> Group | None:
        """The kernel of another framework that has this key, verified by checksum; ``None`` if there is none.

        Raises:
            CorruptEntry: when the kernel is damaged.
            KeyNotFound: when its format version is unknown to this program.
            OSError: when it cannot be read.
        """
        try:
            return read_group(self.store.layout, key, trust=self.store.layout.trust)
        except UnknownGroup as error:
            raise KeyNotFound(f"{error}; a newer version wrote it") from error

    def find_stored(self, prefix: str) -> Record | Group:
        """The stored kernel, ours or another framework's, whose key starts with ``prefix``.

        Raises the errors of ``find_key`` and ``adapted``.
        """
        key = self.find_key(prefix)
        return self.adapted(key) or self.store.find(key)

    def usage_of(self, key: CacheKey, made_at: float) -> EntryUsage | None:
        """The usage of the entry with this key that was made at ``made_at``; ``None`` if it was never used."""
        self.journal.flush()
        usage = read_journal(self.store.layout.journal).usage
        return next((used for used in usage if (used.key, used.made_at) == (key, made_at)), None)

    def acknowledge(self, totals: Mapping[str, int], *, by: str | None = None) -> None:
        """Records that an admin has seen these failures, so that the page Overview warns only of later failures.

        The counters of failures do not change.

        Args:
            totals: the failures seen: for each counter in ``upkeep.decisions.FAILURES``, its sum over all time.
        """
        self.store  # noqa: B018 (raises where there is none)
        self.journal.event(SEEN, detail=in_words(totals), by=by or local_user())
        self.journal.flush()

    def pinned(self) -> list[CacheKey]:
        """The keys that are pinned, whether or not the store has their kernels."""
        return sorted(notes.pinned_keys(self.store.layout))

    def pin(self, *keys: str, by: str | None = None) -> list[CacheKey]:
        """Protects the kernels with these keys, or prefixes of keys, from eviction; returns the full keys.

        Raises:
            UsageError, KeyNotFound: when one of the texts is not a key, or no kernel has the key; nothing is then
                pinned.
            StoreError: when too many keys are pinned.
        """
        found = [self.find_key(key) for key in keys]
        for key in found:
            notes.pin(self.store.layout, key)
            self.journal.decided(PIN, key=key, by=by or local_user())
        return found

    def unpin(self, *keys: str, by: str | None = None) -> list[CacheKey]:
        """Ends the protection of the kernels with these keys, or prefixes of keys; returns the full keys.

        Raises:
            UsageError, KeyNotFound: when one of the texts is not the start of a key, or no pinned key or several start
                with it; nothing is then unpinned.
        """
        found = [self._find_pinned(key) for key in keys]
        for key in found:
            notes.unpin(self.store.layout, key)
            self.journal.decided(UNPIN, key=key, by=by or local_user())
        return found

    def _find_pinned(self, prefix: str) -> CacheKey:
        wanted = check_prefix(prefix)
        matches = [key for key in self.pinned() if key.startswith(wanted)]
        if len(matches) != 1:
            many = f"{len(matches)} pinned kernels have" if matches else "no pinned kernel has"
            raise KeyNotFound(f"{many} key prefix {wanted}; gemm-cache pin lists those that are pinned")
        return matches[0]

    def note(self, key: CacheKey) -> notes.Note | None:
        """The note and the tags of a kernel, also of one that left the store; ``None`` without them.

        Raises:
            CorruptEntry, StoreError: when the file is damaged, or of another format version.
        """
        return notes.note_of(self.store.layout, key)

    def note_words(self, key: CacheKey) -> str:
        """The note of a kernel and its tags, each with a #, or why they cannot be read; empty if there are none."""
        try:
            note = self.note(key)
        except (CorruptEntry, StoreError, OSError) as error:
            return f"the note cannot be read: {error}"
        return "" if note is None else " ".join(filter(None, (note.text, *(f"#{tag}" for tag in note.tags))))

    def annotate(
        self,
        *keys: str,
        text: str | None = None,
        add: Collection[str] = (),
        remove: Collection[str] = (),
        by: str | None = None,
    ) -> list[CacheKey]:
        """Changes the note and the tags of the kernels with these keys, or prefixes of keys; returns the full keys.

        Args:
            text: the new note; empty for none, ``None`` to leave the notes as they are.

        Raises:
            UsageError, KeyNotFound: when one of the texts is not a key, no kernel and no note has the key, or a note or
                a tag is not allowed.
            CorruptEntry, StoreError: when a present note is damaged, or no more can be stored.
        """
        found = [self._find_noted(key) for key in keys]
        for key in found:
            notes.annotate(self.store.layout, key, text=text, add=add, remove=remove, by=by or local_user())
        return found

    def _find_noted(self, prefix: str) -> CacheKey:
        try:
            return self.find_key(prefix)
        except KeyNotFound:
            if is_key(prefix) and self.note(CacheKey(prefix)) is not None:
                return CacheKey(prefix)
            raise

    def views(self) -> list[notes.View]:
        """The saved views of the list of kernels, sorted by name."""
        return notes.views(self.store.layout)

    def save_view(self, view: notes.View, *, by: str | None = None) -> notes.View:
        """Saves a view in place of the one with its name; raises ``UsageError`` if it is not allowed."""
        view = replace_struct(view, at=time.time(), by=by or local_user())
        notes.save_view(self.store.layout, view)
        return view

    def delete_view(self, name: str) -> str:
        """Deletes the view with this name, if there is one; returns the name."""
        notes.delete_view(self.store.layout, name)
        return name

    def check(
        self, *, share: float = 1.0, on_entry: Callable[[], None] = lambda: None, processes: int = 1
    ) -> Iterator[Finding]:
        """Checks a ``share`` of the store's entries, and yields each fault as a finding. Changes nothing.

        Args:
            processes: the most child processes that read entries. More than 1 forks this process, so give it only in
                programs that may fork.
        """
        trust = self.settings.trust_store
        return upkeep.integrity.check(self.store, on_entry, share=share, trust=trust, processes=processes)

    def plan_repair(self, findings: Iterable[Finding]) -> list[RepairAct]:
        """The acts that ``repair`` would do for each finding. Changes nothing."""
        return upkeep.integrity.plan_repair(self.store, findings)

    def repair(self, findings: Iterable[Finding], *, by: str | None = None) -> list[Finding]:
        """Repairs the fault of each finding; returns the findings that are repaired. Damaged files go to quarantine."""
        return upkeep.integrity.repair(self.store, self.journal, findings, by=by or local_user())

    def verify(self, *, repair: bool = False, share: float = 1.0, by: str | None = None) -> list[Finding]:
        """Checks the store and returns its findings; with ``repair``, applies each finding's remedy as well."""
        findings = list(self.check(share=share))
        if repair:
            self.repair(findings, by=by)
        return findings

    def signatures(self, keys: Iterable[CacheKey] | None = None) -> Iterator[tuple[CacheKey, Signed]]:
        """The signer of each entry, and whether the setting ``trusted_signers`` trusts it.

        Yields all entries, or those with the keys ``keys``. Reads and verifies the bytes of each entry. Entries that
        are damaged or have another format version are left out.

        Raises:
            UsageError: when the file of trusted signers cannot be used.
            ExtraMissing: when the package ``cryptography`` is not installed.
        """
        from cache_engine.store.signatures.signers import named_by

        signers = named_by(self.settings)
        for key in self.store.keys() if keys is None else keys:
            with suppress(CorruptEntry):
                stored = self.store.stored(key)
                if stored is not None:
                    yield key, signers.check(stored[0])

    def signature(self, key: str) -> str:
        """A sentence: an entry's signer, and whether the setting ``trusted_signers`` trusts it.

        Empty if the entry has no signature and needs none.
        """
        try:
            found = dict(self.signatures([CacheKey(key)])).get(CacheKey(key))
        except (UsageError, ExtraMissing) as error:
            stored = self.store.stored(CacheKey(key))
            return f"not checked: {error}" if stored is not None and signed_part(stored[0])[1] else ""
        if found is None or (found.standing == "not signed" and self.settings.trusted_signers is None):
            return ""
        return str(found)

    def quarantined(self) -> list[upkeep.quarantine.Item]:
        """The items in quarantine, newest first."""
        return upkeep.quarantine.items(self.store)

    def find_quarantined(self, names: Iterable[str]) -> list[upkeep.quarantine.Item]:
        """The items in quarantine with these names or key prefixes; raises ``StoreError`` for a name that fits none."""
        return upkeep.quarantine.find(self.store, names)

    def examine(self, item: upkeep.quarantine.Item) -> upkeep.quarantine.Examined:
        """A description of an item in quarantine, and whether it could be restored. Changes nothing."""
        return upkeep.quarantine.examine(self.store, item)

    def restore(self, item: upkeep.quarantine.Item, *, by: str | None = None) -> None:
        """Moves an entry from quarantine back into the store after verifying every byte; raises if a byte is wrong."""
        upkeep.quarantine.restore(self.store, self.journal, item, by=by or local_user())

    def discard(self, items: Iterable[upkeep.quarantine.Item], *, by: str | None = None) -> upkeep.quarantine.Discarded:
        """Deletes items from quarantine permanently; skips files that are gone or newer than the items."""
        return upkeep.quarantine.discard(self.store, self.journal, items, by=by or local_user())

    def export(
        self,
        path: str | Path,
        *,
        wanted: Callable[[Record], bool] = lambda _: True,
        adapted: Callable[[Group], bool] = lambda _: True,
        keys: Iterable[CacheKey] | None = None,
        replace: bool = False,
        sign: Callable[[bytes], bytes] | None = None,
        on_entry: Callable[[], None] = lambda: None,
        processes: int = 1,
    ) -> Exported:
        """Writes entries to a pack at ``path``, after checking each; damaged ones are left out and reported.

        ``upkeep.packs.export_pack`` explains the arguments.
        """
        return upkeep.packs.export_pack(
            self.store, Path(path), wanted, adapted=adapted, keys=keys, replace=replace, sign=sign,
            host_code=self.settings.host_code, on_entry=on_entry, processes=processes,
        )  # fmt: skip

    def open_pack(self, path: str | Path) -> Pack:
        """Opens a pack for ``import_pack`` or ``preview_import``.

        Raises:
            PackUnusable: when the pack cannot be used.
            UsageError, ExtraMissing: when the setting ``trusted_signers`` is on, but its file cannot be used or the
                package ``cryptography`` is not installed.
        """
        return Pack(Path(path), trust=self.settings.trust_store, prove=proof_for(self.settings))

    def preview_import(self, pack: Pack) -> Iterator[Incoming]:
        """Yields for each entry of a pack whether an import would store it, skip it or refuse it. Changes nothing."""
        return upkeep.packs.look_into(self.store, pack, host_code=self.settings.host_code)

    def import_pack(
        self,
        path: str | Path | Pack,
        *,
        dry_run: bool = False,
        by: str | None = None,
        on_entry: Callable[[], None] = lambda: None,
    ) -> Imported:
        """Imports the entries of a pack, given by its path or opened, after checking each.

        Entries already in the store do not change.

        With ``dry_run``, checks all entries and counts those that would be imported, but stores none.
        """
        opened = path if isinstance(path, Pack) else self.open_pack(path)
        acting = by or local_user()
        host_code = self.settings.host_code
        return upkeep.packs.import_pack(
            self.store, self.journal, opened, dry_run=dry_run, host_code=host_code, on_entry=on_entry, by=acting
        )

    def import_triton(
        self,
        directory: str | Path,
        *,
        dry_run: bool = False,
        by: str | None = None,
        on_entry: Callable[[], None] = lambda: None,
    ) -> Imported:
        """Imports the kernels of Triton's own cache, after checking each; kernels already in the store stay."""
        acting, folder = by or local_user(), Path(directory)
        return upkeep.packs.import_triton(
            self.store, self.journal, folder, dry_run=dry_run, on_entry=on_entry, by=acting,
            durable=self.settings.is_durable,
        )  # fmt: skip

    def decisions(self, key: str = "", *, kinds: Collection[str] = (), since: float = -math.inf) -> list[Decision]:
        """The decisions in the log, the oldest first, each miss with its cause.

        Args:
            key: only decisions about entries whose key starts with this.
            kinds: only decisions of these kinds, such as ``"miss"``.
            since: only decisions at this time or later, in seconds since 1970.

        Raises:
            UsageError: when ``key`` cannot be the start of a key.
        """
        self.journal.flush()
        return self.open_log().new(key, kinds, since)

    def open_log(self) -> upkeep.decisions.Log:
        """The log of decisions, for following it while it grows."""
        return upkeep.decisions.Log(self.store)

    def misses(self) -> list[Decision]:
        """The last misses with their causes, the latest first, as far back as the log of decisions goes.

        Reads the log but no record. So a cause is missing where only a record shows that another toolchain had made the
        kernel; ``decisions`` reads the records too.
        """
        self.journal.flush()
        return self._recent.misses()

    def recent_decisions(self) -> tuple[list[Decision], int]:
        """The last decisions, the latest first, and the number of log lines that are damaged or dated in the future.

        Each miss has its cause, found without reading records. The first call reads the whole log; later calls read
        only new lines.
        """
        self.journal.flush()
        return self._recent.all(), self._recent.damaged

    @cached_property
    def _recent(self) -> upkeep.decisions.RecentDecisions:
        return upkeep.decisions.RecentDecisions(self.store.layout)

    def early_evictions(self) -> list[upkeep.decisions.EarlyEviction]:
        """Kernels that were evicted and requested again, as far back as the log of decisions goes; the latest first."""
        decisions, _ = self.recent_decisions()
        return upkeep.decisions.early_evictions(reversed(decisions))
