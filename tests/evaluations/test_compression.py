"""Results on disk may be compressed: both forms are read, and changing the form loses nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from cache_engine.config import Settings
from cache_engine.engine.cache import open_cache
from cache_engine.errors import CorruptEntry
from cache_engine.evaluations import Evaluations
from cache_engine.evaluations.entry import encode_entry, judge
from cache_engine.store.disk import open_store
from cache_engine.store.files import MOST_BYTES
from cache_engine.store.layout import StoreLayout, original_of_quarantined
from cache_engine.store.results.checking import damaged_files
from cache_engine.store.results.interchange import LARGEST_IMPORT_BYTES, compress, decompress
from tests.evaluations.test_evaluations import CHIP, PROBLEM, document, fill, keys


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return open_store(tmp_path / "store")


def fold(layout: StoreLayout, *, compressed: bool) -> None:
    with Evaluations(layout, durable=False, compressed=compressed) as kept:
        kept.preload(CHIP)
        kept._sets[CHIP.fingerprint()].file.fold()


def forms(layout: StoreLayout) -> list[str]:
    return sorted("".join(path.suffixes) for path in layout.evaluations.iterdir() if path.suffix != ".log")


def test_both_forms_are_read_and_the_one_not_written_goes(layout: StoreLayout) -> None:
    expected = fill(layout, 30)
    for compressed, suffix in ((True, ".json.zst"), (False, ".json"), (True, ".json.zst")):
        fold(layout, compressed=compressed)
        assert forms(layout) == [suffix]
        assert keys(layout) == set(expected)
        with Evaluations(layout, compressed=not compressed) as kept:
            assert kept.evaluate(replace(PROBLEM, m=3), CHIP).cached
    data = layout.compressed_results_file(CHIP.fingerprint()).read_bytes()
    assert json.loads(decompress(data))["arch_fingerprint"] == CHIP.fingerprint()
    assert json.loads(Evaluations(layout).export(CHIP.fingerprint())) == document(layout), "exports are plain"


def test_the_setting_decides(tmp_path: Path) -> None:
    assert not Settings().compress_results
    for compressed, suffix in ((False, ".json"), (True, ".json.zst")):
        with open_cache(tmp_path / suffix, compress_results=compressed) as cache:
            cache.evaluations.evaluate(PROBLEM, CHIP)
            assert forms(cache.layout) == [suffix]


def test_results_of_both_forms_count(layout: StoreLayout) -> None:
    """A writer was killed after it wrote one and before it deleted the other."""
    fill(layout, 20)
    fold(layout, compressed=False)
    plain = layout.results_file(CHIP.fingerprint())
    before = plain.read_bytes()
    with Evaluations(layout, compressed=True) as kept:
        kept.evaluate(replace(PROBLEM, m=500), CHIP)
        kept._sets[CHIP.fingerprint()].file.fold()
    plain.write_bytes(before)
    searched = document(layout)["statistics"]["total_search_time_hours"]
    assert len(keys(layout)) == 21
    fold(layout, compressed=True)
    assert forms(layout) == [".json.zst"]
    assert len(keys(layout)) == 21
    assert document(layout)["statistics"]["total_search_time_hours"] == searched


def test_no_flipped_bit_gives_a_wrong_result(layout: StoreLayout) -> None:
    fill(layout, 20)
    fold(layout, compressed=True)
    path = layout.compressed_results_file(CHIP.fingerprint())
    sound, chance = path.read_bytes(), random.Random(1)
    expected = document(layout)["cache_entries"]
    for _ in range(100):
        data = bytearray(sound)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with Evaluations(layout, durable=False) as kept:
            found = dict(kept.entries(CHIP.fingerprint()))
        assert {key: json.loads(encode_entry(entry)) for key, entry in found.items()}.items() <= expected.items()
        assert path.read_bytes() == bytes(data), "reading changes nothing"
    path.write_bytes(bytes(data))
    fold(layout, compressed=True)
    (copied,) = layout.quarantine.iterdir()
    assert copied.read_bytes() == bytes(data)
    assert original_of_quarantined(copied.name)[0] == path.name


def test_a_torn_compressed_file_keeps_the_results_before_its_damage(layout: StoreLayout) -> None:
    fill(layout, 2000)
    fold(layout, compressed=True)
    path = layout.compressed_results_file(CHIP.fingerprint())
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert 500 < len(keys(layout)) < 2000


def test_a_frame_that_declares_too_much_is_refused_unread() -> None:
    frame = bytearray(compress(b"x" * 70_000))
    assert zstandard.frame_content_size(bytes(frame)) == 70_000
    header = zstandard.get_frame_parameters(bytes(frame))
    assert header.has_checksum
    # Magic, descriptor, then the declared size, in four bytes for one of this length.
    frame[5:9] = (MOST_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(CorruptEntry, match="declare 2,147,483,649 bytes"):
        decompress(bytes(frame))


def test_a_frame_without_a_size_is_refused_unread() -> None:
    with pytest.raises(CorruptEntry, match="do not declare their size; compress a file, not a stream"):
        decompress(zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"))


@pytest.mark.parametrize("rest", [b"x", compress(b"{}")], ids=["a byte", "a second file"])
def test_what_follows_a_frame_is_not_lost_unseen(layout: StoreLayout, rest: bytes) -> None:
    with pytest.raises(CorruptEntry, match="unused data"):
        decompress(compress(b"{}") + rest)
    fill(layout, 20)
    fold(layout, compressed=True)
    path = layout.compressed_results_file(CHIP.fingerprint())
    path.write_bytes(path.read_bytes() + rest)
    ((damaged, error),) = damaged_files(layout, CHIP.fingerprint(), judge)
    assert (damaged, "unused data" in str(error)) == (path, True)
    assert len(keys(layout)) == 20


def test_a_file_from_elsewhere_may_have_32_mib_decompressed() -> None:
    most = b" " * LARGEST_IMPORT_BYTES
    for data in (most, compress(most)):
        assert decompress(data, LARGEST_IMPORT_BYTES) == most
    for data in (most + b" ", compress(most + b" ")):
        with pytest.raises(CorruptEntry, match=r"32 MiB"):
            decompress(data, LARGEST_IMPORT_BYTES)
