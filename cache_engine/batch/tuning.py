"""Times the configs that the cost model ranks best, so that the fastest one is used from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cache_engine.batch.warm import side_by_side
from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.cache.history import compared
from cache_engine.cache.queue import Priority
from cache_engine.cache.selection import Selection
from cache_engine.compilers import COMPILERS
from cache_engine.errors import GemmCacheError, GpuRequired
from cache_engine.kernels.agreement import Agreement, agreement
from cache_engine.kernels.select import choose, ranking
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.measurement import TUNED
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.gpu.timer import Timing

TOP = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config worth timing.

    Attributes:
        selection: the config, with the key and family of its kernel.
        predicted_cycles: clock cycles by the cost model, for ranking only.
        tier: the tier that has the kernel; ``None`` when the kernel must be compiled.
    """

    selection: Selection
    predicted_cycles: float
    tier: str | None

    def predicted_us(self, clock_khz: int) -> float:
        """The predicted time in microseconds, at a clock of ``clock_khz``."""
        return self.predicted_cycles / clock_khz * 1e3


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of timing a candidate: the timing or the error, and why the timing could not be stored."""

    candidate: Candidate
    timing: Timing | None
    error: Failure | None = None
    unkept: Failure | None = None

    @property
    def trouble(self) -> Failure | None:
        """The reason why later lookups cannot use the config, even if it is fastest; ``None`` if they can."""
        if self.timing is not None and not self.timing.verified:
            return Failure(f"its result is wrong: the largest relative error is {self.timing.max_rel_error:.2g}")
        return self.error if self.unkept is None else Failure(f"it was not stored: {self.unkept}")


def candidates(
    cache: Cache,
    problem: GemmProblem,
    families: Sequence[str] = (),
    compiler: str | None = None,
    top: int = TOP,
) -> list[Candidate]:
    """The configs of a problem to time, the one with the fewest predicted cycles first.

    Args:
        families: kernel families; ``top`` configs of each are returned. By default, only the family that serves without
            measurements.
        compiler: the compiler of the kernels; by default the one that each family needs.

    Raises:
        UsageError: when the request is invalid.
        CompilerMissing: when the compiler is not installed.
    """
    problem = cache.targeted(problem)
    if not families:
        cache.select(problem, compiler=compiler)  # refuses an unknown compiler
        families = (choose(problem, templates=COMPILERS[compiler or "nvrtc"].takes)[0].name,)
    found = []
    for family in dict.fromkeys(families):
        for cycles, config in ranking(problem, family, cache.selector.factors())[:top]:
            selection = cache.select(problem, family=family, compiler=compiler, config=config)
            present = cache.look_up(selection.key)
            found.append(Candidate(selection, cycles, None if present is None else present.tier))
    return sorted(found, key=lambda candidate: candidate.predicted_cycles)


def all_candidates(cache: Cache, chosen: Sequence[Selection], top: int) -> list[Selection]:
    """The kernels to time for the problems of ``chosen``, without duplicates; raises as ``candidates``.

    They come in the order of ``chosen``; for each problem, the best prediction first.
    """
    found: dict[CacheKey, Selection] = {}
    for own in chosen:
        for one in candidates(cache, own.problem, (own.family.name,), own.compiler.name, top):
            found.setdefault(one.selection.key, one.selection)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class DeviceAgreement:
    """The agreement between the cost model's predictions and the timings of one device."""

    device: str
    fingerprint: str
    agreement: Agreement


def agreements(cache: Cache) -> list[DeviceAgreement]:
    """For each device with timings in the store, how well the cost model's predictions agree with them."""
    if not cache.has_store:
        return []
    timings = cache.timings
    return [
        DeviceAgreement(timed[0].device.name, fingerprint, agreement(compared(timed)))
        for fingerprint in timings.fingerprints()
        if (timed := timings.of_device(fingerprint))
    ]


def tune(
    cache: Cache,
    chosen: Sequence[Candidate],
    jobs: int | None = None,
    on_compiled: Callable[[], None] = lambda: None,
    on_timed: Callable[[], None] = lambda: None,
    timer: Callable[[CompiledKernel], Timing] | None = None,
) -> list[Tuned]:
    """Compiles candidates in parallel, then times them one after another and stores every timing.

    A candidate that fails does not stop the others.

    Args:
        timer: times a kernel; by default on the local GPU.

    Returns:
        One result per candidate, in their order.

    Raises:
        GpuRequired: when there is no GPU; before anything is compiled.
        NotHereError: when something that all candidates need is not installed.
    """
    if timer is None:
        from cache_engine.gpu.probe import require_gpu

        require_gpu("timing kernels")
        timer = _on_the_gpu
    gets = [
        partial(
            cache.get_or_compile,
            one.selection.problem,
            family=one.selection.family.name,
            compiler=one.selection.compiler.name,
            config=one.selection.config,
            priority=Priority.WARM,
        )
        for one in chosen
    ]
    made: dict[int, CompiledKernel | GemmCacheError] = {}
    for number, got in side_by_side(gets, jobs):
        made[number] = got
        on_compiled()
    done = []
    for number, one in enumerate(chosen):
        done.append(_timed(cache, one, made[number], timer))
        on_timed()
    return done


def _timed(
    cache: Cache, one: Candidate, kernel: CompiledKernel | GemmCacheError, timer: Callable[[CompiledKernel], Timing]
) -> Tuned:
    if isinstance(kernel, GemmCacheError):
        return Tuned(one, None, Failure(str(kernel)))
    try:
        timing = timer(kernel)
    except GpuRequired:
        raise
    except (GemmCacheError, RuntimeError, MemoryError) as error:  # CuPy's errors derive from the last two
        return Tuned(one, None, Failure(str(error) or type(error).__name__))
    return Tuned(one, timing, unkept=cache.keep_timing(kernel, timing, TUNED))


def _on_the_gpu(kernel: CompiledKernel) -> Timing:
    from cache_engine.gpu.timer import time_kernel

    return time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
