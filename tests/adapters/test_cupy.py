"""The real CuPy keeps its kernels in our store; what asks the driver is replaced, where there is no GPU.

CuPy's own code makes the keys, compiles with NVRTC, and calls the backend. Whether a driver takes what is loaded, only
a machine with a GPU can tell; here the test compares the bytes with those that were compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.bundle_facts import part_of
from cache_engine.frameworks.values import PartKind
from cache_engine.index.queries import KernelFilter, kernels
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.upkeep.integrity import check

pytest.importorskip("cupy")

_CACHE = "from cupy.cuda import _compiler_cache; from abc import abstractmethod, update_abstractmethods"
_COMPILE = r"""
import json, logging, os, sys, types
logging.basicConfig()
from cupy.cuda import compiler
exec(os.environ.get("BREAK", ""))
from cache_engine.adapters.cupy import use_store

loaded, compiled = [], []

class NotLoaded:
    def load(self, cubin):
        loaded.append(bytes(cubin).hex())

    def _set_mapping(self, mapping):
        self.mapping = mapping

compiler.function = types.SimpleNamespace(Module=NotLoaded)
compiler._get_arch = lambda: "90"
compiler._get_arch_for_options_for_nvrtc = lambda arch: (f"-arch=sm_{arch}", "cubin")
really = compiler._compile_using_nvrtc_no_warning

def compiling(source, *rest):
    compiled.append(source)
    return really(source, *rest)

compiler._compile_using_nvrtc_no_warning = compiling
used = use_store()
plain = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }'
template = "template <typename T> __global__ void fill(T* x) { x[threadIdx.x] = 1; }"
compiler._compile_module_with_cache(plain)
named = compiler._compile_module_with_cache(template, name_expressions=["fill<float>", "fill<double>"])
print(json.dumps([used, len([text for text in compiled if "__global__" in text]), loaded, named.mapping]))
"""


def _run(tmp_path: Path, **more: str) -> tuple[list[Any], str]:
    own = {"CUPY_CACHE_DIR": str(tmp_path / "own"), "GEMM_CACHE_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE], env={**os.environ, **own, **more}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_second_process_is_served_without_a_compile(tmp_path: Path) -> None:
    (used, compiles, loaded, mapping), logged = _run(tmp_path)
    assert (used, compiles, len(loaded)) == (True, 2, 2), logged
    assert _run(tmp_path)[0] == [True, 0, loaded, mapping]
    assert not list((tmp_path / "own").glob("*"))
    assert list(check(DiskStore(open_store(tmp_path / "store")))) == []
    with open_cache(tmp_path / "store") as cache:
        rows = {row["name"]: row for row in cache.query(kernels, KernelFilter(frameworks=()))}
        group = cache.admin.adapted(CacheKey(rows["scale"]["key"]))
    assert {row["framework"] for row in rows.values()} == {"cupy"}
    (fill,) = rows.keys() - {"scale"}
    assert "fill" in fill
    for row in rows.values():
        assert (row["arch"], row["hits"], row["version"][:3]) == ("sm_90", 1, "14.")
        assert row["registers"] > 0
        assert row["compile_ms"] > 1
    assert group is not None
    assert part_of(group, PartKind.BINARY)[:-1].hex() == loaded[0]  # whole, as NVIDIA's tools want it
    assert b"void scale" in part_of(group, PartKind.SOURCE)


def test_damage_and_failures_are_misses(tmp_path: Path) -> None:
    (_, _, loaded, _), _ = _run(tmp_path)
    for path in (tmp_path / "store" / "groups").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    (used, compiles, again, _), logged = _run(tmp_path)
    assert (used, compiles, again) == (True, 2, loaded)
    assert "does not match its checksum" in logged
    fail = "import cache_engine.adapters.shelf as ours\ndef fail(*_, **__):\n    raise OSError(28, 'No space left')\n"
    for what in ("put_group", "read_stored"):
        (used, _, again, _), logged = _run(tmp_path / what, BREAK=f"{fail}ours.{what} = fail\n")
        assert (used, again) == (True, loaded)
        assert "No space left" in logged


@pytest.mark.parametrize(
    "change",
    [
        "import cupy; cupy.__version__ = '15.0.0'",
        "del compiler._set_kernel_cache_backend",
        f"{_CACHE}; _compiler_cache.KernelCacheBackend.load = lambda self, name, arch: None",
        f"{_CACHE}; _compiler_cache.KernelCacheBackend.more = abstractmethod(lambda self: None); "
        "update_abstractmethods(_compiler_cache.KernelCacheBackend)",
        f"{_CACHE}; del _compiler_cache.KernelCacheBackend",
    ],
)
def test_a_version_that_differs_keeps_its_own_cache(tmp_path: Path, change: str) -> None:
    (used, compiles, _, _), logged = _run(tmp_path, BREAK=change)
    assert (used, compiles) == (False, 2)
    assert "it uses its own" in logged
    assert len(list((tmp_path / "own").glob("*.cubin"))) == 2
    assert not list((tmp_path / "store").glob("groups/*"))
