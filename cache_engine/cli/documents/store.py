"""Documents about a whole store: what it holds, what is wrong with it, and what upkeep did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.cli.documents import filled
from cache_engine.cli.documents.lengths import LastDay, Length, Queue, lengths_of, queue_of
from cache_engine.cli.documents.moving import SignatureRow
from cache_engine.settings import BY_NAME, Settings, variable
from cache_engine.upkeep.cleaning import Cleaned, Leftover
from cache_engine.upkeep.plan import Victim
from cache_engine.upkeep.quarantine import File

if TYPE_CHECKING:
    from cache_engine.cache.queue.tickets import QueueState
    from cache_engine.index.sync import Synced
    from cache_engine.model.events import Statistics
    from cache_engine.upkeep.findings import Finding
    from cache_engine.upkeep.integrity import RepairAct
    from cache_engine.upkeep.plan import EvictionPlan
    from cache_engine.upkeep.quarantine import Examined, Item


class TargetRow(msgspec.Struct, kw_only=True):
    """What a store holds for one target, and how that was used."""

    arch: str
    entries: int
    size_bytes: int
    stored_bytes: int
    compile_ms: float
    median_compile_ms: float | None
    families: list[str]
    dtypes: list[str]
    hits: int
    saved_ms: float
    last_used_at: float | None
    misses: int


class Stats(msgspec.Struct, kw_only=True):
    """What ``stats`` prints.

    Attributes:
        hits: by tier.
        hit_rate: hits over lookups; ``None`` before the first lookup.
        saved_ms: the compile times of the kernels that disk, packs and a remote served.
        tier_failures: how often a tier could not be read, by tier.
        last_publish_at: seconds since 1970; ``None`` before the first publish.
        hit_rates: by tier, the share of the lookups that reached the tier which it served.
        lengths: how long lookups took by tier, and the work of misses.
        max_memory_bytes: the most code that each process holds in memory.
        queue: who compiles and who waits now, where there is a store.
        architectures: by target, where that was requested.
    """

    entries: int
    max_entries: int
    stored_bytes: int
    max_bytes: int
    journal_bytes: int
    max_memory_bytes: int
    hits: dict[str, int]
    misses: int
    hit_rate: float | None
    compiles: int
    compile_ms: float
    saved_ms: float
    evictions: int
    evicted_bytes: int
    corruptions: int
    publish_failures: int
    tier_failures: dict[str, int]
    lock_waits: int
    lock_timeouts: int
    lock_wait_ms: float
    last_publish_at: float | None
    hit_rates: dict[str, float | None]
    lengths: dict[str, Length]
    promotions: int
    demotions: int
    remote_sent: int
    remote_dropped: int
    last_24h: LastDay
    queue: Queue | UnsetType = UNSET
    architectures: list[TargetRow] | UnsetType = UNSET


class Cleaning(msgspec.Struct, kw_only=True):
    """What ``clean`` prints; ``cleaned`` is ``None`` after a dry run.

    Attributes:
        kept_entries, kept_bytes: what would stay or, after cleaning, what is there.
        foreign: how many of them have another format version, if that kept any from being evicted.
        pinned: how many are pinned. victim_compile_s: what compiling the victims took.
    """

    dry_run: bool
    victims: list[Victim]
    victim_bytes: int
    leftovers: list[Leftover]
    kept_entries: int
    kept_bytes: int
    kept_timings: int
    foreign: int
    pinned: int = 0
    cleaned: Cleaned | None
    victim_compile_s: float = 0.0


class StoredFile(msgspec.Struct, kw_only=True):
    """A file of the store, and its bytes."""

    path: str
    stored_bytes: int


class FindingRow(msgspec.Struct, kw_only=True):
    """One thing that is wrong, the fix, the files that the fix moves or deletes, and whether that is done."""

    kind: str
    path: str
    key: str
    cause: str
    remedy: str
    files: list[StoredFile]
    repaired: bool


class Verification(msgspec.Struct, kw_only=True):
    """What ``verify`` prints; ``checked`` counts entries."""

    checked: int
    findings: list[FindingRow]
    signatures: list[SignatureRow] | UnsetType = UNSET


class QuarantineItem(msgspec.Struct, kw_only=True):
    """An item in quarantine.

    Attributes:
        set_aside_at: when it was quarantined, in seconds since 1970.
        why: what was found then.
        kernel: the kernel's name; ``None`` when it cannot be read.
        restorable, cause: whether it is valid now, and if not, why.
    """

    name: str
    key: str
    set_aside_at: float
    why: str
    stored_bytes: int
    files: Sequence[File]
    kernel: str | None
    restorable: bool
    cause: str


class Quarantine(msgspec.Struct, kw_only=True):
    """What ``quarantine ls`` prints."""

    items: list[QuarantineItem]


class Restored(msgspec.Struct, kw_only=True):
    """What ``quarantine restore`` prints."""

    restored: str


class Discarded(msgspec.Struct, kw_only=True):
    """What ``quarantine delete`` prints."""

    dry_run: bool
    names: list[str]
    deleted: int
    stored_bytes: int


class SyncReport(msgspec.Struct, kw_only=True):
    """What ``sync`` prints; see ``mirror.sync.Synced``."""

    added: int
    removed: int
    unreadable: int
    events: int
    generation: int
    settled: bool
    results: int
    timings: int
    skipped: int
    ms: float


class Reported(msgspec.Struct, kw_only=True):
    """What ``report`` prints."""

    file: str
    title: str
    bytes: int


class CheckRow(msgspec.Struct, kw_only=True):
    """One thing that ``doctor`` checked: ``status`` is ``ok``, ``note`` or ``problem``."""

    name: str
    status: str
    detail: str


class SettingRow(msgspec.Struct, kw_only=True):
    """A setting in force, its origin, and its environment variable. Of a secret only whether it is set."""

    name: str
    value: str
    origin: str
    variable: str


class Diagnosis(msgspec.Struct, kw_only=True):
    """What ``doctor`` prints."""

    checks: list[CheckRow]
    ok: bool
    settings: list[SettingRow]


# ---- From the engine's values ----


def stats(
    found: Statistics, architectures: Sequence[Mapping[str, Any]] | None = None, queue: QueueState | None = None
) -> Stats:
    """The document of a store's statistics."""
    totals = found.totals
    return filled(
        Stats,
        found,
        totals,
        hits=totals.hits,
        tier_failures=totals.failures,
        last_publish_at=totals.last_publish_at or None,
        hit_rates=found.tier_hit_rates,
        lengths=lengths_of(totals.spans),
        last_24h=LastDay.of(found.last_24h),
        queue=UNSET if queue is None else queue_of(queue),
        architectures=UNSET if architectures is None else msgspec.convert(architectures, list[TargetRow]),
    )


def cleaning(
    plan: EvictionPlan,
    leftovers: Sequence[Leftover],
    cleaned: Cleaned | None,
    kept: tuple[int, int],
    kept_timings: int,
) -> Cleaning:
    """The document of a cleanup, or of its dry run."""
    return Cleaning(
        dry_run=cleaned is None,
        victims=list(plan.victims),
        victim_bytes=plan.freed_bytes,
        leftovers=list(leftovers),
        kept_entries=kept[0],
        kept_bytes=kept[1],
        kept_timings=kept_timings,
        foreign=plan.foreign + (cleaned.foreign if cleaned else 0),
        cleaned=cleaned,
        pinned=plan.pinned,
        victim_compile_s=plan.compile_s,
    )


def verification(checked: int, acts: Iterable[RepairAct], repaired: Iterable[Finding]) -> Verification:
    """The document of a check, and of a repair if there was one."""
    done = set(repaired)
    return Verification(
        checked=checked,
        findings=[
            filled(
                FindingRow,
                act.finding,
                files=[StoredFile(path=path, stored_bytes=size) for path, size in act.files],
                repaired=act.finding in done,
            )
            for act in acts
        ],
    )


def quarantined(item: Item, examined: Examined) -> QuarantineItem:
    """The document of an item in quarantine."""
    kernel = None if examined.record is None else examined.record.name
    return filled(QuarantineItem, item, examined, kernel=kernel, restorable=not examined.cause)


def synced(found: Synced, ms: float) -> SyncReport:
    """The document of a sync that took so many milliseconds."""
    return filled(SyncReport, found, ms=ms)


def settings_in_force(settings: Settings) -> list[SettingRow]:
    """Each setting with its value and origin."""
    return [
        SettingRow(name=name, value=settings.shown(name), origin=settings.origin(name), variable=variable(name))
        for name in BY_NAME
    ]
