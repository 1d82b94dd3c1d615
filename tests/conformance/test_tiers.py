"""What every tier promises, run by every tier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.model.key import CacheKey
from cache_engine.store.base import Loaded, MemoryTier, Tier
from cache_engine.store.pack import Pack
from cache_engine.upkeep.packs import export_pack
from tests.helpers import make_entry, make_store, publish


class Subject:
    """A tier, and how an entry gets into it."""

    def __init__(self, tier: Tier, add: Callable[[int], CacheKey]) -> None:
        self.tier = tier
        self.add = add


def _memory(folder: Path) -> Subject:
    tier, source = MemoryTier(10_000_000), make_store(folder)

    def add(seed: int) -> CacheKey:
        key = publish(source, seed)
        loaded = source.get(key)
        assert loaded is not None
        tier.put(key, loaded)
        return key

    return Subject(tier, add)


def _disk(folder: Path) -> Subject:
    store = make_store(folder)
    return Subject(store, lambda seed: publish(store, seed))


class _GrowingPack:
    """A pack is never added to, so this one is rebuilt for each entry."""

    name = Pack.name

    def __init__(self, folder: Path) -> None:
        self._store = make_store(folder)
        self._path = folder.with_suffix(".gemmpack")
        self._open()

    def add(self, seed: int) -> CacheKey:
        key = publish(self._store, seed)
        self._open()
        return key

    def get(self, key: CacheKey) -> Loaded | None:
        return self._pack.get(key)

    def _open(self) -> None:
        export_pack(self._store, self._path, replace=True)
        self._pack = Pack(self._path)


def _pack(folder: Path) -> Subject:
    growing = _GrowingPack(folder)
    return Subject(growing, growing.add)


@pytest.fixture(params=[_memory, _pack, _disk], ids=["memory", "pack", "disk"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    made: Subject = request.param(tmp_path / "store")
    return made


def test_it_has_a_name(subject: Subject) -> None:
    assert subject.tier.name in ("memory", "pack", "disk")


def test_a_key_that_was_never_stored_is_a_miss(subject: Subject) -> None:
    assert subject.tier.get(make_entry(1)[0]) is None


def test_an_entry_comes_out_as_it_went_in(subject: Subject) -> None:
    key = subject.add(3)
    _, artifact, describe = make_entry(3)
    loaded = subject.tier.get(key)
    assert isinstance(loaded, Loaded)
    assert loaded.cubin == artifact.cubin
    assert loaded.record == describe(loaded.record.blob)


def test_entries_do_not_disturb_each_other(subject: Subject) -> None:
    keys = {seed: subject.add(seed) for seed in range(10)}
    for seed, key in keys.items():
        loaded = subject.tier.get(key)
        assert loaded is not None
        assert loaded.cubin == make_entry(seed)[1].cubin


def test_putting_an_entry_again_changes_nothing(subject: Subject) -> None:
    first, second = subject.add(1), subject.add(1)
    assert first == second
    loaded = subject.tier.get(first)
    assert loaded is not None
    assert loaded.cubin == make_entry(1)[1].cubin


def test_many_threads_read_at_once(subject: Subject) -> None:
    keys = [subject.add(seed) for seed in range(5)]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            for seed, key in enumerate(keys):
                loaded = subject.tier.get(key)
                if loaded is None or loaded.cubin != make_entry(seed)[1].cubin:
                    wrong.append((seed, loaded))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
