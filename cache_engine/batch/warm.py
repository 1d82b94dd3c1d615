"""Gets many kernels at once, with parallel compiles (the compiler releases the GIL)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

from cache_engine.batch.estimate import Estimate, estimate
from cache_engine.engine.cache import Cache, CompiledKernel
from cache_engine.engine.covering import Covering
from cache_engine.errors import GemmCacheError, NotHereError
from cache_engine.insight.coverage import Cell, distinct
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.sizes import count_sizes


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of one problem: its kernel, or the error as text."""

    problem: GemmProblem
    kernel: CompiledKernel | None
    error: str = ""

    @property
    def trouble(self) -> str:
        """Why the kernel is not in the store; empty when it is."""
        if self.kernel is None:
            return self.error
        return f"it was compiled but not stored: {self.kernel.unpublished}" if self.kernel.unpublished else ""


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """What a warm-up would compile.

    Attributes:
        cells: each shape on each target, with the kernels that serve it.
        kernels: each of them once.
        stored: the keys of those that the store has.
        estimate: how long compiling the others takes.
    """

    cells: list[list[Cell]]
    kernels: list[Covering]
    stored: set[CacheKey]
    estimate: Estimate

    @property
    def missing(self) -> list[Covering]:
        """The kernels that would be compiled."""
        return [kernel for kernel in self.kernels if kernel.key not in self.stored]

    @property
    def problems(self) -> int:
        """How many problems are asked for: each m of each shape on each target."""
        return sum(count_sizes(cell.ms) for row in self.cells for cell in row)

    @property
    def refused(self) -> list[Cell]:
        """The shapes that no kernel serves on a target."""
        return [cell for row in self.cells for cell in row if cell.refused]


def plan_warming(cache: Cache, cells: list[list[Cell]], jobs: int | None = None) -> WarmPlan:
    """What getting a coverage's kernels would do, ``jobs`` at a time. For the estimate it reads records."""
    kernels = distinct(cells)
    there = stored(cache, [kernel.key for kernel in kernels])
    missing = [kernel.selection for kernel in kernels if kernel.key not in there]
    return WarmPlan(cells, kernels, there, estimate(cache, missing, jobs or processors()))


def stored(cache: Cache, keys: Iterable[CacheKey]) -> set[CacheKey]:
    """Those of the keys whose kernel is in the store; reads none of them. Without a store, none."""
    if not cache.has_store:
        return set()
    return {key for key in keys if os.path.exists(cache.layout.record_path(key))}


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def compile_all(
    cache: Cache,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Warmed], None] = lambda _: None,
    family: str | None = None,
    compiler: str | None = None,
) -> list[Warmed]:
    """Gets the kernels of all problems; a failure does not stop the others.

    Args:
        jobs: how many at a time; by default one per processor.
        on_done: called as each is finished, in this thread.
        family, compiler: as of ``Cache.get_or_compile``.

    Returns:
        One result per problem, in the order they were finished.

    Raises:
        NotHereError: when something is not installed, so that none can be made.
    """
    done: list[Warmed] = []
    gets = [partial(cache.get_or_compile, problem, family=family, compiler=compiler) for problem in problems]
    for number, got in side_by_side(gets, jobs):
        problem = problems[number]
        warmed = Warmed(problem, None, str(got)) if isinstance(got, GemmCacheError) else Warmed(problem, got)
        done.append(warmed)
        on_done(warmed)
    return done


def side_by_side(
    gets: Sequence[Callable[[], CompiledKernel]], jobs: int | None = None
) -> Iterator[tuple[int, CompiledKernel | GemmCacheError]]:
    """Runs calls that get kernels, several at a time; yields the number and the result of each when it finishes.

    Args:
        jobs: how many at a time; by default one per processor.

    Raises:
        NotHereError: when something is not installed, so that none can succeed.
    """
    pool = ThreadPoolExecutor(max_workers=jobs or processors())
    try:
        futures = {pool.submit(get): number for number, get in enumerate(gets)}
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            elif isinstance(error, GemmCacheError) and not isinstance(error, NotHereError):
                yield futures[future], error
            else:
                raise error
    finally:
        # After Ctrl-C: started compiles finish, so that no entry is left incomplete; the rest is dropped.
        pool.shutdown(cancel_futures=True)
