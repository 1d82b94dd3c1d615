"""The entries of cuda.core's cache go while processes compile: none of them fails, and all get the same code."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.programs import CudaCore
from cache_engine.frameworks.values import DeletePlan, Entry, Place

pytest.importorskip("cuda.core.utils", exc_type=ImportError)

_COMPILE = """
import hashlib, pathlib, sys
from cuda.core import Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache

SOURCE = 'extern "C" __global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= %d; }'
stop, codes, count = pathlib.Path(sys.argv[2]), set(), 0
with FileStreamProgramCache(sys.argv[1]) as cache:
    while count == 0 or not stop.exists():
        factor = 2 + count % 2
        made = Program(SOURCE % factor, "c++", ProgramOptions(arch="sm_90")).compile("cubin", cache=cache)
        codes.add((factor, hashlib.sha256(bytes(made.code)).hexdigest()))
        count += 1
        if count == 2:
            print("warm", flush=True)
print(count, len(codes))
"""
_DELETIONS = 20


def _end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Not communicate: what was read ahead of the line that was waited for would be lost."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        output, error = process.stdout.read(), process.stderr.read()
    return process.returncode, output, error


def test_processes_that_compile_do_not_notice(tmp_path: Path) -> None:
    folder, stop = tmp_path / "cache", tmp_path / "stop"
    place = Place("cuda_core", folder, "of a test")
    source = CudaCore()
    command = [sys.executable, "-c", _COMPILE, str(folder), str(stop)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    deleted = 0
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "warm\n"
        while deleted < _DELETIONS:
            entries = [seen for seen in source.scan(place, {}) if isinstance(seen, Entry)]
            plan = source.plan_delete(place, [entry for entry in entries if entry.id.startswith("entries/")])
            assert isinstance(plan, DeletePlan)
            done = delete(place, plan, Deleted())
            assert done.left == {}
            deleted += len(done.ids)
            time.sleep(0.02)
    finally:
        stop.touch()
        ends = list(map(_end, processes))
    for code, output, error in ends:
        assert code == 0, error
        count, codes = map(int, output.split())
        assert count > 4
        assert codes == 2
    assert list((folder / "entries").iterdir()), "a folder that a process may just have made stays"
