"""Gets many kernels at once, with parallel compiles (the compiler releases the GIL)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.cache.miss import compile_of
from cache_engine.cache.proving import Proofs
from cache_engine.cache.queue import Priority
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, NotHereError
from cache_engine.evaluator.catalogue import TOKENS, ModelShape, model_shapes, shapes_of
from cache_engine.insight.coverage import Cell, Covering, coverage, distinct, require_served, wanted
from cache_engine.model.gemm import DType, GemmProblem, ProblemOptions
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.model.shapes import count_sizes, parse_sizes
from cache_engine.process import processors
from cache_engine.usage.compile_time import CompileTimes, predicted_compile_seconds


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the time to compile some kernels.

    Attributes:
        seconds: the predicted seconds until all are compiled, with as many parallel compiles as were asked for, but no
            more than the setting ``compile_slots`` allows; 0 where there is nothing to compile.
        times: the model that predicts the time of each compile; ``None`` where there is nothing to compile.
    """

    seconds: float
    times: CompileTimes | None

    @property
    def records(self) -> int:
        """The number of compile records that the estimate is made from."""
        return 0 if self.times is None else self.times.records

    @property
    def error(self) -> float | None:
        """The median error of predicting one compile, as a share of its time; ``None`` with too few records."""
        return None if self.times is None else self.times.error

    @property
    def by(self) -> str:
        """The basis of the prediction, in words; empty where there is nothing to compile."""
        return "" if self.times is None else f"predicted {self.times.in_words}"


def estimate(cache: Cache, missing: Sequence[Selection], jobs: int) -> Estimate:
    """Estimates the time to compile the kernels ``missing``, ``jobs`` at a time.

    No more are compiled at a time than the setting ``compile_slots`` allows. Reads the store's records, unless nothing
    is missing.
    """
    if not missing:
        return Estimate(0.0, None)
    each, times = predicted_compile_seconds(list(map(compile_of, missing)), cache.records() if cache.has_store else ())
    return Estimate(max(*each, sum(each) / min(jobs, cache.settings.slots)), times)


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of getting the kernel of one problem.

    Attributes:
        problem: the problem that was requested.
        kernel: its kernel; ``None`` after an error.
        error: why there is no kernel; ``None`` where there is one.
    """

    problem: GemmProblem
    kernel: CompiledKernel | None
    error: Failure | None = None

    @property
    def trouble(self) -> Failure | None:
        """The reason why the kernel is not in the store; ``None`` when it is."""
        if self.kernel is None or self.kernel.unpublished is None:
            return self.error
        return Failure(f"it was compiled but not stored: {self.kernel.unpublished}")


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """A plan of a warm-up.

    Attributes:
        cells: each shape on each target, with the kernels that serve it.
        kernels: the kernels of all cells, each once.
        stored: the keys of those kernels that the store has.
        estimate: the time to compile the kernels that the store lacks.
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
        """The number of problems requested: each m of each shape on each target."""
        return sum(count_sizes(cell.ms) for row in self.cells for cell in row)

    @property
    def refused(self) -> list[Cell]:
        """The shapes that no kernel serves on a target."""
        return [cell for row in self.cells for cell in row if cell.refused]


def plan_warming(cache: Cache, cells: list[list[Cell]], jobs: int | None = None) -> WarmPlan:
    """Plans a warm-up: finds which kernels of the cells the store has, and predicts the time to compile the others.

    Reads the store's records for the prediction, which is for ``jobs`` parallel compiles.
    """
    kernels = distinct(cells)
    there = stored(cache, [kernel.key for kernel in kernels])
    missing = [kernel.selection for kernel in kernels if kernel.key not in there]
    return WarmPlan(cells, kernels, there, estimate(cache, missing, jobs or processors()))


def stored(cache: Cache, keys: Iterable[CacheKey]) -> set[CacheKey]:
    """The keys among ``keys`` whose kernel is in the store; empty without a store. Reads no kernel."""
    if not cache.has_store:
        return set()
    return {key for key in keys if os.path.exists(cache.layout.record_path(key))}


def problems_of(
    cache: Cache,
    model: str | Path | Iterable[ModelShape],
    *,
    arch: str | Sequence[str] | None = None,
    m: str | Iterable[int] = TOKENS,
    family: str | None = None,
    compiler: str | None = None,
    **asked: Unpack[ProblemOptions],
) -> list[GemmProblem]:
    """One problem for each kernel that a model's layers need: once ``warm`` has got their kernels, every m is a hit.

    Compiles nothing, and reads no kernel. Takes milliseconds for each shape and target.

    Example:
        ```python
        with open_cache() as cache:
            problems = problems_of(cache, "Llama-3.1-8B", arch="sm_90a", m="1-4096")
            failed = [one for one in warm(cache, problems) if one.trouble]
        ```

    Args:
        cache: the cache that will serve the kernels. Its settings and timings choose their configs.
        model: the name of a public model, a CSV file as ``table_shapes`` reads it, or shapes of your own.
        arch: one target or several; by default the local GPU's, else the setting ``default_arch``.
        m: numbers of tokens, as text with ranges such as ``"1,16,64-512"``, or as whole numbers. A shape that has its
            own m keeps it.
        family: the kernel family, such as ``"hopper"``; by default the best for each problem. Give ``warm`` the same.
        compiler: the compiler, such as ``"nvrtc"``; by default the one that the family needs. Give ``warm`` the same.
        asked: further fields of each problem, by the names of ``GemmProblem``'s parameters, such as ``dtype="fp16"``.
            By default the epilogue is each shape's own, such as a bias. ``mode`` makes one kernel for all experts of a
            layer: with ``"grouped"``, m is the rows of all experts together; with ``"masked"``, each expert has room
            for every token.

    Raises:
        UsageError: when there is no such model or file, or no kernel can serve one of the shapes.
        InvalidProblem: when a type, layout, target or size is not supported.
        CompilerMissing: when the compiler is not installed, so that no key can be made.
    """
    options: dict[str, Any] = {"dtype": DType.BF16, **asked}
    rows = wanted(
        shapes_of(model) if isinstance(model, str | Path) else list(model),
        archs=[arch] if arch is None or isinstance(arch, str) else arch,
        ms=parse_sizes(m if isinstance(m, str) else ",".join(map(str, m))),
        **options,
    )
    cells = coverage(cache, rows, family, compiler)
    require_served(cells)
    return [kernel.selection.problem for kernel in distinct(cells)]


def warm(
    cache: Cache,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Warmed], None] = lambda _: None,
    family: str | None = None,
    compiler: str | None = None,
    *,
    load: bool = False,
) -> list[Warmed]:
    """Gets the kernels of all problems, and compiles those that are missing. A failure does not stop the others.

    On a GPU, families that need a proof before they serve there are then proved (``cache.proving``).

    Args:
        cache: the cache where the kernels are looked up and stored.
        problems: for example those that ``problems_of`` returns.
        jobs: the number of parallel compiles; by default one per processor. With the default ``compile_slots`` setting,
            a store compiles on one processor fewer.
        on_done: called in this thread after each problem.
        family: the kernel family; by default the best for each problem.
        compiler: the compiler; by default the one that the family needs.
        load: also load each kernel on the current GPU and unload it, before a launch needs it; a kernel that the
            driver refuses counts as failed.

    Returns:
        One result per problem, in the order in which they were finished.

    Raises:
        GpuRequired: when ``load`` is set and there is no GPU; nothing is compiled then.
        NotHereError: when a compiler or package that all kernels need is not installed.
    """
    if load:
        from cache_engine.gpu.probe import require_gpu

        require_gpu("loading what is warmed")
    done: list[Warmed] = []
    get = partial(cache.get_or_compile, family=family, compiler=compiler, priority=Priority.WARM)
    gets = [partial(get, problem) for problem in problems]
    for number, got in side_by_side(gets, jobs):
        problem = problems[number]
        warmed = Warmed(problem, None, Failure(str(got))) if isinstance(got, GemmCacheError) else Warmed(problem, got)
        warmed = load_on_gpu(warmed) if load else warmed
        done.append(warmed)
        on_done(warmed)
    if family is None and compiler is None:
        with closing(Proofs(cache)) as proofs:
            proofs.ahead(one.problem for one in done if one.kernel is not None)
    return done


def load_on_gpu(warmed: Warmed) -> Warmed:
    """Loads a kernel on the current GPU, and unloads it. If the driver refuses the kernel, the result has that error.

    Raises:
        GpuRequired: when there is no GPU.
    """
    from cache_engine.gpu.launch import load_function

    kernel = warmed.kernel
    if kernel is None:
        return warmed
    try:
        load_function(kernel.cubin, kernel.entry, kernel.launch.shared_bytes)
    except NotHereError:
        raise
    except (GemmCacheError, RuntimeError, MemoryError) as error:  # CuPy's errors derive from the last two
        return Warmed(warmed.problem, None, Failure(f"the GPU does not load it: {error}"))
    return warmed


def side_by_side(
    gets: Sequence[Callable[[], CompiledKernel]], jobs: int | None = None
) -> Iterator[tuple[int, CompiledKernel | GemmCacheError]]:
    """Runs calls that get kernels, several at a time. When a call finishes, yields its number and its kernel or error.

    Args:
        jobs: the number of parallel calls; by default one per processor.

    Raises:
        NotHereError: when a compiler or package that all calls need is not installed.
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


# ---- The demonstration store: compiled kernels of public models, and requests for them ----

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

# (model, operation, m, dtype, out dtype): decode and prefill sizes; routers in fp32, as their models compute them.
_CHOICES = (
    ("DeepSeek-V3", "shared gate+up", 4096, DType.BF16, None),
    ("DeepSeek-V3", "o", 128, DType.BF16, None),
    ("DeepSeek-V3", "W_UK absorb", 64, DType.BF16, None),
    ("DeepSeek-V3", "router", 512, DType.FP32, None),
    ("Llama-3.1-8B", "qkv", 1, DType.BF16, None),
    ("Llama-3.1-8B", "gate+up", 2048, DType.FP16, None),
    ("Llama-3.1-8B", "lm_head", 1, DType.BF16, DType.FP32),
    ("Qwen3-8B", "down", 512, DType.BF16, None),
    ("Qwen3-30B-A3B", "expert gate+up", 32, DType.BF16, None),
    ("Qwen3-30B-A3B", "router", 256, DType.FP32, None),
    ("gpt-oss-20b", "expert down", 64, DType.BF16, None),
    ("Mixtral-8x7B", "router", 64, DType.FP32, None),
)

# Steps of a server by how many tokens each computes: many of decode, as batches grow, and a few of prefill.
_STEPS = {1: 24, 2: 12, 4: 12, 8: 12, 16: 12, 32: 8, 64: 8, 128: 4, 256: 2, 512: 2, 1024: 1, 2048: 1, 4096: 1}


def sample_problems() -> list[GemmProblem]:
    """The problems of the demonstration store: each kind of kernel on each architecture."""
    shapes = _shapes()
    return [
        shapes[model, operation].problem(m, dtype, out_dtype).on(arch)
        for model, operation, m, dtype, out_dtype in _CHOICES
        for arch in ARCHITECTURES
    ]


def request_kernels(cache: Cache, stored: Collection[CacheKey]) -> int:
    """Requests stored kernels as a server would, for each layer of each step; returns the number of requests.

    Each request is really made, and is recorded as demand. A size whose kernel is not among ``stored`` is left out, so
    nothing is compiled.
    """
    shapes, requests = _shapes(), 0
    for model, operation, _, dtype, out_dtype in _CHOICES:
        shape = shapes[model, operation]
        for arch in ARCHITECTURES:
            for m, steps in _STEPS.items():
                problem = shape.problem(m, dtype, out_dtype).on(arch)
                if cache.select(problem).key in stored:
                    for _ in range(steps * shape.layers):
                        cache.get_or_compile(problem)
                    requests += steps * shape.layers
    return requests


def _shapes() -> dict[tuple[str, str], ModelShape]:
    return {(shape.model, shape.operation): shape for shape in model_shapes()}
