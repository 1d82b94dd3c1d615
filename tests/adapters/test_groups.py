"""Kernels of other frameworks in a store: every byte checked, counted, cleaned, repaired, never exported."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zstandard

from cache_engine.adapters import shelf as folders
from cache_engine.adapters.shelf import files_of, own_folder
from cache_engine.errors import CorruptEntry, Misplaced, Untrusted
from cache_engine.frameworks.bundles import (
    Group,
    StoredGroup,
    UnknownGroup,
    group_key,
    is_plain,
    put_group,
    read_group,
    read_stored,
)
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal
from cache_engine.upkeep import cleanup
from cache_engine.upkeep.findings import FindingKind
from cache_engine.upkeep.integrity import check, repair
from cache_engine.upkeep.plan import DAY_S, Limits
from cache_engine.upkeep.survey import count, plan_cleaning
from tests.helpers import publish

_GROUP = Group("triton", "ABC234", "scale.json", {"scale.json": b"{}", "scale.cubin": bytes(range(256)) * 20})


def _put(store: DiskStore, name: str = "ABC234") -> Path:
    group = msgspec.structs.replace(_GROUP, name=name)
    size = put_group(store.layout, group, durable=False)
    path = Path(store.layout.group_path(group.key))
    assert path.stat().st_size == size
    return path


def test_what_is_put_is_read_again_and_private(store: DiskStore) -> None:
    assert read_group(store.layout, _GROUP.key) is None
    path = _put(store)
    assert read_group(store.layout, _GROUP.key) == _GROUP
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert list(check(store)) == []
    assert open_store(store.layout.root) == store.layout


def test_no_damaged_byte_is_served(store: DiskStore) -> None:
    path = _put(store)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises((CorruptEntry, UnknownGroup)):
            read_group(store.layout, _GROUP.key)
        path.write_bytes(data[:at])
        with pytest.raises(CorruptEntry):
            read_group(store.layout, _GROUP.key)


def test_a_group_of_another_key_is_not_served(store: DiskStore) -> None:
    other = _put(store, "OTHER")
    path = _put(store)
    os.replace(other, path)
    with pytest.raises(Misplaced):
        read_group(store.layout, _GROUP.key)


def test_a_group_that_others_may_change_is_not_served(store: DiskStore) -> None:
    path = _put(store)
    path.chmod(0o666)
    with pytest.raises(Untrusted):
        read_group(store.layout, _GROUP.key)
    assert [finding.kind for finding in check(store)] == [FindingKind.FOREIGN_FILE]


@pytest.mark.parametrize("name", ["../scale.cubin", "/etc/passwd", "..", "", "a/b", "nul\0", "x" * 300])
def test_names_that_lead_elsewhere_are_neither_put_nor_read(store: DiskStore, name: str) -> None:
    assert not is_plain(name)
    forged = msgspec.structs.replace(_GROUP, files={**_GROUP.files, name: b"x"})
    with pytest.raises(ValueError, match="cannot be stored"):
        put_group(store.layout, forged, durable=False)
    _forge(store, msgspec.msgpack.encode(forged))
    with pytest.raises(CorruptEntry, match="names"):
        read_group(store.layout, _GROUP.key)


def _forge(store: DiskStore, raw: bytes, version: int = 1) -> None:
    """A file whose checksum is right."""
    import hashlib

    packed = zstandard.ZstdCompressor().compress(raw)
    digest = hashlib.sha256(packed).digest()
    store.layout.groups.mkdir(exist_ok=True, mode=0o700)
    header = struct.pack("<8sH32s32s", b"GEMMGRUP", version, bytes.fromhex(_GROUP.key), digest)
    Path(store.layout.group_path(_GROUP.key)).write_bytes(header + packed)


def test_what_unpacks_to_more_than_allowed_is_not_unpacked(store: DiskStore) -> None:
    _forge(store, bytes(65 * 1024**2))
    with pytest.raises(CorruptEntry, match="declares"):
        read_group(store.layout, _GROUP.key)


def test_what_is_no_group_is_not_served(store: DiskStore) -> None:
    _forge(store, b"\x93 what")
    with pytest.raises(CorruptEntry, match="cannot be read"):
        read_group(store.layout, _GROUP.key)


def test_a_newer_format_stays(store: DiskStore) -> None:
    _forge(store, b"", version=2)
    with pytest.raises(UnknownGroup, match="format 2"):
        read_group(store.layout, _GROUP.key)
    findings = list(check(store))
    assert [(one.kind, one.repairable) for one in findings] == [(FindingKind.UNKNOWN_FORMAT, False)]


def test_a_damaged_group_is_found_and_set_aside_unless_it_is_replaced_meanwhile(store: DiskStore) -> None:
    path = _put(store)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    findings = list(check(store))
    assert [(one.kind, one.path) for one in findings] == [(FindingKind.CORRUPT_GROUP, f"groups/{_GROUP.key}")]
    journal = Journal(store.layout.journal, 3600.0)
    path.write_bytes(whole)
    assert repair(store, journal, findings) == []
    path.write_bytes(whole[:-1])
    assert repair(store, journal, findings) == findings
    journal.close()
    assert not path.exists()
    assert [found.name.endswith(_GROUP.key) for found in store.layout.quarantine.iterdir()] == [True]
    assert list(check(store)) == []


def test_a_file_of_another_name_is_none_of_a_group(store: DiskStore) -> None:
    _put(store).with_name("core.1234").write_bytes(b"what")
    assert [finding.kind for finding in check(store)] == [FindingKind.MISNAMED]


def test_groups_count_against_the_limits_and_go_by_their_last_use(store: DiskStore) -> None:
    kernel = publish(store, 1)
    entries, stored_bytes = count(store.layout)
    paths = [_put(store, name) for name in ("OLD", "USED", "NEW")]
    assert count(store.layout) == (entries + 3, stored_bytes + sum(path.stat().st_size for path in paths))
    now = time.time()
    for path in paths[:2]:
        os.utime(path, (now - 40 * DAY_S,) * 2)
    journal = Journal(store.layout.journal, 3600.0)
    journal.hit(group_key("triton", "USED", "scale.json"), "disk")
    journal.flush()
    chosen = plan_cleaning(store, Limits(expire_days=30))
    assert [victim.key for victim in chosen.victims] == [paths[0].name]
    assert (cleanup.apply(store, journal, chosen).evicted, paths[0].exists()) == (1, False)
    assert paths[1].exists()
    chosen = plan_cleaning(store, replace(Limits(), everything=True))
    assert cleanup.apply(store, journal, chosen).evicted == 3
    journal.close()
    assert store.record(kernel) is None
    assert list(store.layout.groups.iterdir()) == []


def test_a_group_used_since_the_plan_stays(store: DiskStore) -> None:
    path = _put(store)
    os.utime(path, (time.time() - 40 * DAY_S,) * 2)
    chosen = plan_cleaning(store, Limits(expire_days=30))
    journal = Journal(store.layout.journal, 3600.0)
    journal.hit(_GROUP.key, "disk")
    journal.flush()
    assert cleanup.apply(store, journal, chosen).skipped == 1
    journal.close()
    assert path.exists()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this process, in one of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_own", folders._Own())
    return own_folder()


def _stored(store: DiskStore, files: dict[str, bytes] = _GROUP.files) -> StoredGroup:
    group = msgspec.structs.replace(_GROUP, files=files)
    put_group(store.layout, group, durable=False)
    found = read_stored(store.layout, group.key)
    assert found is not None
    return found


def test_what_was_written_for_its_framework_is_not_written_again(store: DiskStore, own: Path) -> None:
    paths = files_of(_stored(store))
    assert {name: Path(path).read_bytes() for name, path in paths.items()} == _GROUP.files
    assert all(Path(path).is_relative_to(own) for path in paths.values())
    before = {path: os.stat(path).st_ino for path in paths.values()}
    again = _stored(store)
    assert files_of(again) == paths
    assert "group" not in vars(again)  # nor unpacked
    assert {path: os.stat(path).st_ino for path in paths.values()} == before
    others = files_of(_stored(store, {**_GROUP.files, "scale.json": b"[]"}))
    assert set(others.values()).isdisjoint(paths.values())
    assert Path(paths["scale.json"]).read_bytes() == b"{}"
    Path(paths["scale.json"]).unlink()
    third = files_of(again)
    assert {name: Path(path).read_bytes() for name, path in third.items()} == _GROUP.files


def test_a_fork_has_a_folder_of_its_own(store: DiskStore, own: Path) -> None:
    stored = _stored(store)
    paths = files_of(stored)
    child = os.fork()
    if not child:
        theirs = files_of(stored)
        os._exit(not set(theirs.values()).isdisjoint(paths.values()) or own_folder() == own)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert all(Path(path).exists() for path in paths.values())


_RANK = """
import os, signal, sys, threading
from cache_engine.adapters import shelf as folders

sys.setswitchinterval(1e-6)
written, ready = [], threading.Barrier(9)

def serve(number):
    ready.wait()
    written.extend(folders.write_files({f"{number}.cubin": b"code"}).values())

threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
ready.wait()
for thread in threads:
    thread.join()
forked, forking = threading.Event(), threading.Event()

def hold():
    with folders._own.lock:
        forking.set()
        forked.wait()

threading.Thread(target=hold).start()
forking.wait()
reading, writing = os.pipe()
child = os.fork()
if not child:
    signal.alarm(30)
    os.write(writing, folders.write_files({"forked.cubin": b"code"})["forked.cubin"].encode())
    signal.alarm(0)
    sys.stdin.read()
    os._exit(0)
os.close(writing)
forked.set()
print(*written, os.read(reading, 1000).decode(), flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


def test_threads_processes_and_forks_keep_each_other_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has eight threads that are served at once, and a child that was forked while one held the lock."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = [sys.executable, "-W", "ignore", "-c", _RANK]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def rank() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)

    with ExitStack() as running:
        ranks = [running.enter_context(rank()) for _ in range(4)]
        written = [one.stdout.readline() for one in ranks if one.stdout is not None]
        paths = [Path(path) for line in written for path in line.split()]
        assert len(set(paths)) == 4 * 9
        assert folders.delete_abandoned() == []
        assert [path for path in paths if not path.exists()] == []
        assert len({path.parents[1] for path in paths}) == 8  # one of each process
        for one in ranks:
            one.communicate(timeout=60)
    assert [path for path in paths if "forked" not in path.name and path.exists()] == []


_FIRST_USE = """
import os, signal, sys, threading
from cache_engine.adapters import shelf as folders

using, forked = threading.Event(), threading.Event()
{within}

def slow(*arguments, **named):
    using.set()
    forked.wait(1)  # a fork that does not wait comes before that
    return own(*arguments, **named)

{replace}
threading.Thread(target=folders.own_folder).start()
using.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    folders.own_folder()
    os._exit(0)
forked.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_WITHIN = {
    "tempfile": ("import tempfile; own = tempfile._get_default_tempdir", "tempfile._get_default_tempdir = slow"),
}


@pytest.mark.parametrize("what", _WITHIN)
def test_a_fork_while_another_thread_uses_it_first_can_go_on(tmp_path: Path, what: str) -> None:
    """Python's own locks, as of ``tempfile``, stay held in a child that is forked under them."""
    within, replace = _WITHIN[what]
    code = _FIRST_USE.format(within=within, replace=replace)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, timeout=60)
    assert done.returncode == 0


def test_files_that_something_deletes_are_written_again(store: DiskStore, own: Path) -> None:
    """Systems tidy the directory of temporary files, and a server runs for months."""
    stored = _stored(store)
    Path(files_of(stored)["scale.json"]).unlink()
    assert {name: Path(path).read_bytes() for name, path in files_of(stored).items()} == _GROUP.files
    shutil.rmtree(own)
    assert {name: Path(path).read_bytes() for name, path in files_of(stored).items()} == _GROUP.files


def test_a_disk_that_takes_a_part_only_is_a_failure(
    store: DiskStore, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = _stored(store)
    monkeypatch.setattr(os, "write", lambda _, data: len(data) - 1)
    with pytest.raises(OSError, match="only a part"):
        files_of(stored)
