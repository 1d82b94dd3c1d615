"""The real Triton keeps its kernels in our store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.store.disk import DiskStore, open_store
from cache_engine.upkeep.integrity import check

pytest.importorskip("triton")

_COMPILE = """
import json, logging, os, pathlib, sys, tempfile
logging.basicConfig()
exec(os.environ.get("BREAK", ""))  # here, because the key of a kernel has the number of its line
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
made = triton.compile(ASTSource(scale, signature, {"BLOCK": 64}), target=GPUTarget("cuda", 90, 32))
assert made.asm["cubin"] and made.asm["ptx"] and made.asm["ttgir"]
left = [str(path) for path in pathlib.Path(tempfile.gettempdir()).glob("gemm-cache-kernels-*")]
print(json.dumps([hits, made.asm["cubin"].hex(), left]))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str | Path]:
    path = tmp_path / "compiles.py"
    path.write_text(_COMPILE)
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
    import json

    done = subprocess.run(program, env=_environment(tmp_path, **more), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (hit,), code, left = json.loads(done.stdout)
    assert not [path for path in left if Path(path).exists()], "a process deletes its parts at its end"
    return hit, code, done.stderr


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
    assert "go to its own directory" in logged
    assert _compile(program, tmp_path)[:2] == (True, code)


@pytest.mark.parametrize("what", ["put_group", "read_group", "_folder"])
def test_a_disk_that_fails_leaves_triton_its_own_directory(
    what: str, program: list[str | Path], tmp_path: Path
) -> None:
    """Fails in our module only: root may write everywhere, and Triton needs a folder for its assembler."""
    fail = "def fail(*_, **__):\n    raise OSError(28, 'No space left on device')\n"
    broken = f"import cache_engine.adapters.triton as ours\n{fail}ours.{what} = fail\n"
    hit, code, logged = _compile(program, tmp_path, BREAK=broken)
    assert not hit
    assert "No space left" in logged
    if what != "_folder":  # then the parts are in its directory, and the group, read from them, in the store
        assert _groups(tmp_path) == []
    assert _compile(program, tmp_path)[:2] == (True, code)


def test_two_processes_at_once(program: list[str | Path], tmp_path: Path) -> None:
    both = [
        subprocess.Popen(program, env=_environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, b"")
    assert len(_groups(tmp_path)) == 1
    assert _compile(program, tmp_path)[0]


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
