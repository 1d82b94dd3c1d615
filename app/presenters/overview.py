"""The checks, tiles, tables and words of the page Overview."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from app.presenters.columns import Column
from app.presenters.figure import Sparkline
from app.presenters.shared import Row, Tile, kernel_address, kernel_title, share, total
from app.presenters.workload import cell_address, in_order, shape_words
from cache_engine.cache.queue import Priority, QueueState
from cache_engine.cache.serving import LONG_WAIT_S
from cache_engine.gpu.memory_pool import DeviceMemory
from cache_engine.model import events as kinds
from cache_engine.model.decision import Decision
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import is_key
from cache_engine.model.shapes import Shape
from cache_engine.settings import Settings
from cache_engine.store.journal.spans import Distribution, distributions
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, printable
from cache_engine.upkeep.plan import LITTLE_FREE_BYTES, NO_FREE_BYTES

LATELY_S = 7 * 86_400
FINE, LOOK, TROUBLE, PLAIN = "Fine", "Look", "Trouble", "None"
CLEANUP, INTEGRITY = "cleanup", "integrity"

# Kinds of events, in words.
EVENTS = {
    kinds.PUBLISH: "compiled",
    kinds.UNPUBLISHED: "compiled, not saved",
    kinds.CORRUPT: "corrupt",
    kinds.EVICT: "evicted",
    kinds.CLEAN: "cleanup run",
    kinds.REPAIR: "repair run",
    kinds.IMPORT: "imported",
    kinds.SET_ASIDE: "quarantined",
    kinds.RESTORE: "restored from quarantine",
    kinds.DISCARD: "deleted from quarantine",
    kinds.CLEAN_OTHER: "deleted from another framework's cache",
    kinds.SEEN: "failures acknowledged",
    kinds.PRUNE: "evaluations deleted",
    kinds.CLEAN_REMOTE: "deleted from a remote",
    kinds.REMOTE_DOWN: "remote not asked",
    kinds.REMOTE_UP: "remote asked again",
}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of a store's health.

    Attributes:
        about: what was checked.
        state: ``FINE``, ``LOOK`` (a warning), ``TROUBLE``, or ``PLAIN`` (neither good nor bad).
        words: the state in a sentence.
        cause: the text of an error or the name of a device; never markup.
        action: the page that helps: ``CLEANUP`` or ``INTEGRITY``; empty for none.
        sums: the names of the counts of past failures that the reader can acknowledge.
    """

    about: str
    state: str
    words: str
    cause: str = ""
    action: str = ""
    sums: tuple[str, ...] = ()


def health(row: Row, lately: Mapping[str, int], events: Iterable[Row], now: float) -> list[Check]:
    """The checks of the store's health: its writes, integrity, locks, tiers, and search index.

    Args:
        row: the index's overview.
        lately: by name, the number of failures in the last 7 days that were not acknowledged.
        events: the last events, newest first.
    """
    return [
        _publishing(row, lately["publish_failures"], events, now),
        _integrity(row, lately["corruptions"]),
        _locks(lately),
        _tiers(lately["tier_failures"]),
        Check("Search index", FINE, f"Updated {human_age(now - row['synced_at'])}."),
    ]


def limits_check(row: Row, max_entries: int, max_bytes: int, interval_h: float) -> Check:
    """Whether the store is within the limits of the settings, and when a cleanup enforces them."""
    words = [
        f"{name} of {limit}, {part / whole:,.0%}"
        for part, whole, name, limit in (
            (row["entries"], max_entries, counted(row["entries"], "kernel"), f"{max_entries:,}"),
            (row["stored_bytes"], max_bytes, human_bytes(row["stored_bytes"]), human_bytes(max_bytes)),
        )
        if part > whole > 0
    ]
    if not words:
        return Check("Limits", FINE, "Within the limits of the settings.")
    when = (
        f"Programs that compile clean up, at most every {interval_h:g} hours unless it is far above."
        if interval_h
        else "Automatic cleanup is off."
    )
    return Check("Limits", LOOK, f"Over the limit: {'; '.join(words)}. {when}", action=CLEANUP)


def disk_check(free_bytes: int) -> Check:
    """The check of the free space on the store's disk: a warning below ``LITTLE_FREE_BYTES``."""
    if free_bytes >= LITTLE_FREE_BYTES:
        return Check(f"Disk, {human_bytes(free_bytes)} free", FINE, f"{human_bytes(free_bytes)} free.")
    words = f"{human_bytes(free_bytes)} free. Kernels that do not fit are compiled and served, and not stored."
    return Check("Disk", TROUBLE if free_bytes < NO_FREE_BYTES else LOOK, words, action=CLEANUP)


def gpu_check(device: DeviceFingerprint | str) -> Check:
    """The check of the local GPU: its target and memory, or the reason why no GPU can be used."""
    if isinstance(device, str):
        return Check("GPU", PLAIN, f"No GPU found ({device}). Only running and timing kernels needs one.")
    return Check("GPU", FINE, f"{device.arch}, {human_bytes(device.memory_bytes)}.", device.name)


def memory_words(memory: DeviceMemory) -> dict[str, str]:
    """The first GPU's memory by label: free, used by all programs and the driver, and in the dashboard's own pool."""
    words = {}
    if memory.free_bytes is not None and memory.used_bytes is not None:
        used = f"{human_bytes(memory.used_bytes)} of {human_bytes(memory.total_bytes)}"
        words = {"Free": human_bytes(memory.free_bytes), "Used by all programs": used}
    return {
        **words,
        "Pool in use": human_bytes(memory.pool_in_use_bytes),
        "Freed in the pool, kept for the next request": human_bytes(memory.pool_cached_bytes),
        "Pool limit": "none" if memory.limit_bytes is None else human_bytes(memory.limit_bytes),
    }


def queue_check(queue: QueueState) -> Check:
    """The check of the compile queue: the numbers of compiles that run and that wait."""
    words = f"{len(queue.compiling):,} of {counted(queue.slots, 'slot')} in use"
    waiting = [*queue.queued, *queue.waiting]
    if not waiting:
        return Check("Compile queue", FINE, f"{words}; none waits.")
    callers = sum(turn.priority is Priority.CALLER for turn in waiting)
    longest = human_ms(1e3 * max(turn.seconds for turn in waiting))
    words = f"{words}; {len(waiting):,} waiting, {counted(callers, 'caller')} among them, the longest for {longest}."
    return Check("Compile queue", LOOK if callers else FINE, words)


QUEUE = (
    Column("State", "state"),
    Column("Kernel", lambda turn: turn.key[:12]),
    Column("For", lambda turn: turn.priority.name.lower()),
    Column("Time", lambda turn: turn.seconds * 1e3, "ms"),
    Column("Process", lambda turn: str(turn.pid)),
)
"""The columns of a table of the compiles that run and of those that wait."""


def _publishing(row: Row, failures: int, events: Iterable[Row], now: float) -> Check:
    last = row["last_publish_at"]
    published = f"Last kernel stored {human_age(now - last)}." if last else "Nothing stored yet."
    if not failures:
        return Check("Writes", FINE, published)
    cause = next((event["detail"] for event in events if event["kind"] == kinds.UNPUBLISHED), "")
    failed = f"{counted(failures, 'compiled kernel')} could not be saved in the last 7 days. {published}"
    return Check("Writes", TROUBLE, failed, cause, sums=("publish_failures",))


def _integrity(row: Row, found: int) -> Check:
    words = []
    if row["unreadable"]:
        words.append(f"{counted(row['unreadable'], 'unreadable item')}; the integrity check names each.")
    if found:
        corrupt = counted(found, "corrupt entry", "corrupt entries")
        words.append(f"{corrupt} quarantined in the last 7 days.")
    if words:
        if row["unreadable"]:
            return Check("Integrity", TROUBLE, " ".join(words), action=INTEGRITY)
        return Check("Integrity", TROUBLE, " ".join(words), sums=("corruptions",))
    return Check("Integrity", FINE, "No corruption found in the last 7 days; all records are readable.")


_LOCK_SUMS = ("lock_waits", "lock_timeouts", "lock_wait_us")


def _locks(lately: Mapping[str, int]) -> Check:
    waits, timeouts = lately["lock_waits"], lately["lock_timeouts"]
    if not waits:
        return Check("Locks", FINE, f"No lock waits over {LONG_WAIT_S:.0f} s in the last 7 days.")
    together = human_ms(lately["lock_wait_us"] / 1e3)
    words = f"{counted(waits, 'lock wait')} over {LONG_WAIT_S:.0f} s in the last 7 days, {together} in total."
    if not timeouts:
        return Check("Locks", LOOK, words, sums=_LOCK_SUMS)
    words = f"{words} {timeouts:,} timed out: those kernels were compiled but not stored."
    return Check("Locks", TROUBLE, words, sums=_LOCK_SUMS)


def _tiers(failures: int) -> Check:
    if not failures:
        return Check("Reads of tiers", FINE, "No read failures of packs, disk or remote in the last 7 days.")
    reads = counted(failures, "failed read")
    failed = f"{reads} of a pack, the disk or the remote in the last 7 days; the next tier took over."
    return Check("Reads of tiers", TROUBLE, failed, sums=("tier_failures",))


@dataclass(frozen=True, slots=True)
class ShownPeriod:
    """The sums of a time range for each of its steps, and the sums of the range of the same length before.

    Attributes:
        rows, before: the sums for each step of the range, and of the range before. ``before`` is ``None`` for all
            time or a part.
        made: by step over all time, the number and the bytes of the kernels made then that are still in the store.
        starts: the start of each step, also of steps without a row, in seconds since 1970.
        since, until: the start and the end of the range, in seconds since 1970.
        words: the range in words: ``"7 days"``.
    """

    rows: Sequence[Row]
    before: Sequence[Row] | None
    made: Sequence[Row]
    starts: Sequence[int]
    since: float
    until: float
    words: str

    def has(self, at: float) -> bool:
        """Whether a time is within the range."""
        return self.since <= at < self.until


def overview_tiles(row: Row, period: ShownPeriod, max_entries: int, max_bytes: int) -> list[Tile]:
    """The tiles: what is in the store now, and the hit rate and the compile time in the time range."""
    return [*_stored_tiles(row, period, max_entries, max_bytes), _rate_tile(period), *_time_tiles(period)]


def _stored_tiles(row: Row, period: ShownPeriod, max_entries: int, max_bytes: int) -> list[Tile]:
    of_kernels = "Kernels in the store, by when they were made, and the limit that cleanup enforces."
    of_bytes = "Cubins, PTX, sources, logs and records, compressed, by when they were made."
    made = [one for one in period.made if period.has(one["start"])]

    def tile(label: str, column: str, about: str, most: int, said: Callable[[float], str]) -> Tile:
        new, course = total(made, column), _course(label, _growth(period, column), said)
        change = f"+{said(new)} in {period.words}" if new else ""
        return Tile(label, said(row[column]), about, share(row[column], most), f"of {said(most)}", course, change)

    return [
        tile("Kernels", "entries", of_kernels, max_entries, "{:,}".format),
        tile("On disk", "stored_bytes", of_bytes, max_bytes, human_bytes),
    ]


def _rate_tile(period: ShownPeriod) -> Tile:
    rate = _rate(period.rows)
    before = None if period.before is None else _rate(period.before)
    hits, misses = _hits(period.rows), total(period.rows, "misses")
    rates = (_rate([one]) for one in period.rows)
    return Tile(
        "Hit rate",
        human_rate(rate),
        f"All tiers together, in this time range: {counted(hits, 'hit')}, {counted(misses, 'miss', 'misses')}.",
        course=_course("Hit rate", (one for one in rates if one is not None), human_rate),
        change="" if rate is None or before is None else f"{100 * (rate - before):+.1f} points",
        change_is_good=True,
    )


def _time_tiles(period: ShownPeriod) -> list[Tile]:
    of_saved = (
        "Sum of the original compile times of all hits on disk, in packs and in a remote in this time range. "
        "In-process hits are excluded: the process would have reused those kernels anyway."
    )
    of_spent = f"{counted(total(period.rows, 'compiles'), 'compile')} in this time range."
    return [
        Tile(
            label,
            human_ms(total(period.rows, column) / 1e3),
            about,
            course=_course(label, _times(period, column), human_ms),
            change=_changed(period, column),
            change_is_good=column == "saved_us",
        )
        for label, column, about in (
            ("Compile time saved", "saved_us", of_saved),
            ("Compile time spent", "compile_us", of_spent),
        )
    ]


def _growth(period: ShownPeriod, column: str) -> Sequence[float]:
    """For each step, the sum of a column of the kernels that were made before its end and are still stored."""
    made = list(period.made)
    sums = [0, *accumulate(one[column] for one in made)]
    return [sums[bisect_right(made, start, key=lambda one: one["start"])] for start in period.starts]


def _times(period: ShownPeriod, column: str) -> Sequence[float]:
    """The milliseconds in a column for each step, as in the page's figures; empty if all are 0."""
    found = {one["start"]: one[column] / 1e3 for one in period.rows}
    return [found.get(start, 0.0) for start in period.starts] if any(found.values()) else ()


def _course(name: str, values: Iterable[float], said: Callable[[float], str]) -> Sparkline | None:
    """The course of a number over time; ``None`` for fewer than two values."""
    values = tuple(values)
    if len(values) < 2:
        return None
    low, high, last = (said(value) for value in (min(values), max(values), values[-1]))
    return Sparkline(f"{name} over time: {low} to {high}, {last} at the end", values, [said(one) for one in values])


def _rate(rows: Sequence[Row]) -> float | None:
    return kinds.hit_rate(_hits(rows), total(rows, "misses"))


def _hits(rows: Sequence[Row]) -> int:
    return sum(total(rows, f"{tier}_hits") for tier in kinds.TIERS)


def _changed(period: ShownPeriod, column: str) -> str:
    """The change of a time against the time range before, with its sign; empty if that range has none."""
    now, before = (total(rows or (), column) / 1e3 for rows in (period.rows, period.before))
    return f"{'-' if now < before else '+'}{human_ms(abs(now - before))}" if before else ""


def tier_table(row: Row, *, packs: bool, remote: bool) -> list[Row]:
    """A row for each tier: its hits, and the lookups that reached it because no tier before it served them.

    Args:
        packs, remote: whether lookups ask packs, and a remote; a tier that is not asked has a row only if it has hits.
    """
    hits = {tier: row[f"{tier}_hits"] for tier in kinds.TIERS}
    left = sum(hits.values()) + row["misses"]
    rows = []
    unasked = {tier for tier, is_asked in (("pack", packs), (kinds.REMOTE, remote)) if not is_asked and not hits[tier]}
    for tier in kinds.TIERS:
        if tier in unasked:
            continue
        rate = kinds.hit_rate(hits[tier], left - hits[tier])
        rows.append({"Tier": tier.capitalize(), "Lookups": left, "Hits": hits[tier], "Hit rate": rate})
        left -= hits[tier]
    return rows


Missed = tuple[Shape, int, float]
"""A shape with its target, the number of its misses, and the milliseconds of compiling that they cost, if known."""


def miss_rows(
    misses: Iterable[Decision], compile_ms: Mapping[str, float], shapes: Mapping[str, Shape]
) -> list[dict[str, Missed]]:
    """For each shape, its misses by target; the shape whose misses cost the most compile time comes first.

    Args:
        compile_ms, shapes: compile times and shapes by key; misses of kernels without a shape are left out.
    """
    rows: dict[str, dict[str, Missed]] = {}
    for miss in misses:
        if (shape := shapes.get(miss.key)) is not None:
            row = rows.setdefault(shape_words(shape), {})
            _, count, ms = row.get(shape.arch, (shape, 0, 0.0))
            row[shape.arch] = shape, count + 1, ms + compile_ms.get(miss.key, 0.0)
    return sorted(rows.values(), key=lambda row: -sum(ms for *_, ms in row.values()))


def miss_columns(rows: Sequence[Mapping[str, Missed]]) -> list[Column]:
    """The columns of ``miss_rows``: each cell shows the cost of its misses, and links to the same cell in Workload."""
    most = max((ms for row in rows for *_, ms in row.values()), default=0.0) or 1.0

    def target(arch: str) -> Column:
        return Column(
            arch,
            lambda row: cell_address(row[arch][0]) if arch in row else None,
            "link",
            lambda row: f"{counted(row[arch][1], 'miss', 'misses')}, {human_ms(row[arch][2])}" if arch in row else "",
            weight=lambda row: row[arch][2] / most if arch in row else None,
        )

    shape = Column("Shape", lambda row: shape_words(next(iter(row.values()))[0]))
    return [shape, *map(target, in_order(arch for row in rows for arch in row))]


def event_words(event: Row) -> str:
    """The kind of an event, in words."""
    return EVENTS.get(event["kind"], str(event["kind"]))


def event_details(event: Row) -> str:
    """The details of an event as text; for a compile without details, its time."""
    return event["detail"] or (f"in {human_ms(event['compile_ms'])}" if event["compile_ms"] else "")


EVENT_COLUMNS = (
    Column("When", "happened_at", "age"),
    Column("Event", event_words),
    Column(
        "Kernel",
        lambda event: kernel_address(event["key"]) if is_key(event["key"]) else "",
        "link",
        lambda event: kernel_title(event) if event["name"] else event["key"][:12],
    ),
    Column("Details", event_details),
)


LENGTHS = {
    "memory": "Lookup in memory",
    "pack": "Lookup in packs",
    "disk": "Lookup on disk",
    "remote": "Lookup in the remote",
    "lock": "Wait for the lock of a key",
    "select": "Choose a config",
    "queue": "Wait for a compile slot",
    "generate": "Generate the source",
    "compile": "Compile",
    "publish": "Store the kernel",
    "module": "Load on a GPU",
}


def rate_words(row: Row, day: Sequence[Row]) -> str:
    """The compiles, promotions and demotions of the last 24 hours (``day``), and over all time, in words."""
    compiles, ahead, demoted = (total(day, name) for name in ("compiles", "promotions", "demotions"))
    return (
        f"Last 24 hours: {counted(compiles, 'compile')} ({compiles / 24:.3g} an hour), "
        f"{counted(ahead, 'promotion')}, {counted(demoted, 'demotion')}. "
        f"Over all time: {counted(row['promotions'], 'promotion')}, {counted(row['demotions'], 'demotion')}."
    )


def lengths(row: Row) -> list[tuple[str, Distribution]]:
    """For each kind of work, such as a compile: its name, and the distribution of its times."""
    return [(LENGTHS[span], spread) for span, spread in distributions(row["spans"] or {}).items()]


LENGTH_COLUMNS = (
    Column("What", lambda one: one[0]),
    Column("Count", lambda one: one[1].count, "count"),
    Column("Half within", lambda one: one[1].quantile_ms(0.5), "ms"),
    Column("90% within", lambda one: one[1].quantile_ms(0.9), "ms"),
    Column("99% within", lambda one: one[1].quantile_ms(0.99), "ms"),
)
"""The columns of the distributions from ``lengths``; quantiles are at most 9 % off."""


def remote_check(row: Row, events: Sequence[Row], settings: Settings, now: float) -> Check | None:
    """The check of the remote; ``None`` if no remote is set.

    Args:
        row: the index's overview.
        events: the last events, newest first.
    """
    if not settings.remote:
        return None
    served = counted(row[f"{kinds.REMOTE}_hits"], "hit")
    sent = f" {row['remote_sent']:,} sent, {row['remote_dropped']:,} dropped." if settings.writes_remote else ""
    words = f"{printable(settings.remote)}, {settings.remote_mode}: {served}.{sent}"
    if not (settings.reads_remote or settings.writes_remote):
        return Check("Remote", PLAIN, f"{words} It is off (remote_mode).")
    last = next((one for one in events if one["kind"] in (kinds.REMOTE_DOWN, kinds.REMOTE_UP)), None)
    failed = next((one for one in events if one["kind"] == kinds.REMOTE_DOWN), None)
    if last is None or failed is None:
        return Check("Remote", FINE, f"{words} It has not failed, as far as the last events go.")
    ago = human_age(now - failed["happened_at"])
    if last["kind"] == kinds.REMOTE_DOWN:
        words = f"{words} A process stopped asking it {ago}, and asks again by itself. Lookups do not wait meanwhile."
        return Check("Remote", LOOK, words, printable(failed["detail"]))
    again = human_age(now - last["happened_at"])
    return Check(
        "Remote", FINE, f"{words} It failed {ago} ({printable(failed['detail'])[:200]}), and was asked again {again}."
    )
