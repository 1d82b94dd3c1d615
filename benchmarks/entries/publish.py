"""Publishing: what storing a kernel costs compared with writing the same bytes to two plain files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.entries.peers import DISKCACHE, diskcache_of
from benchmarks.entries.subjects import PROBLEM, artifact_of, describer
from benchmarks.results import Report
from benchmarks.timing import compare
from cache_engine.cache.cache import open_cache
from cache_engine.model.artifact import Artifact, Record
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_blob, encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import SHARDS, StoreLayout
from cache_engine.store.publish import sync_folder

_DURABLE_GOAL = 2.0


def publishing(report: Report, place: Path) -> None:
    """New entries, compressing and hashing included, compared with two new files of a blob's and a record's bytes.

    Durable: both sides sync the files and their folders. Fast: neither syncs anything.
    """
    with open_cache(place / "published", durability="fast") as cache:
        record = cache.get_or_compile(PROBLEM).record
        artifact = artifact_of(cache, record)
        _make_shards(cache.layout)
        durable, fast = (DiskStore(cache.layout, durable=synced) for synced in (True, False))
    key = CacheKey(record.key)
    parts = (encode_blob(key, artifact, compress=True)[0], encode_record(record))
    plain = place / "plain"
    plain.mkdir()
    beside = "two files written, synced, renamed"
    publish, write = _publisher(durable, record, artifact), writer(plain, parts, durable=True)
    report(compare("publish, durable", publish, beside, write, goal_ratio=_DURABLE_GOAL, samples=100))
    publish, write = _publisher(fast, record, artifact), writer(plain, parts, durable=False)
    report(compare("publish, fast", publish, "two files written, renamed", write, samples=100))
    with diskcache_of(place / "diskcache-set") as peer:
        if peer is not None:
            put = _putter(peer, artifact.cubin)
            report(compare("publish, fast", publish, f"{DISKCACHE} set, the CUBIN alone", put, samples=100))


def _publisher(store: DiskStore, record: Record, artifact: Artifact) -> Callable[[], None]:
    """A function that publishes the artifact, each time under a new key."""
    salt = os.urandom(8)
    numbers = count()

    def publish() -> None:
        key = CacheKey(hashlib.sha256(salt + str(next(numbers)).encode()).hexdigest())
        store.publish(key, artifact, describer(record, key))

    return publish


def writer(folder: Path, parts: Sequence[bytes], *, durable: bool) -> Callable[[], None]:
    """A function that writes each part to a new file: under another name, renamed, and synced if ``durable``."""
    salt = os.urandom(8).hex()
    numbers = count()

    def write() -> None:
        for data in parts:
            target = f"{folder}/{salt}-{next(numbers)}"
            descriptor = os.open(f"{target}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, data)
            if durable:
                os.fsync(descriptor)
            os.close(descriptor)
            os.rename(f"{target}.new", target)
            if durable:
                sync_folder(str(folder))

    return write


def _putter(peer: Any, value: bytes) -> Callable[[], None]:
    """A function that sets the value in diskcache, each time under a new key."""
    numbers = count()

    def put() -> None:
        peer[str(next(numbers))] = value

    return put


def _make_shards(layout: StoreLayout) -> None:
    """Makes every shard's folders, which a store in use has."""
    for folder in (layout.kernels, layout.metadata):
        for shard in SHARDS:
            (folder / shard).mkdir(exist_ok=True)
