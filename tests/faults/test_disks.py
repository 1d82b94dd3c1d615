"""Real disks that are full or may not be written: the caller gets its kernel, and the store stays sound."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import DeletePlan, Entry, Place
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.model.events import CLEAN_OTHER
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.outcome import Failure
from cache_engine.store.journal import read_journal
from cache_engine.upkeep.plan import Limits
from tests.evaluations.test_evaluations import CHIP, PROBLEM
from tests.frameworks.fixtures import unpack
from tests.helpers import files_of, fill, make_store

PROBLEMS = [GemmProblem(64, 48 + 16 * number, 80, dtype=DType.FP32, arch="sm_90") for number in range(3)]

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts something for the test; skips where that is not permitted."""
    place, mounted = tmp_path / "mounted", 0

    def run(*options: str) -> Path:
        nonlocal mounted
        place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
        mounted += "remount" not in " ".join(options)
        return place

    yield run
    for _ in range(mounted):
        # Something of the test's that has not ended yet keeps a disk busy, but not from being taken away.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _write_for_ever(descriptor: int) -> None:
    while True:
        os.write(descriptor, bytes(4096))


def test_on_a_full_disk_kernels_are_served_and_stored_ones_stay(mount: Mount) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=512k", "tmpfs")
    with open_cache(disk / "store", memory_bytes=0) as cache:
        cubin = cache.get_or_compile(PROBLEMS[0]).cubin
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left on device"):
            _write_for_ever(filler)
        os.close(filler)
        for problem in PROBLEMS[1:]:
            kernel = cache.get_or_compile(problem)
            assert (kernel.tier, kernel.unpublished) == (
                "compiled",
                Failure("the store refused it: No space left on device"),
            )
        found = cache.get_or_compile(PROBLEMS[0])
        assert (found.tier, found.cubin) == ("disk", cubin)
        assert list(cache.layout.temp.iterdir()) == []
        assert cache.admin.verify() == []
        (disk / "filler").unlink()
        assert cache.get_or_compile(PROBLEMS[1]).unpublished is None
        assert cache.get_or_compile(PROBLEMS[1]).tier == "disk"
        totals = cache.stats().totals
        # What could not be written is lost; what is counted is true.
        assert totals.compiles in (2, 3, 4)
        assert cache.admin.clean(Limits(everything=True)).kept_entries == 0
        assert list(files_of(cache.store)) == []


def test_on_a_read_only_disk_hits_are_served_and_the_rest_compiled(mount: Mount, tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        cubin = cache.get_or_compile(PROBLEMS[0]).cubin
        cache.evaluations.evaluate(PROBLEM, CHIP)
    mount("--bind", str(tmp_path / "store"))
    place = mount("-o", "remount,ro,bind")
    before = sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*"))
    with open_cache(place, memory_bytes=0) as cache:
        found = cache.get_or_compile(PROBLEMS[0])
        assert (found.tier, found.cubin) == ("disk", cubin)
        kernel = cache.get_or_compile(PROBLEMS[1])
        assert (kernel.tier, kernel.unpublished) == (
            "compiled",
            Failure("the store cannot be locked: Read-only file system"),
        )
        assert cache.admin.verify() == []
        assert cache.stats().entries == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*")) == before


def test_kernels_on_a_full_disk_are_listed(mount: Mount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    disk = mount("-t", "tmpfs", "-o", "size=6m", "tmpfs")
    store = make_store(disk / "store")
    fill(store, 3)
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left on device"):
        _write_for_ever(filler)
    os.close(filler)
    for index in (Index(store), Index(store)):  # the second, as of another process, finds what the first left
        index.sync()
        assert index.query(queries.count, queries.KernelFilter()) == 3
    assert not store.layout.index.exists()


def test_irs_are_deleted_on_a_full_disk_whose_store_is_full_too(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no room for the new version of any group file."""
    disk = mount("-t", "tmpfs", "-o", "size=4m", "tmpfs")
    place = Place("triton", unpack("triton", disk), "given")
    for path in place.path.rglob("*"):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    monkeypatch.setattr("cache_engine.frameworks.deletion.time.sleep", lambda _: None)
    found = [seen for seen in Triton().scan(place, {}) if isinstance(seen, Entry)]
    with open_cache(disk / "store") as cache:
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left on device"):
            _write_for_ever(filler)
        os.close(filler)
        plan = Triton().plan_thinning(place, found)
        assert isinstance(plan, DeletePlan)
        done = cache.admin.clean_other(place, plan)
        audit = [each.detail for each in read_journal(cache.layout.journal).recent if each.kind == CLEAN_OTHER]
    assert (len(done.ids), done.left) == (len(found), {})
    assert not [path for path in place.path.rglob("*") if path.suffix in (".ttir", ".ttgir", ".llir")]
    assert len(list(place.path.glob("*/__grp__*"))) == len(found)
    assert audit == [f"triton, {place.path}: {len(found)} entries"]  # before that there was no room for it


def test_a_pack_on_a_full_disk_fails_in_one_piece(mount: Mount, tmp_path: Path) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=64k", "tmpfs")
    store = make_store(tmp_path / "store")
    fill(store, 40)
    from cache_engine.upkeep.packs import export_pack

    with pytest.raises(OSError, match="No space left on device"):
        export_pack(store, disk / "some.gemmpack")
    assert list(disk.iterdir()) == []
