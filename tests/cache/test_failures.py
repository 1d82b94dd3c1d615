"""What fails on the way to a kernel or into the store: the kernel is served, and the failure is counted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cache_engine.cache import miss as making_module
from cache_engine.cache import serving
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.queue import State, tickets
from cache_engine.errors import CompileError, NotCached
from cache_engine.store.lock import file_lock
from cache_engine.upkeep.findings import FindingKind
from cache_engine.upkeep.plan import Limits
from tests.cache.test_cache import PROBLEM
from tests.helpers import blob_file, code_of, files_of, record_file
from tests.remote.waiting import until


def test_a_damaged_entry_is_recompiled_and_quarantined(tmp_path: Path, compiles: list[str]) -> None:
    with open_cache(tmp_path / "store") as cache:
        key = cache.get_or_compile(PROBLEM).key
        good = cache.get_or_compile(PROBLEM).cubin
    path = blob_file(cache.store, key)
    data = bytearray(path.read_bytes())
    data[200] ^= 4
    path.write_bytes(data)
    with open_cache(tmp_path / "store") as cache:
        kernel = cache.get_or_compile(PROBLEM)
        assert kernel.tier == "compiled"
        assert code_of(kernel.cubin) == code_of(good)
        assert cache.stats().totals.corruptions == 1
        assert len(list(cache.layout.quarantine.iterdir())) == 2
        assert cache.admin.verify() == []
    assert len(compiles) == 2


def test_a_full_disk_still_serves_the_kernel(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    kernel = cache.get_or_compile(PROBLEM)
    assert kernel.tier == "compiled"
    assert "No space left on device" in str(kernel.unpublished)
    assert kernel.cubin.startswith(b"\x7fELF")
    monkeypatch.undo()
    assert list(files_of(cache.store)) == []
    # In this process it is still found.
    assert cache.get_or_compile(PROBLEM).tier == "memory"
    assert cache.stats().totals.publish_failures == 1


def test_an_entry_of_another_version_is_left_alone_and_the_kernel_served(cache: Cache) -> None:
    key = cache.get_or_compile(PROBLEM).key
    newer = b'{"format": 99}'
    record_file(cache.store, key).write_bytes(newer)
    with open_cache(cache.layout.root) as other:
        kernel = other.get_or_compile(PROBLEM)
        assert kernel.tier == "compiled"
        assert "the existing entry has another format version" in str(kernel.unpublished)
        other.admin.clean(Limits(everything=True))
        assert [finding.kind for finding in other.admin.verify(repair=True)] == [FindingKind.UNKNOWN_FORMAT]
    assert record_file(cache.store, key).read_bytes() == newer
    assert blob_file(cache.store, key).exists()


def test_without_the_lock_in_time_the_kernel_is_still_served(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", lock_timeout_s=0.05) as cache:
        key = cache.select(PROBLEM).key
        with file_lock(cache.layout.key_lock(key), 1):
            kernel = cache.get_or_compile(PROBLEM)
        assert kernel.tier == "compiled"
        assert "held by another process" in str(kernel.unpublished)
        assert list(cache.records()) == []
        totals = cache.stats().totals
        assert (totals.lock_waits, totals.lock_timeouts) == (1, 1)
        assert totals.lock_wait_us >= 50_000


@pytest.mark.parametrize(("long_s", "waits"), [(0.01, 1), (60.0, 0)])
def test_only_long_waits_for_a_lock_are_counted(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, long_s: float, waits: int
) -> None:
    monkeypatch.setattr(serving, "LONG_WAIT_S", long_s)
    lock = cache.layout.key_lock(cache.select(PROBLEM).key)
    asked = threading.Thread(target=cache.get_or_compile, args=(PROBLEM,))
    with file_lock(lock, 1):
        asked.start()
        until(lambda: any(one.state == State.WAITS for one in tickets(cache.layout)))
        time.sleep(0.02)
    asked.join()
    totals = cache.stats().totals
    assert (totals.lock_waits, totals.lock_timeouts) == (waits, 0)
    assert totals.misses_by_arch == {"sm_90": 1}


def test_a_read_only_store_serves_hits_and_compiles(tmp_path: Path) -> None:
    """As an ordinary user: root may write anywhere."""
    with open_cache(tmp_path / "store") as cache:
        cache.get_or_compile(PROBLEM)
    code = (
        "import os, sys\n"
        "from cache_engine import open_cache, GemmProblem\n"
        "cache = open_cache(sys.argv[1], trust_store=True)\n"
        "known = GemmProblem(64, 48, 80, dtype='fp32', arch='sm_90')\n"
        "new = GemmProblem(64, 96, 80, dtype='fp32', arch='sm_90')\n"
        "print(cache.get_or_compile(known).tier)\n"
        "kernel = cache.get_or_compile(new)\n"
        "print(kernel.tier, '|', kernel.unpublished)\n"
        "print(len(cache.search('sm_90')))\n"
    )
    root = tmp_path / "store"
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    # The environment's own modules are loaded before the user changes, who may not be able to read them.
    as_user = (
        "import os, cupy, duckdb, pyarrow, msgspec, portalocker, cache_engine.cache.cache, cache_engine.index.sync, "
        "cache_engine.cache.miss, cache_engine.cache.miss, cache_engine.cache.queue.slots, "
        "cache_engine.cache.serving, cache_engine.cache.serving.remote_client, "
        "cache_engine.store.journal.snapshot, cache_engine.store.journal.decisions, "
    )
    as_user += (
        "cache_engine.index.queries, cache_engine.compilers.disassembly, cache_engine.evaluator.catalogue.search, "
    )
    as_user += "tempfile, importlib.metadata\n"
    as_user += (
        "from cache_engine.compilers import COMPILERS; COMPILERS['nvrtc'].load(); COMPILERS['nvrtc'].fingerprint()\n"
    )
    as_user += "if os.getuid() == 0: os.setuid(65534)\n"
    done = subprocess.run([sys.executable, "-c", as_user + code, str(root)], capture_output=True, text=True)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    lines = done.stdout.splitlines()
    assert lines[:1] == ["disk"], done.stderr
    assert lines[1].startswith("compiled | the store cannot be locked"), done.stderr
    assert lines[2:] == ["1"], done.stderr


def test_a_source_the_compiler_refuses_leaves_nothing_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_module, "render", lambda *_: "this is no CUDA")
    with pytest.raises(CompileError):
        cache.get_or_compile(PROBLEM)
    assert list(files_of(cache.store)) == []
    monkeypatch.undo()
    assert cache.get_or_compile(PROBLEM).tier == "compiled"


def test_a_pack_is_asked_before_the_disk_and_its_hits_are_counted(tmp_path: Path) -> None:
    with open_cache(tmp_path / "source") as source:
        cubin = source.get_or_compile(PROBLEM).cubin
        source.admin.export(tmp_path / "some.gemmpack")
    with open_cache(tmp_path / "store", packs=(tmp_path,)) as cache:
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, kernel.cubin) == ("pack", cubin)
        assert cache.get_or_compile(PROBLEM).tier == "memory"
        assert list(cache.records()) == []
        totals = cache.stats().totals
        assert (totals.hits, totals.misses) == ({"pack": 1, "memory": 1}, 0)
        assert totals.saved_us == round(kernel.record.compile_ms * 1000)


def test_unusable_packs_are_reported_counted_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bad.gemmpack").write_bytes(b"no pack")
    packs = (tmp_path / "bad.gemmpack", tmp_path / "gone.gemmpack")
    with open_cache(tmp_path / "store", packs=packs) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        assert cache.stats().totals.failures == {"pack": 2}
    assert "bad.gemmpack is not a pack" in caplog.text
    assert "cannot open pack" in caplog.text


def test_an_entry_damaged_in_a_pack_is_compiled_and_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "some.gemmpack"
    with open_cache(tmp_path / "source") as source:
        source.get_or_compile(PROBLEM)
        source.admin.export(path)
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    with open_cache(tmp_path / "store", packs=(path,), memory_bytes=0) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        assert cache.get_or_compile(PROBLEM).tier == "disk"
        assert cache.stats().totals.failures == {"pack": 2}
    assert caplog.text.count("pack tier skipped") == 1, "once is enough"
    refused = pytest.raises(NotCached, match=r"pack some.gemmpack has this kernel, which cannot be used: .*checksum")
    with open_cache(tmp_path / "new", packs=(path,), enable_jit=False) as cache, refused:
        cache.get_or_compile(PROBLEM)
