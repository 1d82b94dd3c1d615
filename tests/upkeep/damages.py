"""Every kind of damage to a store, each with what a check finds."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from cache_engine.store.disk import DiskStore
from cache_engine.upkeep.cleanup import GRACE_S
from cache_engine.upkeep.findings import FindingKind
from tests.helpers import blob_file, publish, record_file

SEEDS = itertools.count(100)
"""Each kind of damage is done to entries of its own, so that all can be done at once."""


def age(path: Path) -> None:
    then = time.time() - GRACE_S - 60
    os.utime(path, (then, then))


def flip(path: Path, position: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def corrupt_record(store: DiskStore) -> None:
    flip(record_file(store, publish(store, next(SEEDS))))


def truncated_record(store: DiskStore) -> None:
    _truncate(record_file(store, publish(store, next(SEEDS))))


def flipped_code(store: DiskStore) -> None:
    flip(blob_file(store, publish(store, next(SEEDS))))


def flipped_ptx(store: DiskStore) -> None:
    """Damage in a part that no hit reads."""
    path = blob_file(store, publish(store, next(SEEDS)))
    flip(path, path.stat().st_size - 40)


def truncated_blob(store: DiskStore) -> None:
    _truncate(blob_file(store, publish(store, next(SEEDS))))


def swapped_blobs(store: DiskStore) -> None:
    one, other = (blob_file(store, publish(store, seed)) for seed in (next(SEEDS), next(SEEDS)))
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def record_of_another(store: DiskStore) -> None:
    first, second = publish(store, next(SEEDS)), publish(store, next(SEEDS))
    record_file(store, first).write_bytes(record_file(store, second).read_bytes())


def missing_blob(store: DiskStore) -> None:
    blob_file(store, publish(store, next(SEEDS))).unlink()


def orphan_blob(store: DiskStore) -> None:
    key = publish(store, next(SEEDS))
    record_file(store, key).unlink()
    age(blob_file(store, key))


def old_blob_left_behind(store: DiskStore) -> None:
    path = blob_file(store, publish(store, next(SEEDS)))
    old = path.with_name(path.name[:-16] + "0" * 16)
    old.write_bytes(path.read_bytes())
    age(old)


def cut_to_nothing(store: DiskStore) -> None:
    blob_file(store, publish(store, next(SEEDS))).write_bytes(b"")


def appended_to(store: DiskStore) -> None:
    path = blob_file(store, publish(store, next(SEEDS)))
    path.write_bytes(path.read_bytes() + b"more")


def a_blob_with_the_record_of_another(store: DiskStore) -> None:
    one, other = (blob_file(store, publish(store, seed)) for seed in (next(SEEDS), next(SEEDS)))
    one.write_bytes(other.read_bytes())


def stray_file(store: DiskStore) -> None:
    path = blob_file(store, publish(store, next(SEEDS))).with_name("core.1234")
    path.touch()
    age(path)


def record_in_the_wrong_shard(store: DiskStore) -> None:
    path = record_file(store, publish(store, next(SEEDS)))
    shard = store.layout.metadata / ("00" if path.parent.name != "00" else "01")
    shard.mkdir(exist_ok=True)
    (shard / path.name).write_bytes(path.read_bytes())


def stale_temporary(store: DiskStore) -> None:
    path = store.layout.temp / "1234-abcd"
    path.write_bytes(b"half")
    age(path)


DAMAGE: list[tuple[Callable[[DiskStore], None], list[FindingKind]]] = [
    (corrupt_record, [FindingKind.CORRUPT_RECORD]),
    (truncated_record, [FindingKind.TRUNCATED]),
    (flipped_code, [FindingKind.CORRUPT_BLOB]),
    (flipped_ptx, [FindingKind.CORRUPT_BLOB]),
    (truncated_blob, [FindingKind.TRUNCATED]),
    (swapped_blobs, [FindingKind.SWAPPED, FindingKind.SWAPPED]),
    (record_of_another, [FindingKind.SWAPPED]),
    (missing_blob, [FindingKind.MISSING_BLOB]),
    (orphan_blob, [FindingKind.ORPHAN_BLOB]),
    (old_blob_left_behind, [FindingKind.ORPHAN_BLOB]),
    (stray_file, [FindingKind.MISNAMED]),
    (record_in_the_wrong_shard, [FindingKind.MISNAMED]),
    (stale_temporary, [FindingKind.STALE_TEMPORARY]),
    (cut_to_nothing, [FindingKind.TRUNCATED]),
    (appended_to, [FindingKind.CORRUPT_BLOB]),
    (a_blob_with_the_record_of_another, [FindingKind.SWAPPED]),
]
