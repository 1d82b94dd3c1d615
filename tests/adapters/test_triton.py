"""The real Triton keeps its kernels in our store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.adapters.shelf import FOLDER_PREFIX, LOCK
from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.index import queries
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.upkeep.integrity import check

pytest.importorskip("triton")

COMPILE = """
import json, logging, os, pathlib, sys, tempfile
logging.basicConfig()
folders = lambda: {str(path) for path in pathlib.Path(tempfile.gettempdir()).glob("gemm-cache-kernels-*")}
before = folders()
exec(os.environ.get("BREAK", ""))  # here, because the key of a kernel has the number of its line
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

hits, listened = [], []

def listen(*, cache_hit, times, **_):
    hits.append(cache_hit)
    listened.append([times.total, times.total_lowering])

triton.knobs.compilation.listener = listen
signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
made = triton.compile(ASTSource(scale, signature, {"BLOCK": 64}), target=GPUTarget("cuda", 90, 32))
assert made.asm["cubin"] and made.asm["ptx"] and made.asm["ttgir"]
left = sorted(folders() - before)
print(json.dumps([hits, made.asm["cubin"].hex(), left, listened]))
exec(os.environ.get("END", ""))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str | Path]:
    path = tmp_path / "compiles.py"
    path.write_text(COMPILE)
    (tmp_path / "tmp").mkdir()
    return [sys.executable, path]


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "own"),
        "TRITON_CACHE_MANAGER": "cache_engine.adapters.triton:CacheManager",
        "GEMM_CACHE_DIR": str(tmp_path / "store"),
        "TMPDIR": str(tmp_path / "tmp"),
        "TRITON_DEFAULT_FP_FUSION": "1",  # without it Triton 3.9 warns
        **more,
    }


def _compile(program: list[str | Path], tmp_path: Path, **more: str) -> tuple[bool, str, str]:
    """Whether it was a hit, the code, and what was logged."""
    return _compile_and_listen(program, tmp_path, **more)[:3]


def _compile_and_listen(
    program: list[str | Path], tmp_path: Path, **more: str
) -> tuple[bool, str, str, tuple[float, float]]:
    """The same with what Triton's listener heard: microseconds of all, and of the stages of lowering."""
    done = subprocess.run(program, env=_environment(tmp_path, **more), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (hit,), code, left, (listened,) = json.loads(done.stdout)
    assert not [path for path in left if Path(path).exists()], "a process deletes its parts at its end"
    return hit, code, done.stderr, listened


_LOOK_TOGETHER = """
import time
from cache_engine.adapters import triton as ours
looked, stored_group = pathlib.Path(os.environ["LOOKED"]), ours.CacheManager._stored_group
def together(self, *asked):
    found = stored_group(self, *asked)
    (looked / str(os.getpid())).touch()
    while len(list(looked.iterdir())) < 2:
        time.sleep(0.01)
    return found
ours.CacheManager._stored_group = together
"""


def _groups(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "store" / "groups").glob("*"))


def test_a_second_process_is_served_from_the_store_and_not_with_damage(
    program: list[str | Path], tmp_path: Path
) -> None:
    hit, code, logged = _compile(program, tmp_path)
    assert (hit, logged) == (False, "")
    (path,) = _groups(tmp_path)
    assert _compile(program, tmp_path) == (True, code, "")
    assert not (tmp_path / "own").exists()  # and nothing is in Triton's own directory
    assert list(check(DiskStore(open_store(tmp_path / "store")))) == []

    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    hit, again, logged = _compile(program, tmp_path)
    assert (hit, again) == (False, code)
    assert "does not match its checksum" in logged
    assert _compile(program, tmp_path) == (True, code, "")


def test_a_store_that_cannot_be_used_leaves_triton_its_own_directory(program: list[str | Path], tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no directory")
    hit, code, logged = _compile(program, tmp_path)
    assert not hit
    assert "the store cannot be used" in logged
    assert _compile(program, tmp_path)[:2] == (True, code)


def test_its_kernels_have_rows_with_hits_and_the_time_that_triton_s_listener_measures(
    program: list[str | Path], tmp_path: Path
) -> None:
    *_, (all_us, lowering_us) = _compile_and_listen(program, tmp_path)
    for _ in range(2):
        assert _compile(program, tmp_path)[0]
    with open_cache(tmp_path / "store") as cache:
        (row,) = cache.query(queries.kernels, queries.KernelFilter(frameworks=()))
        events = cache.query(queries.events_of, row["key"])
        statistics = cache.stats()
        group = cache.admin.adapted(row["key"])
    assert (row["name"], row["arch"], row["hits"], row["framework"]) == ("scale", "sm_90a", 2, "triton")
    # Triton's stages of lowering, and what comes before them; ours are without the writing of their results.
    assert 0.5 * lowering_us < row["compile_ms"] * 1e3 < all_us
    assert group is not None
    assert [*group.stages_ms] == ["source", "ttir", "ttgir", "llir", "ptx", "cubin"]
    assert [event["kind"] for event in events] == ["publish"]
    assert events[0]["compile_ms"] == pytest.approx(row["compile_ms"], abs=0.001)
    totals = statistics.totals
    assert (totals.compiles, totals.misses, totals.hits) == (1, 1, {"disk": 2})
    assert totals.saved_us == 2 * totals.compile_us


def test_what_triton_cached_itself_is_imported_and_hit(program: list[str | Path], tmp_path: Path) -> None:
    hit, code, _ = _compile(program, tmp_path, TRITON_CACHE_MANAGER="triton.runtime.cache:FileCacheManager")
    assert (hit, _groups(tmp_path)) == (False, [])
    with open_cache(tmp_path / "store") as cache:
        done = cache.admin.import_triton(tmp_path / "own")
    assert (done.taken, done.refused) == (1, ())
    assert _compile(program, tmp_path, TRITON_CACHE_DIR=str(tmp_path / "other")) == (True, code, "")
    assert not (tmp_path / "other").exists()


def test_a_process_that_only_runs_triton_keeps_the_store_within_its_limits(
    program: list[str | Path], tmp_path: Path
) -> None:
    store = DiskStore(open_store(tmp_path / "store"))
    for number in range(20):
        group = Group("triton", f"OLD{number}", "a.json", {"a.json": b"{}"}, 1.0)
        put_group(store.layout, group, durable=False)
        os.utime(store.layout.group_path(group.key), (1e9, 1e9))
    _compile(program, tmp_path, GEMM_CACHE_MAX_ENTRIES="5")
    assert len(_groups(tmp_path)) <= 5
    assert any(path.stat().st_mtime > 1e9 + 1 for path in _groups(tmp_path))  # and the new one is there
    with open_cache(tmp_path / "store") as cache:
        assert [act["done_by"] for act in cache.query(queries.acts)] == ["automatic"]


def test_what_a_killed_process_left_the_next_deletes_and_nothing_else(
    program: list[str | Path], tmp_path: Path
) -> None:
    _compile(program, tmp_path)
    temporary = tmp_path / "tmp"
    killed = subprocess.run(
        program, env=_environment(tmp_path, END="os.kill(os.getpid(), 9)"), capture_output=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = temporary.glob(f"{FOLDER_PREFIX}*")
    assert (left / LOCK).exists()
    others = [temporary / name for name in (f"{FOLDER_PREFIX}young", f"{FOLDER_PREFIX}open", "of-another")]
    for other in others:
        other.mkdir(mode=0o777 if other.name.endswith("open") else 0o700)
    others[1].chmod(0o777)
    (others[1] / LOCK).touch(mode=0o600)
    waiting = _environment(tmp_path, END="sys.stdout.flush(); sys.stdin.read()")
    with subprocess.Popen(program, env=waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        (its,) = set(temporary.glob(f"{FOLDER_PREFIX}*")) - {*others}
        assert its != left
        assert _compile(program, tmp_path)[0]
        assert {*temporary.glob("*")} == {its, *others}
        living.communicate()
    assert not its.exists()


@pytest.mark.parametrize("what", ["shelf.put_group", "shelf.read_stored", "triton.write_files"])
def test_a_disk_that_fails_leaves_triton_its_own_directory(
    what: str, program: list[str | Path], tmp_path: Path
) -> None:
    """Fails in our module only: root may write everywhere, and Triton needs a folder for its assembler."""
    fail = "def fail(*_, **__):\n    raise OSError(28, 'No space left on device')\n"
    broken = f"import cache_engine.adapters.triton\n{fail}cache_engine.adapters.{what} = fail\n"
    hit, code, logged = _compile(program, tmp_path, BREAK=broken)
    assert not hit
    assert "No space left" in logged
    if what != "triton.write_files":  # then the parts are in its directory, and the group, read from them, in the store
        assert _groups(tmp_path) == []
    assert _compile(program, tmp_path)[:2] == (True, code)


def test_of_two_processes_at_once_one_compiles(program: list[str | Path], tmp_path: Path) -> None:
    """Both have looked before either compiles, as each waits for the other in its first lookup."""
    (tmp_path / "looked").mkdir()
    both = [
        subprocess.Popen(
            program,
            env=_environment(tmp_path, BREAK=_LOOK_TOGETHER, LOOKED=str(tmp_path / "looked")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    hits = []
    for process in both:
        output, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, b"")
        hits += json.loads(output)[0]
    assert sorted(hits) == [False, True]
    assert len(_groups(tmp_path)) == 1
    assert _compile(program, tmp_path)[0]


def test_a_compile_that_fails_keeps_no_other_waiting(program: list[str | Path], tmp_path: Path) -> None:
    """The next compile in the same thread does not wait for it, though its manager is still there."""
    twice = """
from cache_engine.adapters import triton as ours
first, second = ours.CacheManager("k" * 52), ours.CacheManager("k" * 52)
print(first.get_group("x.json"), second.get_group("x.json"))
"""
    environment = _environment(tmp_path, GEMM_CACHE_LOCK_TIMEOUT_S="100000")
    command = [sys.executable, "-c", twice]
    assert subprocess.check_output(command, env=environment, timeout=100) == b"None None\n"


def test_libraries_and_results_of_tuning_stay_in_triton_s_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    code = """
from cache_engine.adapters.triton import CacheManager
library = CacheManager("HOST")
assert library.get_file("launch.so") is None
path = library.put(b"code", "launch.so")
assert CacheManager("HOST").get_file("launch.so") == path
tuned = CacheManager("TUNED")
assert tuned.get_file("scale.autotune.json") is None
tuned.put("{}", "scale.autotune.json", binary=False)
kernel = CacheManager("CPU")
assert kernel.get_group("scale.json") is None
group = {name: kernel.put(b"{}", name) for name in ("scale.so", "scale.json")}
kernel.put_group("scale.json", group)
assert sorted(CacheManager("CPU").get_group("scale.json")) == ["scale.json", "scale.so"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    own = {str(path.relative_to(tmp_path / "own")) for path in (tmp_path / "own").rglob("*") if path.is_file()}
    assert own == {
        "HOST/launch.so",
        "TUNED/scale.autotune.json",
        "CPU/scale.so",
        "CPU/scale.json",
        "CPU/__grp__scale.json",
    }
    assert _groups(tmp_path) == []
