"""Entries of an older, this and a newer format side by side, whole and damaged: served right, or left and said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cache_engine.cache import miss
from cache_engine.cache.cache import Cache
from cache_engine.cache.miss import describe
from cache_engine.cache.remote.transfer import push
from cache_engine.cache.selection import Selection
from cache_engine.cache.stages import COMPILE, StageClock
from cache_engine.errors import CorruptEntry, PackUnusable
from cache_engine.model.artifact import Artifact
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.store.codec import enveloped, signed_part
from cache_engine.store.disk import DiskStore
from cache_engine.store.pack import Pack
from cache_engine.upkeep.packs import export_pack
from tests.cli.test_cli import document, run
from tests.faults.counting import report
from tests.faults.getting_operations import selection
from tests.faults.operations import PROBLEM
from tests.helpers import blob_file, fill, make_entry, make_store, of_today, record_file
from tests.store.first_format import as_first_format, place_first

COMPILED = 40
"""The seed of the code that is compiled where an entry is damaged."""
SAMPLE = 400


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    """Four entries: two of the first format, one of this one and one of a newer one."""
    store = make_store(tmp_path / "store")
    keys = fill(store, 2)
    as_first_format(store)
    keys += fill(store, 2, start=2)
    path = record_file(store, keys[3])
    path.write_bytes(enveloped(signed_part(path.read_bytes())[0], format=3))
    blob = blob_file(store, keys[3])
    blob.write_bytes(blob.read_bytes()[:8] + b"\x03" + blob.read_bytes()[9:])
    return store


def _bytes_of(store: DiskStore, key: CacheKey) -> tuple[bytes, bytes]:
    return record_file(store, key).read_bytes(), blob_file(store, key).read_bytes()


def test_an_entry_of_a_newer_format_is_said_and_never_changed(store: DiskStore, tmp_path: Path) -> None:
    newer, pack = make_entry(3)[0], tmp_path / "some.gemmpack"
    before = _bytes_of(store, newer)
    assert store.get(newer) is None
    for words, code, expected in (
        (("ls",), 0, "1 item of the store cannot be indexed"),
        (("show", newer[:12]), 1, "written by an incompatible version"),
        (("verify",), 0, "has format 3"),
        (("clean", "--all"), 0, "1 entry of another format version"),
        (("store", "migrate", "--dry-run"), 0, "another format"),
        (("verify", "--repair"), 0, "has format 3"),
        (("pack", "export", pack), 0, "1 entry of another format version"),
        (("clean", "--all", "--yes"), 0, "1 entry of another format version"),
    ):
        done = run(*words, store=store.layout.root)
        assert done.returncode == code, words
        assert expected in done.stdout + done.stderr, words
        assert _bytes_of(store, newer) == before, words
    assert len(Pack(pack)) == 3
    assert list(store.keys()) == [newer]
    assert document("stats", store=store.layout.root)["entries"] == 1, "it takes room"
    assert document("ls", store=store.layout.root)["skipped"] == 1


def test_a_push_says_what_it_leaves_out(store: DiskStore, tmp_path: Path) -> None:
    from cache_engine.cache.remote.clients import Objects

    done = push(store, Objects(f"file://{tmp_path}/remote"), store.keys())
    assert (done.sent, len(done.refused), done.unknown_format) == (0, 3, 1)


# ---- Every byte changed ----


@pytest.fixture(params=[1, 2], ids=["format 1", "format 2"])
def entry(request: pytest.FixtureRequest, in_memory: Path) -> DiskStore:
    """A store with an entry that the engine asks for."""
    store = make_store(in_memory / "store")
    chosen, artifact = selection(), make_entry(0)[1]
    if request.param == 1:
        place_first(store, chosen.key, artifact, lambda blob: describe(chosen, artifact, blob, {COMPILE: 150.0}))
    else:
        store.publish(chosen.key, artifact, lambda blob: describe(chosen, artifact, blob, {COMPILE: 150.0}))
    return store


def _changed(data: bytes, *, sample: int | None) -> Iterator[bytes]:
    places = list(range(len(data)))
    for at in places if sample is None else of_today(places, min(sample, len(places))):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def _compiled(_: Selection, stages: StageClock) -> Artifact:
    with stages(COMPILE):
        return make_entry(COMPILED)[1]


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(None, marks=pytest.mark.soak)])
def test_no_changed_byte_of_an_entry_fails_its_caller(
    entry: DiskStore, monkeypatch: pytest.MonkeyPatch, sample: int | None
) -> None:
    """Asks as a program does: a damaged entry is compiled again and in quarantine, or its code is what it was.

    One byte of a record is its format version. Where it is changed, the entry is left to the version that may know it.
    """
    monkeypatch.setattr(miss, "make_artifact", _compiled)
    store, key, quarantined, tried, unknown = entry, selection().key, 0, 0, 0
    files = {path: path.read_bytes() for path in (record_file(store, key), blob_file(store, key))}
    settings = Settings(cleanup_interval_h=0.0, memory_bytes=0, durability="fast")
    with Cache(store, settings) as cache:
        for path, sound in files.items():
            for data in _changed(sound, sample=sample):
                path.write_bytes(data)
                kernel = cache.get_or_compile(PROBLEM)
                tried += 1
                is_served = kernel.tier == store.name
                assert kernel.cubin == make_entry(0 if is_served else COMPILED)[1].cubin, "wrong bytes were served"
                items = list(store.layout.quarantine.iterdir())
                is_unknown = not items and store.has_unknown_format(key)
                assert is_served + bool(items) + is_unknown == 1, "damage is not quarantined"
                quarantined, unknown = quarantined + bool(items), unknown + is_unknown
                for item in items:
                    item.unlink()
                store.delete(key)
                for one, bytes_of_it in files.items():
                    one.write_bytes(bytes_of_it)
    assert quarantined > tried // 2
    assert unknown <= 1
    report({"damage": "every byte, asked for", "trials": tried, "unserved": quarantined, "wrong bytes": 0})


def test_no_changed_byte_of_a_pack_with_both_formats_is_served(in_memory: Path) -> None:
    store, path = make_store(in_memory / "store"), in_memory / "some.gemmpack"
    place_first(store, *make_entry(0))
    fill(store, 1, start=1)
    export_pack(store, path)
    codes = {key: artifact.cubin for key, artifact, _ in map(make_entry, range(2))}
    sound, tried, unserved = path.read_bytes(), 0, 0
    for data in _changed(sound, sample=None):
        path.write_bytes(data)
        got: set[CacheKey] = set()
        with suppress(PackUnusable):
            pack = Pack(path)
            for key, code in codes.items():
                with suppress(CorruptEntry):
                    loaded = pack.get(key)
                    assert loaded is None or loaded.cubin == code, "wrong bytes were served"
                    got |= {key} if loaded else set()
        tried, unserved = tried + 1, unserved + (len(got) < len(codes))
    assert tried == len(sound)
    assert unserved > tried // 2
    report({"damage": "every byte of a pack", "trials": tried, "unserved": unserved, "wrong bytes": 0})
