"""Writers that are killed at random moments, and readers that watch them, on a store with entries of both formats.

Run as ``python -m tests.faults.writers STORE LOGS WRITERS READERS KILLS SEED``. The process forks them all, so that a
new writer takes a millisecond. Each writer says what it is about to do and what it has done in a log of its own, one
line per ``write``, which no kill takes back; the writer that takes its place goes on with the same log.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cache_engine.batch.migration import MigrationPlan, migrate
from cache_engine.cache.cache import Cache
from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.model.artifact import SOURCE, Artifact, Blob, Record
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.store.codec import decode_record, decode_section
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep import integrity
from cache_engine.upkeep.plan import Limits
from tests.helpers import make_entry
from tests.store.first_format import place_first

SEEDS = 12
SIZES = (2000, 3000, 4000)
_WAIT_S = 10.0
_PAUSE_S = 0.05  # the longest between two kills

Entry = tuple[CacheKey, Artifact, Callable[[Blob], Record]]
# Made once, before forking. By seed, then by size.
ENTRIES: list[list[Entry]] = [[make_entry(seed, cubin_bytes=size) for size in SIZES] for seed in range(SEEDS)]
CODES: dict[CacheKey, list[bytes]] = {sizes[0][0]: [entry[1].cubin for entry in sizes] for sizes in ENTRIES}

TEXTS = {sizes[0][0]: sizes[0][1].source for sizes in ENTRIES}


def read_log(path: Path) -> list[tuple[int, str, str, int]]:
    """The lines that were said in full; one cut short was not said."""
    lines = []
    for text in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            lines.append(tuple(json.loads(text)))
    return lines


class Log:
    """What one writer says, with the time, which all processes share."""

    def __init__(self, path: Path) -> None:
        """Goes on where it ends, on a line of its own: a kill may cut one short where it crosses a page of memory."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._descriptor, b"\n")

    def say(self, what: str, key: str = "", number: int = 0) -> None:
        """Adds a line."""
        line = json.dumps([time.monotonic_ns(), what, key, number]) + "\n"
        os.write(self._descriptor, line.encode())


def write(layout: StoreLayout, log: Log, chance: random.Random) -> NoReturn:
    """Publishes in both formats, evicts, migrates, hits, cleans and repairs until it is killed."""
    store = DiskStore(layout, durable=chance.random() < 0.5)
    journal = Journal(layout.journal, 3600.0)
    log.say("started")
    while True:
        size = chance.randrange(len(SIZES))
        entry = ENTRIES[chance.randrange(SEEDS)][size]
        act = chance.random()
        if act < 0.45:
            _publish(store, log, entry, size, as_first=chance.random() < 0.5)
        elif act < 0.6:
            _evict(store, log, entry[0])
        elif act < 0.7:
            log.say("migrating")
            log.say("migrated", number=migrate_all(store))
        elif act < 0.95:
            _hit(store, journal, log, entry[0])
        elif act < 0.98:
            _clean(store, journal, log)
        else:
            _repair(store, journal, log)


def _publish(store: DiskStore, log: Log, entry: Entry, size: int, *, as_first: bool) -> None:
    key, artifact, describe = entry
    with file_lock(store.layout.key_lock(key), _WAIT_S):
        log.say("publishing", key, size)
        if as_first:
            place_first(store, key, artifact, describe)
        else:
            store.publish(key, artifact, describe)
        log.say("published", key, size)


def migrate_all(store: DiskStore) -> int:
    """Has every entry of the first format written again; returns how many there were."""
    older = [key for key in [*store.keys()] if store.format(key) == 1]
    with Cache(store, Settings(cleanup_interval_h=0.0)) as cache:
        failed = migrate(cache, MigrationPlan(older=older))
    assert not failed, failed
    return len(older)


def _evict(store: DiskStore, log: Log, key: CacheKey) -> None:
    with file_lock(store.layout.key_lock(key), _WAIT_S):
        log.say("evicting", key)
        store.delete(key)
        log.say("evicted", key)


def _hit(store: DiskStore, journal: Journal, log: Log, key: CacheKey) -> None:
    log.say("hitting", key)
    journal.hit(key, store.name, made_at=1.0, saved_us=7)
    journal.flush()
    log.say("hit", key)


def _clean(store: DiskStore, journal: Journal, log: Log) -> None:
    """What cleaning evicts is known beforehand; which of it, and when, is not."""
    chosen = housekeeping.plan_cleaning(store, Limits(max_entries=SEEDS // 2))
    log.say("cleaning", " ".join(victim.key for victim in chosen.victims))
    try:
        housekeeping.apply(store, journal, chosen)
    except LockTimeout:
        log.say("gave up")
    log.say("cleaned")


def _repair(store: DiskStore, journal: Journal, log: Log) -> None:
    log.say("repairing")
    with suppress(LockTimeout):
        integrity.repair(store, journal, list(integrity.check(store)))
    log.say("repaired")


def read(store: DiskStore, log: Log, chance: random.Random) -> None:
    """Gets entries until asked to end; reports each fault, and at the end the number of entries."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    keys, got = list(CODES), 0
    while not ended:
        key = chance.choice(keys)
        try:
            loaded, whole = store.get(key), store.stored(key) if chance.random() < 0.1 else None
        except CorruptEntry as error:
            log.say(f"corrupt: {error}", key)
            continue
        if loaded is not None:
            got += 1
            if loaded.cubin not in CODES[key]:
                log.say("wrong bytes", key)
        if whole is not None and decode_section(key, decode_record(key, whole[0]).blob, SOURCE, whole[1]) != TEXTS[key]:
            log.say("wrong text", key)
    log.say("read", number=got)


def main(root: str, logs: str, writers: str, readers: str, kills: str, seed: str) -> None:
    """Forks them, kills and replaces writers at random moments, and ends them all."""
    chance = random.Random(int(seed))
    layout = StoreLayout(Path(root))

    def fork(body: Callable[[Log, random.Random], object], name: str) -> int:
        own = random.Random(chance.random())
        pid = os.fork()
        if pid == 0:
            try:
                body(Log(Path(logs, name)), own)
            except BaseException as error:
                Log(Path(logs, name)).say(f"failed: {error!r}")
            os._exit(0)
        return pid

    def writer(number: int) -> int:
        return fork(lambda log, own: write(layout, log, own), f"writer-{number}")

    first = Log(Path(logs, "writer-first"))
    for sizes in ENTRIES[: SEEDS // 2]:
        _publish(DiskStore(layout), first, sizes[0], 0, as_first=True)
    gc.freeze()
    watching = [
        fork(lambda log, own: read(DiskStore(layout), log, own), f"reader-{number}") for number in range(int(readers))
    ]
    working = [writer(number) for number in range(int(writers))]
    for _ in range(int(kills)):
        time.sleep(chance.uniform(0.0, _PAUSE_S))
        number = chance.randrange(len(working))
        _end(working[number], signal.SIGKILL)
        working[number] = writer(number)
    for pid in working:
        _end(pid, signal.SIGKILL)
    for pid in watching:
        _end(pid, signal.SIGTERM)


def _end(pid: int, how: signal.Signals) -> None:
    os.kill(pid, how)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
