"""Triton's kernels through our cache, compared with Triton itself: a hit, and compiling."""

from __future__ import annotations

import linecache
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.entries.subjects import PROBLEM
from benchmarks.results import Report
from benchmarks.timing import Thunk, compare
from cache_engine.cache.cache import CompiledKernel, open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.model.artifact import SOURCE

_HIT_GOAL = 1 / 8
_ADAPTER_GOAL = 1.1
_OWN = "in its own cache (unverified)"


def hit(report: Report, name: str, folder: Path) -> None:
    """A lookup that finds a Triton kernel on disk, compared with ``triton.compile`` on a hit in Triton's cache.

    Nothing is cached in memory on either side, so each reads from disk, as the first lookup of a process does.
    """
    with open_cache(folder / "ours", durability="fast", memory_bytes=0) as cache:
        look = partial(cache.get_or_compile, PROBLEM, family="triton")
        source = cache.text(look().record, SOURCE)
        settings = dict(flag.split("=") for flag in COMPILERS["triton"].flags)
        with patch.dict(os.environ, {"TRITON_CACHE_DIR": str(folder / "theirs"), **settings}):
            compiled = partial(_compiled, _defined(source))
            compiled()  # from here on it is in Triton's cache
            report(
                compare(
                    f"{name}, of a Triton kernel", look, "triton.compile, hit", compiled, goal_ratio=_HIT_GOAL, calls=5
                )
            )


def adapter(report: Report, folder: Path) -> None:
    """A hit of ``triton.compile`` through the adapter, every byte checked, compared with its own cache.

    Again in a process, where the parts are in its folder; and the first in a process, which writes them there.
    """
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    with open_cache(folder / "made", durability="fast") as cache:
        made = cache.get_or_compile(PROBLEM, family="triton")
        module = _defined(cache.text(made.record, SOURCE))
    there = {"GEMM_CACHE_DIR": str(folder / "store"), "TRITON_CACHE_DIR": str(folder / "theirs")}
    there |= dict(flag.split("=") for flag in COMPILERS["triton"].flags)
    with patch.dict(os.environ, there), knobs.cache.scope():
        from cache_engine.adapters import folders
        from cache_engine.adapters.shelf import shelf
        from cache_engine.adapters.triton import CacheManager

        shelf.cache_clear()  # of another directory

        def compiled(manager: type) -> object:
            knobs.cache.manager_class = manager
            return _compiled(module)

        def first() -> object:
            folders.forget_written()
            return compiled(CacheManager)

        compiled(CacheManager)  # ours first, since it takes what Triton's directory has
        again, own = partial(compiled, CacheManager), partial(compiled, FileCacheManager)
        own()
        for name, ours in (("again", again), ("first in a process", first)):
            report(
                compare(f"Triton's hit in our store, {name}", ours, _OWN, own, goal_ratio=_ADAPTER_GOAL, samples=100)
            )


def _defined(source: str) -> dict[str, Any]:
    """The module that a kernel's source makes."""
    name = "<bench>"
    # Triton reads the text of a function where Python would look for it.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, name, "exec"), module)  # noqa: S102 (a template of ours)
    return module


def _compiled(module: dict[str, Any]) -> object:
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    asked = module["specialise"](module["CONSTANTS"])
    source = compiler.ASTSource(module["kernel"], asked["signature"], asked["constants"], asked["hints"])
    return compiler.compile(source, target=GPUTarget("cuda", 90, 32), options=asked["options"])


def compiling(report: Report, place: Path) -> None:
    """Compiling one problem with each, both loaded, nothing looked up."""
    with open_cache(place / "compiling", durability="fast") as cache:
        triton, nvrtc = (cache.get_or_compile(PROBLEM, compiler=compiler) for compiler in ("triton", "nvrtc"))
        again = [_again(kernel, cache.text(kernel.record, SOURCE)) for kernel in (triton, nvrtc)]
    report(compare("compiling with Triton", again[0], "compiling with NVRTC", again[1], samples=5))


def _again(kernel: CompiledKernel, source: str) -> Thunk:
    return partial(COMPILERS[kernel.record.compiler].compile, source, kernel.record.arch)
