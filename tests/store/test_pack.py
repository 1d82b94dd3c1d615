"""Packs: entries round-trip, every fault is reported, and no path leaves the pack."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_engine.errors import CorruptEntry, PackUnusable, UsageError
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.pack import Pack, find_packs, write_pack
from cache_engine.upkeep.packs import export_pack, import_pack, look_into
from tests.helpers import blob_file, files_of, fill, make_entry, make_store, publish, record_file

HEADER, ROW = 64, 48


@pytest.fixture
def pack_path(store: DiskStore, tmp_path: Path) -> Path:
    """A pack of twenty entries."""
    fill(store, 20)
    export_pack(store, tmp_path / "some.gemmpack")
    return tmp_path / "some.gemmpack"


def _rewritten(path: Path, rows: list[bytes], entries: bytes) -> Path:
    """A pack with these rows, its header made to fit."""
    index = b"".join(rows)
    digest = hashlib.sha256(index).digest()
    header = struct.pack("<8sHHIQQ32s", b"GEMMPACK", 1, 0, 0, len(rows), HEADER + len(entries), digest)
    path.write_bytes(header + entries + index)
    path.chmod(0o600)
    return path


def _parts(path: Path) -> tuple[list[bytes], bytes]:
    data = path.read_bytes()
    _, _, _, _, count, start, _ = struct.unpack("<8sHHIQQ32s", data[:HEADER])
    index = data[start:]
    return [index[at : at + ROW] for at in range(0, count * ROW, ROW)], data[HEADER:start]


def test_a_store_exported_and_imported_is_the_same_byte_for_byte(
    store: DiskStore, other: DiskStore, pack_path: Path, tmp_path: Path
) -> None:
    journal = Journal(other.layout.journal, 3600.0)
    imported = import_pack(other, journal, Pack(pack_path))
    assert (imported.taken, imported.present, imported.refused) == (20, 0, ())

    def content(of: DiskStore) -> dict[str, bytes]:
        return {str(path.relative_to(of.layout.root)): path.read_bytes() for path in files_of(of)}

    assert content(other) == content(store)
    assert imported.taken_bytes == sum(map(len, content(other).values()))
    assert [(event.kind, event.detail) for event in read_journal(other.layout.journal).recent] == [
        (IMPORT, "20 entries of some.gemmpack")
    ]
    export_pack(other, tmp_path / "again.gemmpack")
    assert (tmp_path / "again.gemmpack").read_bytes() == pack_path.read_bytes()


def test_importing_again_changes_nothing_and_a_damaged_entry_is_mended(other: DiskStore, pack_path: Path) -> None:
    journal = Journal(other.layout.journal, 3600.0)
    import_pack(other, journal, Pack(pack_path))
    key = next(other.keys())
    blob_file(other, key).write_bytes(b"damaged")
    again = import_pack(other, journal, Pack(pack_path))
    assert (again.taken, again.present, again.refused) == (1, 19, ())
    assert other.get(key) is not None


def test_a_dry_run_says_what_an_import_would_do_and_changes_nothing(other: DiskStore, pack_path: Path) -> None:
    journal = Journal(other.layout.journal, 3600.0)
    publish(other, 3)
    before = {path: path.read_bytes() for path in files_of(other)}
    would = import_pack(other, journal, Pack(pack_path), dry_run=True)
    assert (would.taken, would.present) == (19, 1)
    assert {path: path.read_bytes() for path in files_of(other)} == before
    did = import_pack(other, journal, Pack(pack_path))
    assert did == would


def test_examining_a_pack_shows_the_outcome_for_each_entry(store: DiskStore, other: DiskStore, tmp_path: Path) -> None:
    new, present, foreign = fill(store, 3)
    publish(other, 1)
    publish(other, 2)
    record_file(other, foreign).write_bytes(b'{"format": 99}')
    export_pack(store, tmp_path / "three.gemmpack")
    before = {path: path.read_bytes() for path in files_of(other)}
    seen = {incoming.key: incoming for incoming in look_into(other, Pack(tmp_path / "three.gemmpack"))}
    assert {path: path.read_bytes() for path in files_of(other)} == before
    assert [seen[key].present for key in (new, present, foreign)] == [False, True, False]
    assert [bool(seen[key].refused) for key in (new, present, foreign)] == [False, False, True]
    assert seen[new].record == store.record(new)
    assert seen[new].stored_bytes == record_file(store, new).stat().st_size + blob_file(store, new).stat().st_size


def test_only_the_keys_asked_for_are_exported(store: DiskStore, tmp_path: Path) -> None:
    keys = fill(store, 4)
    gone = CacheKey("0" * 64)
    exported = export_pack(store, tmp_path / "two.gemmpack", keys=[keys[3], keys[0], keys[3], gone])
    assert (exported.entries, exported.refused) == (2, ())
    assert {row.key for row in Pack(tmp_path / "two.gemmpack").rows()} == {keys[0], keys[3]}


def test_damaged_entries_are_left_out_of_a_pack_and_named(store: DiskStore, tmp_path: Path) -> None:
    keys = sorted(fill(store, 5))
    blob_file(store, keys[2]).write_bytes(b"damaged")
    record_file(store, keys[3]).write_bytes(b"{}")
    exported = export_pack(store, tmp_path / "a.gemmpack")
    assert exported.entries == 3
    assert [refused.key for refused in exported.refused] == keys[2:4]
    assert [row.key for row in Pack(tmp_path / "a.gemmpack").rows()] == [keys[0], keys[1], keys[4]]


def test_an_existing_file_is_replaced_only_on_request(store: DiskStore, tmp_path: Path) -> None:
    path = tmp_path / "a.gemmpack"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists; give another name"):
        export_pack(store, path)
    assert path.read_text() == "mine"
    assert export_pack(store, path, replace=True).entries == 0
    assert len(Pack(path)) == 0
    assert os.listdir(tmp_path / "store" / "temp") == []


def test_what_is_no_file_is_not_replaced_by_a_pack(store: DiskStore, tmp_path: Path) -> None:
    """Root would replace ``/dev/null`` for all programs."""
    path, link = tmp_path / "a.gemmpack", tmp_path / "link.gemmpack"
    os.mkfifo(path)
    link.symlink_to(tmp_path / "not there yet")
    with pytest.raises(UsageError, match="is a device, pipe or socket, not a file; give another name"):
        export_pack(store, path, replace=True)
    assert path.is_fifo()
    with pytest.raises(UsageError, match="exists; give another name"):
        export_pack(store, link)
    assert link.is_symlink()


def test_a_pack_that_fails_half_way_leaves_nothing(store: DiskStore, tmp_path: Path) -> None:
    def entries() -> object:
        yield CacheKey("0" * 64), b"record", b"blob"
        raise OSError(28, "No space left on device")

    folder = tmp_path / "packs"
    folder.mkdir()
    with pytest.raises(OSError, match="No space"):
        write_pack(folder / "a.gemmpack", entries())  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []


def test_an_open_pack_that_is_replaced_goes_on_being_read(store: DiskStore, pack_path: Path) -> None:
    pack, key = Pack(pack_path), publish(store, 3)
    store.delete(key)
    export_pack(store, pack_path, replace=True)
    assert pack.get(key) is not None
    assert Pack(pack_path).get(key) is None


def test_a_pack_that_is_cut_short_while_open_serves_what_is_left_and_nothing_wrong(tmp_path: Path) -> None:
    """As a copy to the same file does that stops half way. Every place in the index and after the entries is cut at."""
    source = make_store(tmp_path / "source")
    keys = fill(source, 4)
    path = tmp_path / "some.gemmpack"
    export_pack(source, path)
    whole, seen = path.read_bytes(), set()
    for cut in range(len(whole) - 1, len(whole) - 400, -1):
        path.write_bytes(whole)
        pack = Pack(path)
        os.truncate(path, cut)
        for number, key in enumerate(keys):
            try:
                loaded = pack.get(key)
            except CorruptEntry:
                seen.add("corrupt")
            else:
                seen.add("there")
                assert loaded is not None
                assert loaded.cubin == make_entry(number)[1].cubin
        list(pack.records())
        assert sum(pack.made_with.values()) <= len(keys)
        with pytest.raises((CorruptEntry, PackUnusable)):
            list(pack.rows())
    assert seen == {"corrupt", "there"}


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b""), "not a pack"),
        (lambda path: path.write_bytes(b"GEMMPACK"), "not a pack"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cut short"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "cut short"),
        (lambda path: path.write_bytes(b"GEMMPACK" + b"\x02" + path.read_bytes()[9:]), "format 2"),
        (lambda path: path.chmod(0o606), "written by everyone"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
        (_pipe, "not a regular file"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "not a regular file"),
    ],
    ids=["empty", "header cut", "cut", "longer", "newer", "writable", "gone", "folder", "pipe", "device"],
)
def test_an_invalid_pack_is_refused_with_the_reason(pack_path: Path, make: object, said: str) -> None:
    make(pack_path)  # type: ignore[operator]
    with pytest.raises(PackUnusable, match=said):
        Pack(pack_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_pack_of_someone_else_is_refused_unless_trusted(pack_path: Path) -> None:
    os.chown(pack_path, 12345, 12345)
    with pytest.raises(PackUnusable, match="belongs to user 12345"):
        Pack(pack_path)
    assert len(Pack(pack_path, trust=True)) == 20


def test_an_index_out_of_order_or_with_a_key_twice_is_refused_whole(
    other: DiskStore, journal: Journal, pack_path: Path
) -> None:
    rows, entries = _parts(pack_path)
    for wrong in (rows[::-1], [rows[0], *rows], [*rows, rows[-1]]):
        with pytest.raises(PackUnusable, match="not sorted and unique"):
            import_pack(other, journal, Pack(_rewritten(pack_path, wrong, entries)))
    assert list(other.keys()) == []


def test_an_index_that_was_tampered_with_is_refused_whole(other: DiskStore, journal: Journal, pack_path: Path) -> None:
    data = bytearray(pack_path.read_bytes())
    data[-1] ^= 1
    pack_path.write_bytes(data)
    with pytest.raises(PackUnusable, match="does not match its digest"):
        import_pack(other, journal, Pack(pack_path))
    assert list(other.keys()) == []


@pytest.mark.parametrize("sizes", [(2**40, 10, 10), (64, 2**21, 10), (64, 2**32 - 1, 2**32 - 1), (0, 10, 10)])
def test_forged_places_and_sizes_lead_nowhere(
    other: DiskStore, journal: Journal, pack_path: Path, sizes: tuple[int, int, int]
) -> None:
    rows, entries = _parts(pack_path)
    key = rows[5][:32].hex()
    rows[5] = rows[5][:32] + struct.pack("<QII", *sizes)
    pack = Pack(_rewritten(pack_path, rows, entries))
    with pytest.raises(CorruptEntry, match="points outside it"):
        pack.get(CacheKey(key))
    with pytest.raises(CorruptEntry, match="points outside it"):
        import_pack(other, journal, pack)


def test_entries_under_keys_not_their_own_are_refused(other: DiskStore, journal: Journal, pack_path: Path) -> None:
    rows, entries = _parts(pack_path)
    rows[4], rows[5] = rows[4][:32] + rows[5][32:], rows[5][:32] + rows[4][32:]
    pack = Pack(_rewritten(pack_path, rows, entries))
    with pytest.raises(CorruptEntry, match="belongs to"):
        pack.get(CacheKey(rows[4][:32].hex()))
    imported = import_pack(other, journal, pack)
    assert (imported.taken, [refused.key for refused in imported.refused]) == (
        18,
        [rows[4][:32].hex(), rows[5][:32].hex()],
    )


@settings(max_examples=150)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), seed=st.integers(0, 2**32))
def test_any_bit_that_flips_is_noticed_and_nothing_wrong_is_served(
    position: float, bit: int, seed: int, pack_path: Path, tmp_path: Path
) -> None:
    data = bytearray(pack_path.read_bytes())
    data[int(position * len(data))] ^= 1 << bit
    flipped = tmp_path / "flipped.gemmpack"
    flipped.write_bytes(data)
    flipped.chmod(0o600)
    entries = {make_entry(number)[0]: make_entry(number)[1].cubin for number in range(20)}
    try:
        pack = Pack(flipped)
    except PackUnusable:
        return
    for key, cubin in entries.items():
        try:
            loaded = pack.get(key)
        except CorruptEntry:
            continue
        assert loaded is None or loaded.cubin == cubin
    other = make_store(tmp_path / f"other-{random.Random(seed).getrandbits(64)}")
    try:
        imported = import_pack(other, Journal(other.layout.journal, 3600.0), pack)
    except (PackUnusable, CorruptEntry):
        return
    assert len(imported.refused) == 1, "a flipped bit went unseen"
    assert all((loaded := other.get(key)) is not None and loaded.cubin == entries[key] for key in other.keys())  # noqa: SIM118


def test_a_folder_stands_for_its_packs_by_name(tmp_path: Path) -> None:
    for name in ("b.gemmpack", "a.gemmpack", "c.txt"):
        (tmp_path / name).touch()
    assert find_packs([tmp_path, Path("/other.gemmpack")]) == [
        tmp_path / "a.gemmpack",
        tmp_path / "b.gemmpack",
        Path("/other.gemmpack"),
    ]


def test_a_pack_of_very_many_entries_opens_and_finds_at_once(tmp_path: Path) -> None:
    """A hundred thousand rows, of which a lookup reads a few."""
    key, *_ = make_entry(1)
    count = 100_000
    keys = sorted({hashlib.sha256(str(number).encode()).hexdigest() for number in range(count)} - {key})
    path = tmp_path / "large.gemmpack"
    write_pack(path, ((CacheKey(key), b"x", b"y") for key in keys))
    pack = Pack(path)
    assert len(pack) == len(keys)
    assert pack.get(key) is None
    with pytest.raises(CorruptEntry):
        pack.get(CacheKey(keys[0]))
    with pytest.raises(CorruptEntry):
        pack.get(CacheKey(keys[-1]))


def test_damage_in_what_made_the_entries_is_noticed_and_serves_nothing_wrong(other: DiskStore, pack_path: Path) -> None:
    """The records are read instead, and an import is refused."""
    sound = Pack(pack_path).made_with
    data = bytearray(pack_path.read_bytes())
    data[data.rindex(b"GEMMMADE") - 60] ^= 1
    pack_path.write_bytes(data)
    damaged = Pack(pack_path)
    assert damaged.made_with == sound
    assert damaged.get(damaged.key_at(0)) is not None
    with pytest.raises(PackUnusable, match="damaged bytes between its entries and its index"):
        import_pack(other, Journal(other.layout.journal, 3600.0), damaged)
