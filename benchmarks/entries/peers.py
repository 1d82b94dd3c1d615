"""The store compared with its peers: what a lookup costs in a process that has nothing in memory.

Peers are imported where they are used. They come with the extra ``bench``; one that is not installed is left out.
None of them needs a GPU or a driver here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.entries import versus_cupy, versus_triton
from benchmarks.entries.subjects import PROBLEM
from benchmarks.results import LeftOut, Report
from benchmarks.timing import Thunk, compare
from cache_engine.cache.cache import CompiledKernel, open_cache
from cache_engine.model.artifact import SOURCE
from cache_engine.settings.extras import how_to_install

DISKCACHE, TRITON, CUDA_CORE, CUPY = "diskcache", "Triton", "cuda.core", "CuPy"
_MODULES = {DISKCACHE: "diskcache", TRITON: "triton.compiler", CUDA_CORE: "cuda.core.utils", CUPY: "cupy.cuda.compiler"}

_CUDA_CORE_GOAL = 1 / 5
_LOOKUP = "full lookup, problem to verified code"


@cache
def why_missing(peer: str) -> str | None:
    """The reason why a peer cannot be measured; ``None`` when it can."""
    try:
        importlib.import_module(_MODULES[peer])
    except ImportError as error:
        return f"{error}; run: {how_to_install('bench')}"
    return None


def announce(report: Report) -> None:
    """Reports the peers that are left out."""
    for peer in _MODULES:
        missing = why_missing(peer)
        if missing:
            report(LeftOut(peer, missing))


def lookups(report: Report, place: Path) -> None:
    """A lookup from the problem on, key, reading and checking included, compared with each peer's.

    Nothing is cached in memory, so each lookup reads from disk, as the first one of a process does.
    """
    with open_cache(place / "lookups", durability="fast", memory_bytes=0) as cache:
        kernel = cache.get_or_compile(PROBLEM)
        look = partial(cache.get_or_compile, PROBLEM)
        plain = place / "lookup.cubin"
        plain.write_bytes(kernel.cubin)
        report(compare(_LOOKUP, look, "reading a plain file", plain.read_bytes, calls=10))
        with diskcache_of(place / "diskcache") as peer:
            if peer is not None:
                peer["key"] = kernel.cubin
                report(compare(_LOOKUP, look, "diskcache get (unverified)", partial(peer.get, "key"), calls=10))
        if not why_missing(CUDA_CORE):
            _beside_cuda_core(report, look, place / "cuda.core", kernel, cache.text(kernel.record, SOURCE))
    if not why_missing(TRITON):
        _works(report, TRITON, partial(versus_triton.hit, report, _LOOKUP, place / "triton"))
        _works(report, TRITON, partial(versus_triton.compiling, report, place))
        _works(report, TRITON, partial(versus_triton.adapter, report, place / "adapter"))
    if not why_missing(CUPY):
        _works(report, CUPY, partial(versus_cupy.adapter, report, place / "cupy"))


@contextmanager
def diskcache_of(folder: Path) -> Iterator[Any]:
    """An empty diskcache; ``None`` where it is not installed."""
    if why_missing(DISKCACHE):
        yield None
        return
    import diskcache

    with diskcache.Cache(str(folder)) as peer:
        yield peer


def _beside_cuda_core(report: Report, look: Thunk, folder: Path, kernel: CompiledKernel, source: str) -> None:
    """Compared with cuda.core's program cache, which keys the text of the source and checks nothing of what it reads.

    Its file holds the same CUBIN; its source is the same text, which it is given and need not generate.
    """
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

    options = ProgramOptions(arch=PROBLEM.arch, std="c++17")
    with FileStreamProgramCache(folder) as peer:

        def key() -> Any:
            return make_program_cache_key(code=source, code_type="c++", options=options, target_type="cubin")

        def get() -> object:
            return peer[key()]

        def compiled() -> object:
            return Program(source, "c++", options=options).compile("cubin", cache=peer)

        peer[key()] = kernel.cubin
        if _works(report, CUDA_CORE, compiled):
            name = "cuda.core key, get (unverified)"
            report(compare(_LOOKUP, look, name, get, goal_ratio=_CUDA_CORE_GOAL, calls=10))
            report(compare(_LOOKUP, look, "cuda.core Program.compile, hit", compiled, calls=10))
        _adapter_of_cuda_core(report, folder / "store", peer, key(), kernel.cubin)


def _adapter_of_cuda_core(report: Report, folder: Path, peer: Any, key: Any, code: bytes) -> None:
    """A hit through the adapter, every byte checked, compared with cuda.core's own cache of the same program."""
    from cache_engine.adapters.cuda_core import ProgramCache
    from cache_engine.adapters.shelf import shelf

    with ProgramCache(folder) as ours:
        ours[key] = code
        own = partial(peer.get, key)
        name = "cuda.core's hit in our store"
        report(compare(name, partial(ours.get, key), "in its own cache (unverified)", own, goal_ratio=2, calls=10))
    if (opened := shelf(folder)) is not None:
        opened.close()


def _works(report: Report, peer: str, call: Thunk) -> bool:
    """Whether a peer does what it is called for; if not, it is reported as left out."""
    try:
        call()
    except Exception as error:  # a peer may fail in any way it likes
        report(LeftOut(peer, f"{type(error).__name__}: {error}"))
        return False
    return True
