"""Odd places: full disks, homes that may not be written, awkward paths, pipes for files, a clock before 1970."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cache_engine.batch.jobs import Job, Jobs, LostJob, Reporter
from cache_engine.cache import operator
from cache_engine.cache.cache import open_cache
from cache_engine.cache.operator import GemmOperator, default_cache
from cache_engine.cli.main import commands
from cache_engine.errors import CorruptEntry, GemmCacheError, StoreUnusable, UsageError
from cache_engine.evaluator.catalogue import table_shapes
from cache_engine.evaluator.chips import load_chip
from cache_engine.evaluator.validation import read_measurements
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.model.events import CLEAN, EVICT
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import SNAPSHOT, Journal, fold, read_journal
from cache_engine.store.lock import file_lock, file_lock_to_delete
from cache_engine.store.timings import Timings
from cache_engine.upkeep.cleanup import apply, find_leftovers, plan_cleaning
from cache_engine.upkeep.plan import Limits
from tests.faults.test_disks import Mount, mount
from tests.helpers import blob_file, files_of, fill, make_store, publish, record_file

__all__ = ["mount"]  # a fixture

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
YEAR_S = 365 * 86_400


@contextmanager
def _no_hanging() -> Iterator[None]:
    """Ends what waits for ever. What is tested never waits, so the time says nothing about it."""

    def give_up(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- A disk without room ----


def _exhaust(use: Callable[[int], object]) -> None:
    """Takes from a disk what there is."""

    def use_all() -> None:
        for number in range(100_000):
            use(number)

    with pytest.raises(OSError, match="No space left on device"):
        use_all()


def _exhaust_files(folder: Path) -> None:
    _exhaust(lambda number: (folder / f"{number}").touch())


def test_without_room_for_any_new_file_cleaning_makes_room(mount: Mount) -> None:
    disk = mount("-t", "tmpfs", "-o", "nr_inodes=600", "tmpfs")
    store = make_store(disk / "store")
    keys = fill(store, 60)
    (store.layout.temp / "1-dead").touch()
    (store.layout.kernels / keys[0][:2] / f"{keys[0]}-{'0' * 16}").touch()  # an orphan
    _exhaust_files(disk)
    journal = Journal(store.layout.journal, 60.0)
    limits = Limits(everything=True)
    cleaned = apply(store, journal, plan_cleaning(store, limits), by="a test")
    assert (cleaned.evicted, cleaned.skipped) == (60, 0)
    assert list(files_of(store)) == []
    journal.close()
    kinds = [event.kind for event in read_journal(store.layout.journal).recent]
    assert kinds.count(EVICT) >= 59  # until the first had gone there was no room to write
    assert kinds.count(CLEAN) == 1
    assert publish(store, 7)


def test_without_room_the_command_that_cleans_succeeds(mount: Mount) -> None:
    """On a disk whose bytes and files are both used up."""
    disk = mount("-t", "tmpfs", "-o", "size=1m,nr_inodes=400", "tmpfs")
    store = make_store(disk / "store")
    fill(store, 20)
    with open(disk / "filler", "wb", buffering=0) as filler:
        _exhaust(lambda _: filler.write(bytes(4096)))
    _exhaust_files(disk)
    done = CliRunner().invoke(commands, ["--store", str(store.layout.root), "clean", "--all", "--yes", "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    assert list(store.keys()) == []
    assert publish(store, 7)


def test_a_lock_file_is_not_made_while_a_deleter_counts_on_its_not_being_there(mount: Mount, tmp_path: Path) -> None:
    disk = mount("-t", "tmpfs", "-o", "nr_inodes=5", "tmpfs")
    lock = disk / "a.lock"
    _exhaust_files(disk)
    with file_lock_to_delete(lock, 0):
        (disk / "0").unlink()  # so that there is room
        with pytest.raises(GemmCacheError, match="was held by another process"), file_lock(lock, 0):
            pass
        assert not lock.exists()
    with file_lock(lock, 0):
        assert lock.exists()


# ---- A home that may not be written ----


def test_in_a_home_that_may_not_be_written_kernels_are_cached_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # where not even root can make anything
    operator._in_force.cache_clear()
    caplog.set_level(logging.WARNING, logger="cache_engine")
    one, other = (GemmOperator(dtype="fp32", arch="sm_90") for _ in range(2))
    kernel = one.kernel(64, 48, 80)
    assert (kernel.tier, other.kernel(64, 48, 80).tier) == ("compiled", "memory")
    assert str(kernel.unpublished).startswith("cannot use /proc/nowhere/gemm-cache as a store: No such file")
    assert default_cache() is one.cache  # which ``matmul`` takes
    assert one.cache.unpublished == 1
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "kernels are cached in this process alone"
    ]
    with pytest.raises(StoreUnusable, match="cannot use"):
        one.cache.admin.verify()
    assert one.cache.stats().entries == 0
    operator._in_force.cache_clear()


def test_a_directory_that_is_named_is_not_replaced_by_memory() -> None:
    with pytest.raises(StoreUnusable, match="name a directory that you may write with --store or GEMM_CACHE_DIR"):
        GemmOperator(dtype="fp32", arch="sm_90", cache_dir="/proc/nowhere").kernel(64, 48, 80)
    with pytest.raises(StoreUnusable):
        open_cache("/proc/nowhere")


# ---- Awkward paths ----


@pytest.mark.parametrize("name", ["a?b=c&d", "a#b %3F\n'\"[é]*"])
def test_a_path_with_any_character_serves_and_mirrors(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    store = make_store(place / "store")
    keys = fill(store, 3)
    index = Index(store)
    assert index.sync().added == 3
    assert len(index.query(queries.kernels, queries.KernelFilter())) == 3
    assert store.get(keys[0]) is not None
    assert index.sync().added == 0
    assert not list(tmp_path.rglob("*.wal*"))
    done = CliRunner().invoke(commands, ["--store", str(store.layout.root), "ls", "--json"])
    assert len(json.loads(done.stdout)["rows"]) == 3
    if index.path.parent.parent.name.startswith("gemm-cache-"):
        shutil.rmtree(index.path.parent)


# ---- Pipes, sockets and devices in the place of files ----


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(path.parent)  # the name of a socket has 107 characters at most
        try:
            listening.bind(path.name)
        finally:
            os.chdir(before)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        path.symlink_to("/dev/zero")


KINDS = pytest.mark.parametrize("make", [_pipe, _socket, _device])


def _put(make: Callable[[Path], None], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


@KINDS
@pytest.mark.usefixtures("without_compilers")
def test_a_pipe_or_device_in_a_store_blocks_nothing(
    store: DiskStore, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    layout = store.layout
    keys = fill(store, 3)
    journal = Journal(layout.journal, 60.0)
    for path in (
        record_file(store, keys[0]), blob_file(store, keys[1]), layout.journal / SNAPSHOT, layout.journal / "0-1.jsonl",
        layout.jobs / "1-2.json", layout.key_lock(keys[2]), layout.index, layout.temp / "1-a", layout.cleaned,
        layout.quarantine / f"1700000000000000000-{keys[0]}.json",
    ):  # fmt: skip
        _put(make, path)
    for folder in (layout.evaluations, layout.timings):
        for name in (f"gemm_cache_{'ab' * 16}.json", f"gemm_cache_{'cd' * 16}.0.log"):
            _put(make, folder / name)
    with _no_hanging():
        for key in keys[:2]:
            with pytest.raises(CorruptEntry, match=r"is not a regular file|is a link"):
                store.get(key)
        with pytest.raises(PermissionError), file_lock(layout.key_lock(keys[2]), 0):
            pass
        journal.hit(keys[2], "disk")
        journal.close()
        assert read_journal(layout.journal).totals.hits == {"disk": 1}
        assert fold(layout.journal, layout.temp, keep=lambda _: True) == 0
        assert isinstance(Jobs(layout).recent()[0], LostJob)
        assert list(Timings(layout)) == []
        assert Index(store).sync().added == 2
        for verb in (
            "stats",
            "verify",
            "ls",
            "quarantine ls",
            "timings ls",
            "evaluations",
            "clean --dry-run",
            "doctor",
        ):
            done = CliRunner().invoke(commands, ["--store", str(layout.root), *verb.split()])
            assert done.exception is None or isinstance(done.exception, SystemExit | GemmCacheError), (verb, done)
        find_leftovers(store)
        _put(make, layout.marker)
        with pytest.raises(StoreUnusable, match="is not the marker"):
            open_store(layout.root)


@KINDS
def test_an_input_that_is_not_a_regular_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], store: DiskStore
) -> None:
    path = tmp_path / "given.csv"
    make(path)
    with _no_hanging():
        for read in (table_shapes, read_measurements, load_chip):
            with pytest.raises(UsageError, match=r"not a regular file|No such device"):
                read(path)
        for verb in ("warm", "import", "evaluations --import", "calibrate --check all", "evaluate 8 8 8 --chip"):
            command = ["--store", str(store.layout.root), *verb.split(), str(path)]
            done = CliRunner().invoke(commands, command)
            assert isinstance(done.exception, GemmCacheError | OSError), (verb, done)
            assert "not a regular file" in str(done.exception) or "No such device" in str(done.exception), (
                done.exception
            )


def test_an_input_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("n,k\n8,16\n")
    (tmp_path / "link.csv").symlink_to("table.csv")
    assert [(shape.n, shape.k) for shape in table_shapes(tmp_path / "link.csv")] == [(8, 16)]
    measured = "arch,M,N,K,latency_us\nH100,8,8,8,5.0\n"
    (tmp_path / "plain.csv").write_text(measured)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(measured.encode()))
    assert [len(read_measurements(tmp_path / name)) for name in ("plain.csv", "packed.csv.gz")] == [1, 1]


# ---- A clock before 1970 ----


def test_with_a_clock_before_1970_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, now_ns = time.time, time.time_ns
    back_s = 66 * YEAR_S  # the sixties
    monkeypatch.setattr(time, "time", lambda: now() - back_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - back_s * 10**9)
    assert time.time() < 0
    root = tmp_path / "store"
    with open_cache(root, memory_bytes=0) as cache:
        key = cache.get_or_compile(PROBLEM).key
        for path in (record_file(cache.store, key), blob_file(cache.store, key)):
            os.utime(path, (time.time(), time.time()))
        assert cache.get_or_compile(PROBLEM).tier == "disk"
        assert len(cache.search("sm_90")) == 1
        assert cache.records().__next__().created_at < 0
        cache.store.quarantine(CacheKey(key))
        assert [item.key for item in cache.admin.quarantined()] == [key]
        cache.admin.restore(cache.admin.quarantined()[0])
        assert cache.get_or_compile(PROBLEM).tier == "disk"
        assert cache.admin.clean(Limits(expire_days=7.0)).kept_entries == 1
        assert cache.admin.verify() == []
        assert cache.stats().totals.hits == {"disk": 2}
    jobs = Jobs(open_store(root))
    (jobs._layout.jobs / "1-2.json").write_text(json.dumps({"id": "1-2", "command": ["ls"]}))
    Reporter(jobs._layout.jobs / "1-2.json").finish("{}")
    (job,) = jobs.recent()
    assert isinstance(job, Job)
    assert job.ended_at < 0
    for verb in (
        "evaluate 8 8 8 --chip SG2260E", "stats", "stats --by arch", "ls", f"show {key}", "quarantine ls",
        "evaluations", "evaluations --delete --yes", "verify", "sync --rebuild", "clean --max-entries 0",
    ):  # fmt: skip
        done = CliRunner().invoke(commands, ["--store", str(root), *verb.split()])
        assert done.exit_code == 0, (verb, done.exception)


# ---- What a debug dump leaves ----


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_a_debug_dump_is_private_with_any_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "dumps" / "one"
    folder.parent.mkdir()
    with open_cache(tmp_path / "store", durability="fast") as cache:
        before = os.umask(umask)
        try:
            cache.get_or_compile(PROBLEM, debug_dump=folder)
        finally:
            os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert len(modes) > 6
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
