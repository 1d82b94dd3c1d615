"""Gets many kernels at once, with parallel compiles (the compiler releases the GIL)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cache_engine.catalogue import ModelShape
from cache_engine.engine.cache import Cache, CompiledKernel
from cache_engine.errors import GemmCacheError, NotHereError, UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey

MOST_PROBLEMS = 100_000
"""Of one warm-up: choosing their configs takes seconds."""


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


def problems_of(
    shapes: Sequence[ModelShape],
    ms: Sequence[int],
    dtype: DType,
    archs: Sequence[str | None],
    *,
    most: int = MOST_PROBLEMS,
    **asked: Any,
) -> list[GemmProblem]:
    """Every shape with every m, or with the shape's own m if it has one, on every target.

    Args:
        most: the limit on their number.
        asked: other fields of each problem, by the names of ``GemmProblem``.

    Raises:
        InvalidProblem: when one of them is beyond what is supported.
        UsageError: when there are too many.
    """
    count = len(archs) * sum(1 if shape.m is not None else len(ms) for shape in shapes)
    if count > most:
        raise UsageError(
            f"these shapes, sizes of m and targets make {count:,} problems, and the limit is {most:,} at a time; "
            "ask for fewer, in several runs"
        )
    return [
        replace(shape.problem(m, dtype), arch=arch, **asked)
        for arch in archs
        for shape in shapes
        for m in ((shape.m,) if shape.m is not None else ms)
    ]


def one_per_key(
    cache: Cache, problems: Sequence[GemmProblem], compiler: str = "nvrtc"
) -> tuple[list[GemmProblem], list[Warmed]]:
    """One problem per kernel that serves some of these, and the problems that no kernel can serve.

    Sizes that are arguments are no part of the key, so many problems share a kernel.

    Raises:
        NotHereError: when the compiler is not installed.
    """
    chosen: dict[CacheKey, GemmProblem] = {}
    refused: list[Warmed] = []
    for asked in problems:
        problem = cache.targeted(asked)
        try:
            chosen.setdefault(cache.select(problem, compiler=compiler).key, problem)
        except NotHereError:
            raise
        except GemmCacheError as error:
            refused.append(Warmed(problem, None, str(error)))
    return list(chosen.values()), refused


def kept(cache: Cache, problems: Sequence[GemmProblem], **choice: Any) -> int:
    """The number of these problems, with their targets set, whose kernel is stored. Reads no kernel.

    Args:
        choice: of ``Cache.select``.
    """
    keys = (cache.select(problem, **choice).key for problem in problems)
    return sum(os.path.exists(cache.layout.record_path(key)) for key in keys)


def compile_all(
    cache: Cache,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Warmed], None] = lambda _: None,
    compiler: str = "nvrtc",
) -> list[Warmed]:
    """Gets the kernels of all problems; a failure does not stop the others.

    Args:
        jobs: how many at a time; by default one per processor.
        on_done: called as each is finished, in this thread.

    Returns:
        One result per problem, in the order they were finished.

    Raises:
        NotHereError: when something is not installed, so that none can be made.
    """
    done: list[Warmed] = []
    gets = [partial(cache.get_or_compile, problem, compiler=compiler) for problem in problems]
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
    pool = ThreadPoolExecutor(max_workers=jobs or len(os.sched_getaffinity(0)))
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
