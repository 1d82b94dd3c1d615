"""Triton's kernels through our cache, compared with Triton itself: a hit, and compiling."""

from __future__ import annotations

import inspect
import linecache
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import ROOT
from benchmarks.entries.subjects import PROBLEM
from benchmarks.results import Report, Result, Score
from benchmarks.timing import Thunk, compare, processor_seconds
from cache_engine.cache.cache import CompiledKernel, open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.model.artifact import SOURCE

_HIT_GOAL = 1 / 8
_AGAIN_GOAL, _FIRST_GOAL = 1.05, 1.5
_STARTS, _AT_ONCE = 9, 8
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
        text = cache.text(made.record, SOURCE)
    module = _defined(text)
    there = {"GEMM_CACHE_DIR": str(folder / "store"), "TRITON_CACHE_DIR": str(folder / "theirs")}
    there |= dict(flag.split("=") for flag in COMPILERS["triton"].flags)
    with patch.dict(os.environ, there), knobs.cache.scope():
        from cache_engine.adapters.shelf import forget_written, shelf
        from cache_engine.adapters.triton import CacheManager

        shelf.cache_clear()  # of another directory

        def compiled(manager: type) -> object:
            knobs.cache.manager_class = manager
            return _compiled(module)

        def first() -> object:
            forget_written()
            return compiled(CacheManager)

        compiled(CacheManager)  # ours first, since it takes what Triton's directory has
        again, own = partial(compiled, CacheManager), partial(compiled, FileCacheManager)
        own()
        for name, ours, goal in (("again", again, _AGAIN_GOAL), ("first in a process", first, _FIRST_GOAL)):
            report(compare(f"Triton's hit in our store, {name}", ours, _OWN, own, goal_ratio=goal, samples=100))
        if (opened := shelf()) is not None:
            opened.close()
        shelf.cache_clear()
    _processes(report, folder, cache_of=there, source=text)


def _processes(report: Report, folder: Path, cache_of: dict[str, str], source: str) -> None:
    """Processes that get one kernel: what a hit takes with all that is imported for it, and who compiles on a miss."""
    (folder / "given.py").write_text(source)
    code = f"from __future__ import annotations\n{inspect.getsource(_compiled)}\nimport given\n_compiled(vars(given))\n"
    own = {**os.environ, **cache_of, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    ours = {**own, "TRITON_CACHE_MANAGER": "cache_engine.adapters.triton:CacheManager"}
    process = [sys.executable, "-c", code]
    at_once = {**ours, "GEMM_CACHE_DIR": str(folder / "at-once")}
    for running in [subprocess.Popen(process, env=at_once) for _ in range(_AT_ONCE)]:
        if running.wait():
            raise RuntimeError("a process that compiles with Triton failed")
    with open_cache(folder / "at-once") as cache:
        compiles = cache.tally().totals.compiles
    report(
        Score("compiles of a Triton kernel in our store", compiles, f"{_AT_ONCE} processes that ask at once", goal=1)
    )
    starts = [[processor_seconds(process, env) for env in (ours, own)] for _ in range(_STARTS + 1)]
    seconds, beside = (median(each) for each in zip(*starts[1:], strict=True))
    name = "Triton's hit in our store, a new process, processor time"
    report(Result(name, seconds, _OWN, beside, goal_ratio=_FIRST_GOAL))


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
