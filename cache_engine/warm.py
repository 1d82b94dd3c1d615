"""Getting many kernels at once, several compiles side by side (the compiler lets other threads run)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from cache_engine.engine import Cache, CompiledKernel
from cache_engine.errors import GemmCacheError
from cache_engine.model.gemm import GemmProblem


@dataclass(frozen=True, slots=True)
class Warmed:
    """What became of one problem: its kernel, or the error in words."""

    problem: GemmProblem
    kernel: CompiledKernel | None
    error: str = ""


def compile_all(
    cache: Cache,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Warmed], None] = lambda _: None,
) -> list[Warmed]:
    """Gets the kernels of all problems; one that fails does not keep the others from being made.

    Args:
        jobs: how many at a time; by default one per processor.
        on_done: called as each is finished, in this thread.

    Returns:
        One result per problem, in the order they were finished.
    """
    done: list[Warmed] = []
    pool = ThreadPoolExecutor(max_workers=jobs or len(os.sched_getaffinity(0)))
    try:
        futures = {pool.submit(cache.get_or_compile, problem): problem for problem in problems}
        for future in as_completed(futures):
            try:
                warmed = Warmed(futures[future], future.result())
            except GemmCacheError as error:
                warmed = Warmed(futures[future], None, str(error))
            done.append(warmed)
            on_done(warmed)
    finally:
        # After Ctrl-C: what has started is finished, so no entry is left half made; the rest is dropped.
        pool.shutdown(cancel_futures=True)
    return done
