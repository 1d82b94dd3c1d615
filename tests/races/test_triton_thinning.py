"""The IRs of Triton's entries go while processes compile: none of them fails, and they still hit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import DeletePlan, Entry, PartKind, Place

pytest.importorskip("triton")

_COMPILE = """
import json, pathlib, sys, time
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

stop, always, pause = pathlib.Path(sys.argv[1]), sys.argv[2] == "always", float(sys.argv[3])
hits, count = 0, 0
def listen(*, cache_hit, **of):
    global hits
    hits += cache_hit
triton.knobs.compilation.listener = listen
triton.knobs.compilation.always_compile = always
signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
while count == 0 or not stop.exists():
    source = ASTSource(scale, signature, {"BLOCK": (64, 128)[count % 2]})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"] and made.asm["ptx"] and made.metadata.num_warps
    count += 1
    if count == 2:
        print("warm", flush=True)
    time.sleep(pause)
print(json.dumps({"compiles": count, "hits": hits, "asm": sorted(made.asm), "kernel": len(made.kernel)}))
"""


def _start(folder: Path, stop: Path, *how: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    program = folder.with_name("compiles.py")  # Triton reads the source of a kernel
    program.write_text(_COMPILE)
    command = [sys.executable, str(program), str(stop), *how]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> dict[str, object]:
    # Not communicate: what was read ahead of the line that was waited for would be lost.
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        output, error = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0, error
    found: dict[str, object] = json.loads(output.splitlines()[-1])
    return found


def _thin(place: Place) -> Deleted:
    """Once all that is there is an hour old, as it is when a cleaning takes it."""
    for path in place.path.rglob("*"):
        try:
            os.utime(path, (time.time() - 3600,) * 2)
        except FileNotFoundError:  # a temporary file
            continue
    source = Triton()
    found = [seen for seen in source.scan(place, {}) if isinstance(seen, Entry) and seen.part(PartKind.IR)]
    plan = source.plan_thinning(place, found)
    assert isinstance(plan, DeletePlan)
    return delete(place, plan, Deleted())


def test_a_second_process_hits_an_entry_whose_irs_are_deleted(tmp_path: Path) -> None:
    place, stop = Place("triton", tmp_path / "cache", "given"), tmp_path / "stop"
    stop.touch()
    first = _end(_start(place.path, stop, "once", "0"))
    assert (first["compiles"], first["hits"]) == (1, 0)
    assert {"ttir", "ttgir", "llir"} <= set(first["asm"])  # type: ignore[call-overload]
    assert len(_thin(place).ids) == 1
    files = {path: path.stat().st_ino for path in place.path.rglob("*") if path.is_file()}
    second = _end(_start(place.path, stop, "once", "0"))
    assert (second["compiles"], second["hits"], second["kernel"]) == (1, 1, first["kernel"])
    assert second["asm"] == ["cubin", "ptx", "source"]
    # It has not compiled it again.
    assert {path: path.stat().st_ino for path in place.path.rglob("*") if path.is_file()} == files


@pytest.mark.soak  # test_triton_deletion has such a race each day
def test_processes_that_compile_while_the_irs_go_do_not_fail(tmp_path: Path) -> None:
    """Two find every entry, all the time. One compiles again and again, as it is told, and writes the IRs anew."""
    place, stop = Place("triton", tmp_path / "cache", "given"), tmp_path / "stop"
    warm = _start(place.path, tmp_path, "once", "0")  # that stops after one
    _end(warm)
    writer = _start(place.path, stop, "always", "5")
    readers = [_start(place.path, stop, "once", "0") for _ in range(2)]
    thinned: set[str] = set()
    try:
        for process in (writer, *readers):
            assert process.stdout is not None
            process.stdout.readline()
        again, until = 0, time.monotonic() + 90
        while time.monotonic() < until:
            time.sleep(0.2)
            ids = _thin(place).ids
            again += len(thinned.intersection(ids))
            thinned.update(ids)
            if again and len(thinned) == 2:
                break
    finally:
        stop.touch()
        ends = [_end(process) for process in (*readers, writer)]
    assert len(thinned) == 2
    assert again  # what the writer had written anew went too
    for end in ends[:2]:
        # All but the first compile of the second kernel, by whichever process.
        assert int(str(end["compiles"])) - int(str(end["hits"])) <= 1
        assert int(str(end["hits"])) > 20
    print(again, ends)
