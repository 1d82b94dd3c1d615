"""The operations that the fault suite interrupts: what each starts from, does, and promises.

A row of ``OPERATIONS`` has both sides of it: ``lay_out`` runs in the test and makes the store that every trial starts
from a copy of; ``begin`` runs in the child that is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from functools import partial

from cache_engine.batch.migration import MigrationPlan, migrate
from cache_engine.cache.cache import Cache
from cache_engine.index.sync import Index
from cache_engine.model.events import PUBLISH
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.model.measurement import Measurement
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold, fold_when_long
from cache_engine.store.lock import file_lock
from cache_engine.store.pack import Pack
from cache_engine.store.timings import Timings, encode
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep import integrity, quarantine
from cache_engine.upkeep.packs import export_pack, import_pack
from cache_engine.upkeep.plan import Limits
from tests.helpers import INVENTED_GPU, blob_file, fill, invented_timing, make_entry, make_store, publish, record_file
from tests.store.first_format import place_first
from tests.store.old_results import write_log

ENTRIES = 6
FRESH = 50
NEW_BYTES = 5000  # of the code that replaces an entry's
PROBLEM = GemmProblem(128, 256, 192, arch="sm_80")  # as make_entry(0)
_WAIT_S = 10.0
_PACK = "some.gemmpack"

Action = Callable[[], object]
"""What is interrupted; returns what is acknowledged, as JSON can say it."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a journal adds up to."""

    hits: int = 0
    misses: int = 0
    compiles: int = 0
    asked: int = 0
    spans: int = 0

    def plus(self, more: Counts) -> Counts:
        """The sum."""
        both = zip(astuple(self), astuple(more), strict=True)
        return Counts(*(one + other for one, other in both))


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold of a store that an operation was interrupted on.

    Attributes:
        served: what each key may be served with (``None``: nothing) however far the operation came.
        finished: what each key is served with once the operation was acknowledged.
        damaged: keys whose entries were damaged from the start, and must never be served.
        counts: what the journal held before.
        usage: hits by key that the journal held before.
        more: what the operation adds to the journal.
        results: latencies that each key of an evaluation may have (``None``: it is not there), as ``served``.
        results_finished: the latency of each once the operation was acknowledged.
        results_damaged: whether some were damaged from the start, which statistics go on to say.
        timings: keys that there were timings of before.
        timed: the key whose timing the operation adds.
        logged: details of decisions in the log before.
        decided: that of the decision which the operation logs.
        pinned: keys that are pinned before and after.
        may_pin: keys that the operation pins or, with
        may_unpin: unpins.
        noted: notes that the first key may have; the last once the operation was acknowledged.
    """

    served: dict[CacheKey, set[bytes | None]]
    finished: dict[CacheKey, bytes | None]
    damaged: frozenset[CacheKey] = frozenset()
    counts: Counts = field(default_factory=Counts)
    usage: dict[CacheKey, int] = field(default_factory=dict)
    more: Counts = field(default_factory=Counts)
    results: dict[str, set[float | None]] = field(default_factory=dict)
    results_finished: dict[str, float | None] = field(default_factory=dict)
    results_damaged: bool = False
    timings: frozenset[str] = frozenset()
    timed: str = ""
    logged: frozenset[str] = frozenset()
    decided: str = ""
    pinned: frozenset[CacheKey] = frozenset()
    may_pin: frozenset[CacheKey] = frozenset()
    may_unpin: bool = False
    noted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table.

    Attributes:
        lay_out: fills an empty store; returns what is promised of it.
        begin: prepares the operation; what it returns is interrupted.
        may_raise: the base classes of what a refused system call may make of it.
        sure: returning means done, also where a system call was refused on the way.
        mirrored: whether it is the index that is worked on.
    """

    lay_out: Callable[[DiskStore], Promise]
    begin: Callable[[DiskStore], Action]
    may_raise: tuple[str, ...] = ("OSError", "LockTimeout")
    sure: bool = True
    indexed: bool = False


def code_of(seed: int) -> bytes:
    """The compiled code of ``make_entry(seed)``."""
    return make_entry(seed)[1].cubin


def filled(store: DiskStore) -> Promise:
    """Some entries, and a journal in three finished files; nothing is to change."""
    keys, journals = fill(store, ENTRIES), [Journal(store.layout.journal, 3600.0) for _ in range(3)]
    used = {key: number + 2 for number, key in enumerate(keys[:3])}
    # All are open at once, or the second would take over the first one's file.
    for number, journal in enumerate(journals):
        for _ in range(used[keys[number]]):
            journal.hit(keys[number], "disk", made_at=1_700_000_000.0 + number, saved_us=1000)
        journal.miss()
        journal.asked(PROBLEM)
        journal.spans.add("disk", 1.0)
        journal.event(PUBLISH, key=keys[number], compile_us=150_000)
    for journal in journals:
        journal.close()
    code = {key: code_of(seed) for seed, key in enumerate(keys)}
    counts = Counts(sum(used.values()), 3, 3, 3, 3)
    return Promise({key: {data} for key, data in code.items()}, dict(code), counts=counts, usage=used)


# ---- Publishing ----


def _before_fresh(store: DiskStore) -> Promise:
    promise = filled(store)
    key, artifact, _ = make_entry(FRESH)
    promise.served[key], promise.finished[key] = {None, artifact.cubin}, artifact.cubin
    return promise


def _before_replacing(store: DiskStore) -> Promise:
    promise = filled(store)
    key, artifact, _ = make_entry(0, cubin_bytes=NEW_BYTES)
    promise.served[key].add(artifact.cubin)
    promise.finished[key] = artifact.cubin
    return promise


def _publishing(seed: int, cubin_bytes: int) -> Callable[[DiskStore], Action]:
    def begin(store: DiskStore) -> Action:
        key, artifact, described = make_entry(seed, cubin_bytes=cubin_bytes)
        durable = DiskStore(store.layout, durable=True)

        def act() -> object:
            with file_lock(store.layout.key_lock(key), _WAIT_S):
                durable.publish(key, artifact, described)
            return key

        return act

    return begin


# ---- Upkeep ----


def _before_evicting(store: DiskStore) -> Promise:
    promise = filled(store)
    for key in promise.served:
        promise.served[key].add(None)
        promise.finished[key] = None
    return promise


def _before_cleaning(store: DiskStore) -> Promise:
    """The half that was never used goes."""
    promise = filled(store)
    for key in set(promise.served) - set(promise.usage):
        promise.served[key].add(None)
        promise.finished[key] = None
    return promise


def _evicting(limits: Limits) -> Callable[[DiskStore], Action]:
    return lambda store: partial(_evict, store, Journal(store.layout.journal, 3600.0), limits)


def _evict(store: DiskStore, journal: Journal, limits: Limits) -> object:
    cleaned = housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, limits))
    if cleaned.skipped:
        raise OSError(f"{cleaned.skipped} entries were skipped")
    return cleaned.evicted


def _before_repairing(store: DiskStore) -> Promise:
    promise = filled(store)
    flipped, blobless, torn, orphaned = damaged = fill(store, 4, start=100)
    data = bytearray(blob_file(store, flipped).read_bytes())
    data[100] ^= 1
    blob_file(store, flipped).write_bytes(data)
    blob_file(store, blobless).unlink()
    record_file(store, torn).write_bytes(record_file(store, torn).read_bytes()[:-10])
    record_file(store, orphaned).unlink()
    stale = store.layout.temp / "1-0123456789abcdef"
    stale.write_bytes(b"half a bl")
    for key in damaged:
        promise.served[key], promise.finished[key] = {None}, None
    return Promise(promise.served, promise.finished, frozenset(damaged), promise.counts, promise.usage)


def _repairing(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)
    return lambda: len(integrity.repair(store, journal, list(integrity.check(store))))


def _before_migrating(store: DiskStore) -> Promise:
    """Half of the entries in the first format."""
    promise = filled(store)
    for seed in range(ENTRIES // 2):
        place_first(store, *make_entry(seed))
    return promise


def _migrating(store: DiskStore) -> Action:
    older = [key for key in sorted(store.keys()) if store.format(key) == 1]
    cache = Cache(store, Settings(cleanup_interval_h=0.0))
    return lambda: len(older) - len(migrate(cache, MigrationPlan(older=older)))


def _before_restoring(store: DiskStore) -> Promise:
    """A sound entry in quarantine."""
    promise = filled(store)
    key = publish(store, FRESH)
    store.quarantine(key)
    promise.served[key], promise.finished[key] = {None, code_of(FRESH)}, code_of(FRESH)
    return promise


def _restoring(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)
    (item,) = quarantine.items(store)

    def act() -> object:
        quarantine.restore(store, journal, item)
        return item.key

    return act


def _discarding(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)
    items = quarantine.items(store)
    return lambda: quarantine.discard(store, journal, items).items


def _before_discarding(store: DiskStore) -> Promise:
    promise = filled(store)
    key = publish(store, FRESH)
    store.quarantine(key)
    promise.served[key], promise.finished[key] = {None}, None
    return promise


def _before_importing(store: DiskStore) -> Promise:
    """A pack of entries that are there, damaged and missing; it lies where it is copied along."""
    promise = filled(store)
    source = make_store(store.layout.root.parent / "source")
    _, damaged, *new = fill(source, 1) + fill(source, 3, start=200)
    export_pack(source, store.layout.quarantine / _PACK)
    publish(store, 200)
    path = blob_file(store, damaged)
    path.write_bytes(path.read_bytes()[:-2000])
    for seed, key in zip((200, 201, 202), (damaged, *new), strict=True):
        promise.served[key], promise.finished[key] = {None, code_of(seed)}, code_of(seed)
    damages = frozenset({damaged})
    return Promise(promise.served, promise.finished, damages, promise.counts, promise.usage)


def _importing(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)

    def act() -> object:
        imported = import_pack(store, journal, Pack(store.layout.quarantine / _PACK))
        journal.close()
        if imported.refused:
            raise OSError(imported.refused[0].cause)
        return imported.taken

    return act


def _folding(store: DiskStore) -> Action:
    def act() -> object:
        layout = store.layout
        with file_lock(layout.maintenance_lock, _WAIT_S):
            return fold(layout.journal, layout.temp, keep=lambda _: True)

    return act


def _before_folding_by_itself(store: DiskStore) -> Promise:
    """Finished files, one of them of another day."""
    promise = filled(store)
    oldest = min(store.layout.journal.glob("*.jsonl"))
    oldest.rename(oldest.with_name(f"{1:016x}-1-old.jsonl"))
    return promise


def _folding_by_itself(store: DiskStore) -> Action:
    """A process that only hits folds what others left."""
    journal = Journal(store.layout.journal, 3600.0, fold=partial(fold_when_long, store.layout))

    def act() -> object:
        journal.write_counts()
        return True

    return act


def _before_counting(store: DiskStore) -> Promise:
    promise = filled(store)
    more = Counts(hits=4, misses=1, compiles=1, asked=5, spans=2)
    return Promise(promise.served, promise.finished, counts=promise.counts, usage=promise.usage, more=more)


def _counting(store: DiskStore) -> Action:
    key = make_entry(0)[0]

    def act() -> object:
        journal = Journal(store.layout.journal, 3600.0)
        for _ in range(3):
            journal.hit(key, "disk", made_at=1_700_000_000.0, problem=PROBLEM)
        journal.miss()
        journal.asked(replace(PROBLEM, m=64))
        journal.spans.add_work({"queue": 0.01, "compile": 150.0})
        journal.event(PUBLISH, key=key, compile_us=1)
        journal.hit(key, "memory", made_at=1_700_000_000.0, problem=PROBLEM)
        journal.close()
        return True

    return act


def _timing_of(seed: int) -> Measurement:
    return invented_timing(PROBLEM, KernelConfig(64, 64, 32, 2, 2, 3), 10.0, key=make_entry(seed)[0])


def _before_timing(store: DiskStore) -> Promise:
    """Timings in a file and in a log of version 0.2."""
    promise, timings = filled(store), Timings(store.layout, durable=False)
    timings.add([_timing_of(seed) for seed in range(2)])
    timings.close()
    write_log(store.layout.for_timings(), INVENTED_GPU.digest(), {"of-0.2": encode(_timing_of(2))})
    keys = frozenset(make_entry(seed)[0] for seed in range(3))
    return replace(promise, timings=keys, timed=make_entry(3)[0])


def _timing(store: DiskStore) -> Action:
    def act() -> object:
        timings = Timings(store.layout, durable=True, lock_timeout_s=_WAIT_S)
        timings.add([_timing_of(3)])
        timings.close()
        return True

    return act


def _before_syncing(store: DiskStore) -> Promise:
    """An index that has seen some of it."""
    promise = filled(store)
    Index(store).sync()
    key = publish(store, FRESH)
    store.delete(make_entry(1)[0])
    journal = Journal(store.layout.journal, 3600.0)
    journal.event(PUBLISH, key=key, compile_us=1000)
    journal.close()
    promise.served[key], promise.finished[key] = {code_of(FRESH)}, code_of(FRESH)
    promise.served[make_entry(1)[0]], promise.finished[make_entry(1)[0]] = {None}, None
    counts = promise.counts.plus(Counts(compiles=1))
    return Promise(promise.served, promise.finished, counts=counts, usage=promise.usage)


def _syncing(store: DiskStore) -> Action:
    return lambda: Index(store).sync().added


OPERATIONS = {
    "publish": Operation(_before_fresh, _publishing(FRESH, 3000)),
    "replace": Operation(_before_replacing, _publishing(0, NEW_BYTES)),
    "evict": Operation(_before_evicting, _evicting(Limits(everything=True))),
    "clean": Operation(_before_cleaning, _evicting(Limits(max_entries=ENTRIES // 2)), sure=False),
    "repair": Operation(_before_repairing, _repairing, sure=False),
    "migrate": Operation(_before_migrating, _migrating, may_raise=(), sure=False),
    "restore": Operation(_before_restoring, _restoring, may_raise=("OSError", "StoreError")),
    "discard": Operation(_before_discarding, _discarding),
    "import": Operation(_before_importing, _importing, may_raise=("OSError", "StoreError")),
    "fold": Operation(filled, _folding),
    "fold by itself": Operation(_before_folding_by_itself, _folding_by_itself, may_raise=(), sure=False),
    "count": Operation(_before_counting, _counting, may_raise=(), sure=False),
    "time": Operation(_before_timing, _timing),
    "sync": Operation(_before_syncing, _syncing, may_raise=("IndexUnavailable",), indexed=True),
}
