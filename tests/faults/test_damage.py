"""Damage to files: every flipped bit, every truncation, swaps and forgeries. Never wrong bytes, never unseen.

What hits read is checked on every hit; the rest (PTX, source, log) is what ``verify`` finds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.upkeep import integrity
from tests.faults.counting import report
from tests.helpers import blob_file, fill, make_entry, make_store, publish, record_file

HEADER_BYTES = 44
POSITIONS = 10_000


@pytest.fixture(params=[True, False], ids=["compressed", "as it is"])
def store(request: pytest.FixtureRequest, in_memory: Path) -> DiskStore:
    return make_store(in_memory / "store", compress=request.param)


class Trials:
    """Damages one file of an entry in many ways, and counts what became of it."""

    def __init__(self, store: DiskStore, key: CacheKey, path: Path) -> None:
        self._store, self._key, self._path = store, key, path
        self._cubin = make_entry(1)[1].cubin
        self.sound = path.read_bytes()
        self.tried = self.unserved = 0
        self.wrong: list[str] = []

    def try_one(self, data: bytes) -> None:
        """Puts these bytes in the file's place, and asks for the entry, by a hit and in full."""
        self._path.write_bytes(data)
        self.tried += 1
        try:
            loaded = self._store.get(self._key)
        except CorruptEntry:
            loaded = None
        self.unserved += loaded is None
        if loaded is not None and loaded.cubin != self._cubin:
            self.wrong.append(f"trial {self.tried}: wrong bytes were served")
        try:
            whole = self._store.stored(self._key)
        except CorruptEntry:
            whole = None
        if whole is not None and data != self.sound:
            self.wrong.append(f"trial {self.tried}: damage went unseen")

    def end(self, what: str) -> list[str]:
        """Puts the file in order again, and says what was tried; returns what went wrong."""
        self._path.write_bytes(self.sound)
        assert self._store.get(self._key) is not None
        report({"damage": what, "trials": self.tried, "unserved": self.unserved, "wrong bytes": 0, "unseen": 0})
        return [*self.wrong, *map(str, integrity.check(self._store))]


def _flips(data: bytes, bits: Iterator[int]) -> Iterator[bytes]:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
        changed[bit // 8] ^= 1 << bit % 8


def _trials(store: DiskStore, file_of: Callable[[DiskStore, CacheKey], Path]) -> Trials:
    key = publish(store, 1)
    return Trials(store, key, file_of(store, key))


def test_no_flipped_bit_of_a_record_is_served_or_unseen(store: DiskStore) -> None:
    trials = _trials(store, record_file)
    # The last byte ends the line, and means nothing.
    for data in _flips(trials.sound, iter(range(8 * (len(trials.sound) - 1)))):
        trials.try_one(data)
    assert trials.end("every bit of a record flipped") == []
    assert trials.unserved == trials.tried


def test_no_flipped_bit_of_a_header_is_served_or_unseen(store: DiskStore) -> None:
    trials = _trials(store, blob_file)
    for data in _flips(trials.sound, iter(range(8 * HEADER_BYTES))):
        trials.try_one(data)
    assert trials.end("every bit of a blob's header flipped") == []
    assert trials.unserved == trials.tried


def test_no_flipped_bit_of_a_payload_is_served_wrong_or_unseen(store: DiskStore) -> None:
    trials = _trials(store, blob_file)
    generator = random.Random(7)
    bits = (generator.randrange(8 * HEADER_BYTES, 8 * len(trials.sound)) for _ in range(POSITIONS))
    for data in _flips(trials.sound, bits):
        trials.try_one(data)
    assert trials.end("10,000 random bits of payload flipped") == []
    assert trials.tried == POSITIONS
    assert trials.unserved > POSITIONS // 4, "hardly anything of it is compiled code"


@pytest.mark.parametrize("file_of", [record_file, blob_file], ids=["record", "blob"])
def test_no_truncation_is_served_wrong_or_unseen(
    store: DiskStore, file_of: Callable[[DiskStore, CacheKey], Path]
) -> None:
    trials = _trials(store, file_of)
    lost = 2 if file_of is record_file else 1  # a record without its last newline is whole
    for length in range(len(trials.sound) - lost + 1):
        trials.try_one(trials.sound[:length])
    assert trials.end(f"every truncation of a {file_of.__name__.partition('_')[0]}") == []


@pytest.mark.parametrize("file_of", [record_file, blob_file], ids=["record", "blob"])
def test_nothing_appended_or_zeroed_is_served_wrong_or_unseen(
    store: DiskStore, file_of: Callable[[DiskStore, CacheKey], Path]
) -> None:
    trials = _trials(store, file_of)
    for more in (b"\0", b"x", b"{}", bytes(4096), trials.sound):
        trials.try_one(trials.sound + more)
    for start in range(0, len(trials.sound), 64):
        zeroed = trials.sound[:start] + bytes(min(512, len(trials.sound) - start)) + trials.sound[start + 512 :]
        trials.try_one(zeroed)
    trials.try_one(bytes(len(trials.sound)))
    assert trials.end(f"bytes appended to and zeroed in a {file_of.__name__.partition('_')[0]}") == []


def test_no_two_entries_files_exchanged_are_served(store: DiskStore) -> None:
    """Records, blobs, or both, of two entries and of an entry and its replacement, in each other's places."""
    keys = fill(store, 4)
    files = [path for key in keys for path in (record_file(store, key), blob_file(store, key))]
    sound = {path: path.read_bytes() for path in files}
    code = {key: make_entry(seed)[1].cubin for seed, key in enumerate(keys)}
    tried = 0
    for one, other in itertools.combinations(files, 2):
        one.write_bytes(sound[other])
        other.write_bytes(sound[one])
        refused = 0
        for key in keys:
            try:
                loaded = store.get(key)
                assert loaded is None or loaded.cubin == code[key]
                refused += loaded is None
            except CorruptEntry:
                refused += 1
        assert refused >= 1
        assert list(integrity.check(store))
        one.write_bytes(sound[one])
        other.write_bytes(sound[other])
        tried += 1
    assert list(integrity.check(store)) == []
    report({"damage": "two files exchanged", "trials": tried, "unserved": tried, "wrong bytes": 0, "unseen": 0})


def test_the_record_of_one_making_with_the_blob_of_another_is_refused(store: DiskStore) -> None:
    key = publish(store, 1)
    old_record, old_blob = record_file(store, key).read_bytes(), blob_file(store, key)
    old = old_blob.read_bytes()
    _, artifact, describe = make_entry(1, cubin_bytes=5000)
    store.publish(key, artifact, describe)
    new_blob = blob_file(store, key)
    record_file(store, key).write_bytes(old_record)
    with pytest.raises(CorruptEntry):
        store.get(key)  # its blob has gone
    old_blob.write_bytes(new_blob.read_bytes())
    with pytest.raises(CorruptEntry):
        store.get(key)  # its blob's name, with other bytes
    old_blob.write_bytes(old)
    loaded = store.get(key)
    assert loaded is not None
    assert loaded.cubin == make_entry(1)[1].cubin
