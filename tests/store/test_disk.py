"""The store on disk: publishing, replacing, deleting, and directories that cannot be one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import CorruptEntry, StoreError, StoreUnusable
from cache_engine.model.artifact import PTX, SOURCE
from cache_engine.store import publish as publish_module
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.lock import try_lock
from cache_engine.upkeep.cleanup import remove_temporary
from tests.helpers import blob_file, files_of, fill, make_entry, make_store, publish, record_file


def test_a_published_entry_is_read_back_whole(store: DiskStore) -> None:
    key, artifact, describe = make_entry()
    record = store.publish(key, artifact, describe)
    loaded = store.get(key)
    assert loaded is not None
    assert loaded.record == record
    assert loaded.cubin == artifact.cubin
    assert store.section(record, PTX) == artifact.ptx
    assert store.section(record, SOURCE) == artifact.source


def test_an_absent_entry_is_none(store: DiskStore) -> None:
    assert store.get(make_entry()[0]) is None
    assert list(store.keys()) == []


def test_entries_outlive_the_process_that_made_them(store: DiskStore) -> None:
    keys = fill(store, 20)
    again = make_store(store.layout.root)
    assert sorted(again.keys()) == sorted(keys)
    assert [record.key for record in again.records()] == sorted(keys)


def test_files_are_private(store: DiskStore) -> None:
    publish(store)
    for path in (store.layout.root, *store.layout.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_compression_can_be_off(tmp_path: Path) -> None:
    plain = make_store(tmp_path / "plain", compress=False)
    key, artifact, describe = make_entry()
    record = plain.publish(key, artifact, describe)
    assert not record.blob.compressed
    assert artifact.cubin in blob_file(plain, key).read_bytes()
    # A reader need not know how it was written.
    loaded = make_store(plain.layout.root, compress=True).get(key)
    assert loaded is not None
    assert loaded.cubin == artifact.cubin


def test_replacing_an_entry_leaves_one_blob(store: DiskStore) -> None:
    key, artifact, describe = make_entry()
    store.publish(key, artifact, describe)
    before = blob_file(store, key)
    newer = type(artifact)(artifact.cubin + b"newer", artifact.ptx, artifact.source, artifact.log, artifact.resources)
    store.publish(key, newer, describe)
    assert blob_file(store, key) != before
    loaded = store.get(key)
    assert loaded is not None
    assert loaded.cubin == newer.cubin


@pytest.mark.parametrize("times", [1, 5])
def test_a_reader_that_meets_a_replacement_gets_the_new_entry(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Between its reading of the record and of the blob, the entry was replaced and the old blob deleted."""
    from cache_engine.store import disk
    from cache_engine.store.files import read_file

    key, artifact, describe = make_entry()
    store.publish(key, artifact, describe)
    newer = [
        type(artifact)(b"\x7fELF%d" % number, artifact.ptx, artifact.source, artifact.log, artifact.resources)
        for number in range(times)
    ]
    waiting = list(newer)

    def replacing(path: Any, limit: int, *, trust: bool | None = None) -> bytes | None:
        if "/kernels/" in path and waiting:
            store.publish(key, waiting.pop(0), describe)
        return read_file(path, limit, trust=trust)

    monkeypatch.setattr(disk, "read_file", replacing)
    loaded = store.get(key)
    assert loaded is not None
    assert loaded.cubin == newer[-1].cubin


def test_deleting_frees_the_bytes_of_the_entry(store: DiskStore) -> None:
    key = publish(store)
    taken = record_file(store, key).stat().st_size + blob_file(store, key).stat().st_size
    assert store.delete(key) == taken
    assert store.get(key) is None
    assert list(files_of(store)) == []
    assert store.delete(key) == 0


def test_a_missing_blob_is_damage(store: DiskStore) -> None:
    key = publish(store)
    blob_file(store, key).unlink()
    with pytest.raises(CorruptEntry, match="missing"):
        store.get(key)


def test_quarantine_keeps_the_bytes_of_the_entry(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b"damaged")
    store.quarantine(key)
    assert store.get(key) is None
    names = [path.name.partition("-")[2] for path in store.layout.quarantine.iterdir()]
    assert len(names) == 2
    assert all(name.startswith(key) for name in names)


def test_a_record_of_a_newer_version_is_skipped_and_not_deleted(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b'{"format": 99}')
    assert store.get(key) is None
    assert list(store.records()) == []
    assert record_file(store, key).exists()


def test_an_entry_of_another_version_is_never_replaced(store: DiskStore) -> None:
    key, artifact, describe = make_entry()
    store.publish(key, artifact, describe)
    record_file(store, key).write_bytes(b'{"format": 99}')
    before = {path: path.read_bytes() for path in files_of(store)}
    with pytest.raises(StoreError, match="existing entry has another format version"):
        store.publish(key, artifact, describe)
    assert {path: path.read_bytes() for path in files_of(store)} == before


@pytest.mark.parametrize("which", [record_file, blob_file])
@pytest.mark.parametrize("what", ["link", "pipe", "folder", "device"])
def test_a_file_that_is_not_regular_is_damage(store: DiskStore, which: Callable[..., Path], what: str) -> None:
    """Opening a pipe would hang, and a link may lead to any file of this user's."""
    key = publish(store)
    path = which(store, key)
    aside = path.rename(store.layout.root / "aside")
    if what == "link":
        path.symlink_to(aside)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CorruptEntry, match=r"is not a regular file|is a link"):
        store.get(key)


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_disk_that_refuses_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = make_store(tmp_path / "store", durable=True)
    key, artifact, describe = make_entry()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(OSError, match="No space left"):
        store.publish(key, artifact, describe)
    monkeypatch.undo()
    assert list(files_of(store)) == []
    assert store.get(key) is None


def test_a_store_can_be_moved(tmp_path: Path) -> None:
    key = publish(make_store(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    assert make_store(tmp_path / "there").get(key) is not None


# ---- Directories that cannot be a store ----


def test_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("something of mine")
    with pytest.raises(StoreUnusable, match="is a file; a store is a directory"):
        open_store(path)
    assert path.read_text() == "something of mine"


def test_below_a_file_there_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match=r"cannot use .* as a store"):
        open_store(tmp_path / "file" / "store")


def test_a_file_in_place_of_a_folder_of_the_store_is_named(tmp_path: Path) -> None:
    layout = open_store(tmp_path / "store")
    layout.proofs.touch()
    with pytest.raises(StoreUnusable, match=rf"Not a directory: {layout.proofs};"):
        open_store(layout.root)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreUnusable, match=r"holds 'thesis\.tex' and is not a store"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_becomes_a_store(tmp_path: Path) -> None:
    assert open_store(tmp_path).marker.exists()


def test_a_store_that_lost_its_marker_is_still_one(store: DiskStore) -> None:
    key = publish(store)
    store.layout.index.touch()
    store.layout.marker.unlink()
    assert make_store(store.layout.root).get(key) is not None


def test_folders_that_got_lost_are_made_again(store: DiskStore) -> None:
    """Some ways of copying leave out empty ones."""
    key = publish(store)
    for folder in (store.layout.temp, store.layout.locks, store.layout.quarantine, store.layout.journal):
        shutil.rmtree(folder)
    again = make_store(store.layout.root)
    assert again.get(key) is not None
    publish(again, 2)


def test_processes_that_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cache_engine.store.disk import open_store\n"
        "print('ready', flush=True); sys.stdin.readline(); open_store(Path(sys.argv[1]))\n"
    )
    for number in range(3):
        openers = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path / f"{number}" / "store")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(6)
        ]  # fmt: skip
        for opener in openers:
            assert opener.stdout is not None
            opener.stdout.readline()
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write("\n")
            opener.stdin.flush()
        assert [(opener.communicate()[1], opener.returncode) for opener in openers] == [("", 0)] * 6


def test_looking_makes_no_store(tmp_path: Path) -> None:
    for folder in (tmp_path / "mistyped", tmp_path):
        with pytest.raises(StoreUnusable, match="there is no store in"):
            open_store(folder, create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="is not a store; give an empty or new directory"):
        open_store(tmp_path, create=False)
    with pytest.raises(StoreUnusable, match="is a file; a store is a directory"):
        open_store(tmp_path / "file", create=False)


def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """DuckDB, JSON and the pages could not name it."""
    with pytest.raises(StoreUnusable, match="is not UTF-8"):
        open_store(tmp_path / os.fsdecode(b"caf\xe9"))


def test_a_store_whose_making_was_cut_short_is_finished(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "temp").mkdir()
    assert open_store(tmp_path).metadata.is_dir()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"kind": "gemm-cache store", "format": 99}', "of format 99; this program knows 1"),
        ('{"kind": "wine cellar", "format": 1}', "'wine cellar'"),
        ("nonsense", "is not the marker"),
        ("", "is not the marker"),
    ],
)
def test_a_store_of_another_kind_or_version_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(StoreUnusable, match=named):
        open_store(tmp_path)


def test_a_store_writable_by_everyone_is_refused_unless_trusted(tmp_path: Path) -> None:
    root = tmp_path / "store"
    publish(make_store(root))
    root.chmod(0o777)
    with pytest.raises(StoreUnusable, match=r"can be written by everyone; a store is for one user: .*chmod go-w"):
        open_store(root)
    assert open_store(root, trust=True).root == root


def test_a_store_of_someone_else_is_refused_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    make_store(root)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreUnusable, match="belongs to user"):
        open_store(root)
    assert open_store(root, trust=True).root == root


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    """As an ordinary user: root may write anywhere."""
    tmp_path.chmod(0o555)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from cache_engine.store.disk import open_store\n"
        "from cache_engine.errors import StoreUnusable\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: open_store(Path(sys.argv[1]))\n"
        "except StoreUnusable as error: print(error)\n"
    )
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True)
    tmp_path.chmod(0o755)
    assert "Permission denied; name a directory that you may write with --store" in done.stdout, done.stderr


def test_a_temporary_that_a_cleaner_took_before_it_was_locked_is_made_again(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []

    def late(descriptor: int) -> bool:
        if not taken:
            (path,) = store.layout.temp.iterdir()
            assert remove_temporary(path)
            taken.append(path)
        return try_lock(descriptor)

    monkeypatch.setattr(publish_module, "try_lock", late)
    assert store.get(publish(store)) is not None
    assert len(taken) == 1
    assert list(store.layout.temp.iterdir()) == []


def test_a_temporary_that_a_cleaner_looks_at_is_made_again(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looking: list[int] = []

    def late(descriptor: int) -> bool:
        if not looking:
            (path,) = store.layout.temp.iterdir()
            looking.append(os.open(path, os.O_RDWR))
            assert try_lock(looking[0])
        return try_lock(descriptor)

    monkeypatch.setattr(publish_module, "try_lock", late)
    assert store.get(publish(store)) is not None
    os.close(looking[0])
    assert list(store.layout.temp.iterdir()) == []
