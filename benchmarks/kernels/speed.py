"""Our kernels compared with cuBLAS, on the local GPU and the shapes of public models.

Each case is saved at once, so that a run can resume.

There is one JSON file for each kind of GPU and element type, and the same as CSV. A case is measured again
when its kernel, the GPU or the driver is another than it was.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks.results import LeftOut
from cache_engine._version import version_and_build
from cache_engine.batch.warm import warm
from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.errors import GemmCacheError, NotHereError, UsageError
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.gpu.launch import cupy_version
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.probe import driver_release, require_gpu
from cache_engine.gpu.timer import Timing, time_kernel
from cache_engine.inputs import open_input
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, GemmProblem

MODELS = ("DeepSeek-V3", "Llama-3.1-8B", "Llama-3.1-70B")
TOKENS = (1, 16, 64, 256, 1024, 4096)
FAMILIES = ["tensor_core", "hopper", "triton"]
"""The families that compete, where their compilers and targets are here."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of a model with a number of tokens, for one family."""

    model: str
    operation: str
    problem: GemmProblem
    family: str


class Run(msgspec.Struct, frozen=True):
    """One call of this program: on what, with what, when.

    Attributes:
        driver_release: the driver's own version; ``None`` where it cannot be read.
        versions: of the programs that took part, by name.
        date: when it started, UTC.
    """

    command: str
    date: str
    device: DeviceFingerprint
    driver_release: str | None
    versions: dict[str, str]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case; times in µs, ``None`` where ``error`` says why there are none.

    Attributes:
        run: the place of its run among the file's.
        key: the kernel's CacheKey.
        ratio: cuBLAS's median over the kernel's: above 1 the kernel is the faster.
    """

    run: int
    model: str
    operation: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    family: str
    key: str
    compiler: str
    config: str
    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    repeats: int = 0
    tflops: float | None = None
    reference: str | None = None
    reference_median_us: float | None = None
    ratio: float | None = None
    max_rel_error: float | None = None
    verified: bool = False
    sm_clock_mhz: int | None = None
    seed: int | None = None
    error: str = ""


class Kept(msgspec.Struct):
    """All of a file: runs, and measurements that refer to them."""

    format: int
    runs: list[Run]
    measurements: list[Measured]


@dataclass(frozen=True, slots=True)
class Summary:
    """A family at a number of tokens: how many were measured, the median ratio, how many are right."""

    family: str
    m: int
    count: int
    median_ratio: float | None
    verified: int


@dataclass(frozen=True, slots=True)
class Report:
    """The results of ``measure``.

    Attributes:
        file: where everything is; the same as CSV is next to it.
        measured, kept, left: cases measured now, measured before, and left for another run.
        left_out: families that are unavailable here.
    """

    file: Path
    measured: int
    kept: int
    left: int
    left_out: list[LeftOut]
    measurements: list[Measured]


def cases(families: Iterable[str] = FAMILIES, dtype: DType = DType.BF16) -> list[Case]:
    """All cases, few tokens first."""
    shapes = [shape for model in MODELS for shape in model_shapes(model)]
    return [
        Case(shape.model, shape.operation, shape.problem(m, dtype), family)
        for m in TOKENS
        for shape in shapes
        for family in families
    ]


def measure(
    cache: Cache,
    folder: Path,
    command: str,
    on_measured: Callable[[Measured], None] = lambda _: None,
    *,
    limit: int | None = None,
    seconds: float | None = None,
) -> Report:
    """Measures the cases that the folder's file does not have yet.

    Args:
        command: what was typed, for the file.
        on_measured: called with each as it is known.
        limit, seconds: after so many cases, or so long, no other is begun.

    Raises:
        NotHereError: when there is no GPU, or no cuBLAS.
        GemmCacheError: when the GPU itself failed; earlier measurements are saved.
    """
    device = require_gpu("bench kernels")
    until = None if seconds is None else time.monotonic() + seconds
    families, left_out = _usable(cache)
    chosen = cases(families)
    file = folder / file_name(device, chosen[0].problem.dtype if chosen else DType.BF16)
    kept = load(file)
    done = _done(kept, device)
    todo = [case for case in chosen if _key(cache, case) != done.get(_name(case))]
    found = len(chosen) - len(todo)
    kept.runs.append(_run(command, device))
    measured = 0
    for case, kernel in _compiled(cache, todo[:limit], until):
        error: Exception | None = None
        try:
            timing: Timing | str = (
                kernel
                if isinstance(kernel, str)
                else time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
            )
        except NotHereError:
            raise  # nothing could be measured
        except GemmCacheError as refused:
            timing = str(refused)
        except RuntimeError as failed:  # base of what CuPy raises for CUDA; this process can use the GPU no more
            timing, error = f"the GPU failed: {failed}", failed
        measurement = _measured(len(kept.runs) - 1, case, _key(cache, case), kernel, timing)
        kept.measurements = [one for one in kept.measurements if _same(one) != _same(measurement)] + [measurement]
        save(file, kept)
        on_measured(measurement)
        measured += 1
        if error is not None:
            raise GemmCacheError(f"{timing}, at {_name(case)}; start again to go on with what comes next") from error
        shared_pool().free_all()
    return Report(file, measured, found, len(todo) - measured, left_out, kept.measurements)


def summarise(measurements: Sequence[Measured]) -> list[Summary]:
    """By family and number of tokens."""
    groups = sorted({(one.family, one.m) for one in measurements})
    summaries = []
    for family, m in groups:
        of_it = [one for one in measurements if (one.family, one.m) == (family, m)]
        ratios = [one.ratio for one in of_it if one.ratio is not None and one.verified]
        median = statistics.median(ratios) if ratios else None
        summaries.append(Summary(family, m, len(of_it), median, sum(one.verified for one in of_it)))
    return summaries


# ---- The file ----


def file_name(device: DeviceFingerprint, dtype: DType) -> str:
    """Such as ``kernels_nvidia_h100_80gb_hbm3_bf16.json``."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in device.name.lower())
    return f"kernels_{letters}_{dtype}.json"


def load(file: Path) -> Kept:
    """The results in a file; none when there is no file.

    Raises:
        UsageError: when it is no such file.
    """
    try:
        kept = msgspec.json.decode(_read(file), type=Kept)
    except FileNotFoundError:
        return Kept(_FORMAT, [], [])
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} holds no measurements of kernels ({error}); move the file") from error
    if kept.format != _FORMAT:
        raise UsageError(f"{file} has format {kept.format}, and this program reads {_FORMAT}; move the file")
    return kept


def _read(file: Path) -> bytes:
    with open_input(file) as opened:
        return opened.read()


def save(file: Path, kept: Kept) -> None:
    """Writes the file and the same as CSV, each at once and whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    columns = ("device", "driver_release", "date", *Measured.__struct_fields__[1:])
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for one in kept.measurements:
        run = kept.runs[one.run]
        values = {name: getattr(one, name) for name in columns[3:]}
        writer.writerow({"device": run.device.name, "driver_release": run.driver_release, "date": run.date, **values})
    _replace(file, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    _replace(file.with_suffix(".csv"), text.getvalue().encode())


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(file)


# ---- Parts of measuring ----


def _usable(cache: Cache) -> tuple[list[str], list[LeftOut]]:
    """The families whose compilers are here, and the others with the reason."""
    usable, left_out = [], []
    problem = cache.targeted(GemmProblem(16, 128, 128))
    for family in FAMILIES:
        try:
            cache.select(problem, family=family).compiler.load()
            usable.append(family)
        except (NotHereError, UsageError) as error:
            left_out.append(LeftOut(family, str(error)))
    return usable, left_out


def _compiled(cache: Cache, todo: Sequence[Case], until: float | None) -> Iterator[tuple[Case, CompiledKernel | str]]:
    """Each case with its kernel, or why there is none, until time is up; those of one m are compiled side by side."""
    for _, group in groupby(todo, key=lambda case: case.problem.m):
        several = list(group)
        if _over(until):
            return
        for family in FAMILIES:
            warm(cache, [cache.targeted(case.problem) for case in several if case.family == family], family=family)
        for case in several:
            if _over(until):
                return
            try:
                yield case, cache.get_or_compile(cache.targeted(case.problem), family=case.family)
            except GemmCacheError as error:
                yield case, str(error)


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _run(command: str, device: DeviceFingerprint) -> Run:
    versions = {"gemm-cache": version_and_build(), "Python": platform.python_version(), "CuPy": cupy_version()}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(command, date, device, driver_release(), versions)


def _done(kept: Kept, device: DeviceFingerprint) -> dict[str, str]:
    """The cases measured on this GPU with this driver, and the keys of the kernels."""
    release = driver_release()
    runs = [number for number, run in enumerate(kept.runs) if (run.device, run.driver_release) == (device, release)]
    return {_same(one): one.key for one in kept.measurements if one.run in runs}


def _key(cache: Cache, case: Case) -> str:
    return cache.select(cache.targeted(case.problem), family=case.family).key


def _name(case: Case) -> str:
    p = case.problem
    return f"{case.model} {case.operation} {p.m} × {p.n} × {p.k}, batch {p.batch}, {case.family}"


def _same(one: Measured) -> str:
    """The name that ``_name`` gives to its case."""
    return f"{one.model} {one.operation} {one.m} × {one.n} × {one.k}, batch {one.batch}, {one.family}"


def _measured(run: int, case: Case, key: str, kernel: CompiledKernel | str, timing: Timing | str) -> Measured:
    p = case.problem
    about = {
        "run": run, "model": case.model, "operation": case.operation, "m": p.m, "n": p.n, "k": p.k, "batch": p.batch,
        "dtype": p.dtype.value, "family": case.family, "key": key,
        "compiler": "" if isinstance(kernel, str) else f"{kernel.record.compiler} {kernel.record.compiler_version}",
        "config": "" if isinstance(kernel, str) else str(kernel.record.config),
    }  # fmt: skip
    if isinstance(timing, str):
        return Measured(**about, error=timing)  # type: ignore[arg-type]
    return Measured(
        **about,  # type: ignore[arg-type]
        median_us=timing.median_us,
        p10_us=timing.p10_us,
        p90_us=timing.p90_us,
        repeats=timing.repeats,
        tflops=timing.tflops,
        reference=timing.reference,
        reference_median_us=timing.reference_median_us,
        ratio=timing.speed_ratio,
        max_rel_error=timing.max_rel_error,
        verified=timing.verified,
        sm_clock_mhz=timing.sm_clock_mhz,
        seed=timing.seed,
    )
