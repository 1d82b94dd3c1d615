"""What must hold of a store after anything that befell it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_engine.errors import CorruptEntry
from cache_engine.evaluator.results import Evaluations
from cache_engine.frameworks.bundles import read_group
from cache_engine.index.sync import Index
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import DecisionReader, Journal, read_journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.journal.spans import WORK, distributions
from cache_engine.store.layout import fingerprint_of_results_name, key_of_blob_name
from cache_engine.store.notes import Note, note_of, pinned_keys
from cache_engine.store.timings import Timings
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import names_in
from cache_engine.upkeep.plan import Limits
from tests.faults.operations import Counts, Promise
from tests.helpers import make_entry

WRONG_BYTES, LOST, CORRUPT, UNDONE, JOURNAL, LEFTOVERS, DAMAGE, INDEX, TIMINGS, LOG, PINS, NOTES = (
    "wrong bytes",
    "lost",
    "seen as corrupt",
    "acknowledged, not done",
    "journal",
    "leftovers after tidying",
    "damage after tidying",
    "index",
    "timings",
    "log of decisions",
    "pins",
    "notes",
)
_INDEXED = (
    "kernels",
    "usage",
    "events",
    "totals",
    "unreadable",
    "timings",
    "demand",
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A broken promise: which, and how."""

    kind: str
    text: str


def leftovers(store: DiskStore) -> list[Path]:
    """What only a writer that died leaves.

    Temporaries, blobs that no record names, journal files half folded; a second snapshot or log of results.
    """
    layout = store.layout
    named = {layout.blob_path(CacheKey(record.key), record.blob.digest) for record in store.records()}
    blobs = [path for path in layout.kernels.glob("*/*") if key_of_blob_name(path.name, path.parent.name)]
    return [
        *layout.temp.iterdir(),
        *(path for path in blobs if str(path) not in named),
        *layout.journal.glob("*.folding"),
        *_second_files(sorted(layout.evaluations.iterdir())),
    ]


def _second_files(paths: list[Path]) -> Iterator[Path]:
    seen = set()
    for path in paths:
        fingerprint, generation = fingerprint_of_results_name(path.name) or ("", None)
        what = (fingerprint, generation is None)
        if what in seen:
            yield path
        seen.add(what)


def tidy(store: DiskStore) -> None:
    """One cleaning, right after; one repair, for entries damaged from the start; and one write of results."""
    journal = Journal(store.layout.journal, 3600.0)
    housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, Limits()))
    integrity.repair(store, journal, list(integrity.check(store)))
    journal.close()
    with Evaluations(store.layout) as kept:
        for fingerprint in kept.fingerprints():
            kept._known(fingerprint).file.change(lambda _: None)


def troubles(
    store: DiskStore, promise: Promise, *, done: bool, refused: bool = False, indexed: bool = False
) -> list[Trouble]:
    """Checks a store as it was left, tidies it, and checks it again.

    Args:
        done: whether the operation was acknowledged, so that all it promised must be there.
        refused: whether a system call failed, so that usage may not have been counted although it was acknowledged.
        mirrored: whether to compare the index with a rebuilt one.
    """
    found = [
        *_served(store, promise, done),
        *_counted(store, promise, done=done, refused=refused),
        *_kept(store, promise, done),
        *_whole_groups(store),
    ]
    if indexed:
        found += _mirrored(store)
    tidy(store)
    found += [Trouble(LEFTOVERS, path.name) for path in leftovers(store)]
    found += [Trouble(DAMAGE, f"{finding.kind} {finding.path}") for finding in integrity.check(store)]
    found += [*_served(store, promise, done), *_counted(store, promise, done=done, refused=refused)]
    found += [
        *_logged(store, promise, done and not refused),
        *_pinned(store, promise, done),
        *_noted(store, promise, done),
    ]
    return [*found, *_kept(store, promise, done), *_timed(store, promise, done)]


def _served(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    for key, meanwhile in promise.served.items():
        allowed = {promise.finished[key]} if done else meanwhile
        try:
            loaded = store.get(key)
        except CorruptEntry as error:
            if done or key not in promise.damaged:
                yield Trouble(CORRUPT, str(error))
            continue
        code = None if loaded is None else loaded.cubin
        if code in allowed:
            continue
        if code is None:
            yield Trouble(LOST, key)
        else:
            ours = code in meanwhile or code == promise.finished[key]
            yield Trouble(UNDONE if ours else WRONG_BYTES, f"{key}: {len(code)} bytes")


def _counted(store: DiskStore, promise: Promise, *, done: bool, refused: bool) -> Iterator[Trouble]:
    """What was on disk before is counted once, and what was to be added once at most.

    Where a lookup was refused, the kernel was compiled in its place: lengths of that work may come on top.
    """
    tally = read_journal(store.layout.journal)
    totals = tally.totals
    asked = read_timeline(store.layout).ledger(math.inf, time.time()).total
    spans = sum(one.count for one in distributions(totals.spans).values())
    counts = Counts(sum(totals.hits.values()), totals.misses, totals.compiles, round(asked), spans)
    most = promise.counts.plus(promise.more)
    least = most if done and not refused else promise.counts
    if refused:
        most = most.plus(Counts(spans=len(WORK)))
    for name in ("hits", "misses", "compiles", "asked", "spans"):
        count, low, high = (getattr(some, name) for some in (counts, least, most))
        if not low <= count <= high:
            yield Trouble(JOURNAL, f"{count} {name}, not {low} to {high}")
    numbers = (*totals.hits.values(), totals.saved_us, totals.compile_us, totals.evictions, totals.evicted_bytes)
    if min(numbers, default=0) < 0:
        yield Trouble(JOURNAL, f"a negative sum: {totals}")
    used: dict[str, int] = {}
    for usage in tally.usage:
        used[usage.key] = used.get(usage.key, 0) + sum(usage.hits.values())
    for key, hits in promise.usage.items():
        # What is evicted takes its usage with it.
        if promise.finished[key] is not None and not hits <= used.get(key, 0) <= hits + promise.more.hits:
            yield Trouble(JOURNAL, f"{used.get(key, 0)} hits on {key[:12]}, not {hits}")


def _kept(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    """Results of the evaluator."""
    kept = Evaluations(store.layout)
    found = {key: entry for fingerprint in kept.fingerprints() for key, entry in kept.entries(fingerprint)}
    for key, meanwhile in promise.results.items():
        latency_us = found[key].result.latency_us if key in found else None
        allowed = {promise.results_finished[key]} if done else meanwhile
        if latency_us not in allowed:
            yield Trouble(LOST if latency_us is None else UNDONE, f"result {key}: {latency_us} µs")
    for key in found.keys() - promise.results.keys():
        yield Trouble(WRONG_BYTES, f"result {key}")
    damaged = any(row.get("corrupt_lines") or "error" in row for row in kept.summaries())
    if promise.results and damaged and not promise.results_damaged:
        yield Trouble(CORRUPT, "results")


def _timed(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    """Every stored timing is there."""
    there = {one.key for one in Timings(store.layout)}
    promised = promise.timings | {promise.timed} if done and promise.timed else promise.timings
    if missing := promised - there:
        yield Trouble(TIMINGS, f"those of {', '.join(key[:12] for key in sorted(missing))} are lost")


def _logged(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    """Every decision that was in the log is there once, and the one that was acknowledged."""
    there = [one.detail for one in DecisionReader(store.layout).new()]
    promised = promise.logged | {promise.decided} if done and promise.decided else promise.logged
    if missing := promised - set(there):
        yield Trouble(LOG, f"{', '.join(sorted(missing))} lost")
    if twice := {detail for detail in there if detail and there.count(detail) > 1}:
        yield Trouble(LOG, f"{', '.join(sorted(twice))} twice")


def _pinned(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    """What was pinned is, and what was acknowledged is done; ``verify`` has found no other file among the pins."""
    there = pinned_keys(store.layout)
    least = promise.pinned | (promise.may_pin if done and not promise.may_unpin else set())
    most = promise.pinned | (promise.may_pin if not (done and promise.may_unpin) else set())
    if not least <= there <= most:
        yield Trouble(PINS, f"{len(there)} pins, not {len(least)} to {len(most)}")


def _noted(store: DiskStore, promise: Promise, done: bool) -> Iterator[Trouble]:
    """A note is the one before or the one after, whole; the one after if it was acknowledged."""
    note = note_of(store.layout, make_entry(0)[0]) or Note()
    if promise.noted and note.text not in promise.noted[-1 if done else 0 :]:
        yield Trouble(NOTES, f"the note is {note.text!r}")
    if note.text and note.tags != ("prod",):
        yield Trouble(NOTES, f"the tags are {note.tags}")


def _whole_groups(store: DiskStore) -> Iterator[Trouble]:
    """A kernel of another framework is there with all its files, or not; before a repair sets a torn one aside."""
    for name in names_in(store.layout.groups):
        try:
            read_group(store.layout, CacheKey(name))
        except CorruptEntry as error:
            yield Trouble(CORRUPT, str(error))


def _content(store: DiskStore, *, rebuild: bool) -> dict[str, list[Any]]:
    index = Index(store)
    index.sync(rebuild=rebuild)
    with index.read() as connection:
        return {table: sorted(connection.execute(f"FROM {table}").fetchall(), key=repr) for table in _INDEXED}


def _mirrored(store: DiskStore) -> Iterator[Trouble]:
    synced, rebuilt = (_content(store, rebuild=rebuild) for rebuild in (False, True))
    for table, rows in rebuilt.items():
        if synced[table] != rows:
            yield Trouble(INDEX, f"{table} has {len(synced[table])} rows, not these {len(rows)}")
