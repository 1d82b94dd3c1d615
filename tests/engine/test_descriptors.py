"""A process without a descriptor left still gets its kernels: from the disk, compiled, and published."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

from cache_engine.errors import GemmCacheError
from cache_engine.store.descriptors import SPARE, SpareDescriptors, is_out_of_descriptors

_PROGRAM = """
import json, os, resource, sys
from cache_engine import GemmProblem, open_cache

problem = GemmProblem(128, 256, 192, arch="sm_90")
caches = [open_cache(sys.argv[1]) for _ in range(2)]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
found = []
for cache in caches:  # the first imports, compiles and publishes; the second reads the disk
    kernel = cache.get_or_compile(problem)
    found.append([kernel.tier, bool(kernel.unpublished), len(kernel.cubin) > 1000])
try:
    os.open("/dev/null", os.O_RDONLY)
    found.append("there was a descriptor left")
except OSError:
    pass
print(json.dumps(found))
"""


def test_a_process_without_descriptors_compiles_publishes_and_hits(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path / "store")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["compiled", False, True], ["disk", False, True]]


def _open() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_reserve_is_lent_once_and_filled_again() -> None:
    spare = SpareDescriptors()
    full = len(_open())
    calls = []

    def work() -> int:
        calls.append(len(_open()))
        if len(calls) == 1:
            raise GemmCacheError("a tool could not be run") from OSError(errno.EMFILE, "Too many open files")
        return 7

    assert spare.retried(work) == 7
    assert calls == [full, full - SPARE]
    assert len(_open()) == full
    spare._close()


def test_a_descriptor_that_an_application_took_over_is_never_closed(tmp_path: Path) -> None:
    spare = SpareDescriptors()
    number = spare._held[3]
    os.close(number)  # as closerange does
    other = os.open(tmp_path / "application", os.O_WRONLY | os.O_CREAT)
    if other != number:  # which is the lowest that is free, most likely
        os.dup2(other, number)
        os.close(other)
    spare._close()
    os.write(number, b"mine")
    assert (tmp_path / "application").read_bytes() == b"mine"
    os.close(number)


def test_only_an_error_for_want_of_descriptors_is_tried_again() -> None:
    assert is_out_of_descriptors(OSError(errno.ENFILE, "x"))
    assert is_out_of_descriptors(ImportError("libnvrtc.so: cannot open shared object file: Too many open files"))
    assert not is_out_of_descriptors(OSError(errno.ENOSPC, "No space left on device"))
