"""Processes compile with Triton while their cache is cleaned: none of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import DeletePlan, Entry, Place

pytest.importorskip("triton")

_COMPILE = """
import pathlib, sys, time
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

stop, pause, blocks = pathlib.Path(sys.argv[1]), float(sys.argv[2]), [int(block) for block in sys.argv[3:]]
signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
count = 0
while not stop.exists():
    source = ASTSource(scale, signature, {"BLOCK": blocks[count % len(blocks)]})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"] and made.asm["ptx"]
    count += 1
    if count == len(blocks):
        print("warm", flush=True)
    time.sleep(pause)
print(count)
"""
_ALWAYS, _RARELY = ("0", "64", "128"), ("2", "256", "512", "1024")
"""Of a process: seconds between two compiles, and what it compiles in turn."""


@contextmanager
def compiling(folder: Path, tmp_path: Path) -> Iterator[list[int]]:
    """Three processes compile until the end; then each has succeeded, and the list has how many compiles it did."""
    stop, program = tmp_path / "stop", tmp_path / "compiles.py"
    counts: list[int] = []
    program.write_text(_COMPILE)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, program, stop, *how],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for how in (_ALWAYS, _ALWAYS, _RARELY)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield counts
    finally:
        stop.touch()
        ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]
    for output, error, code in ends:
        assert code == 0, error
        counts.append(int(output.split()[-1]))


def age(folder: Path) -> None:
    """Makes every entry an hour old, as those are that a cleaning takes."""
    for path in folder.rglob("*"):
        try:
            os.utime(path, (time.time() - 3600,) * 2)
        except FileNotFoundError:  # a temporary file
            continue


def test_processes_that_compile_while_their_cache_is_cleaned_do_not_fail(tmp_path: Path) -> None:
    """Entries in use come back, those that rest are deleted; both happen, and no process notices."""
    place, source, came = Place("triton", tmp_path / "cache", "given"), Triton(), Counter[str]()
    with compiling(place.path, tmp_path) as counts:
        for _ in range(8):
            age(place.path)
            entries = [seen for seen in source.scan(place, {}) if isinstance(seen, Entry)]
            plan = source.plan_delete(place, entries)
            assert isinstance(plan, DeletePlan)
            done = delete(place, plan, Deleted())
            came.update(done.left.values())
            came["deleted"] += len(done.ids)
            if came["deleted"] and came["it was written meanwhile: a process uses it"]:
                break
    assert came["deleted"], came
    assert came["it was written meanwhile: a process uses it"], came
    assert sum(counts) > 20
    print(came, counts)
