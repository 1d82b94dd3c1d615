"""Checks a GPU at the first contact: families by canaries, products of CuPy's and PyTorch's arrays, memory, and speed.

All of it together takes a minute at most. The rest is then reported as not checked, or not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product, takewhile
from typing import Any

import msgspec

from cache_engine.batch.warm import side_by_side
from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.cache.matmul import matmul
from cache_engine.cache.proving.watchdog import ENDED, Order, Verdict, order_of, watched
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.catalogue import shapes_of
from cache_engine.evaluator.chips import gpu_called
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.gpu.launch import random_operands
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.probe import current_gpu
from cache_engine.gpu.reference import largest_error
from cache_engine.gpu.timer import time_kernel
from cache_engine.kernels.canaries import canaries
from cache_engine.kernels.select import FAMILIES, plain_family
from cache_engine.model.architecture import compiled_for
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.outcome import in_words

BUDGET_S = 60.0
"""Seconds after which nothing more is checked or timed."""

_OF_CANARIES = 0.6  # of the budget; the rest is for timing
_MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3")  # four layers of each are timed
_ROWS = (16, 4096)
_M, _N, _K = 70, 136, 200
_LARGEST_ERROR = 2**-7  # of fp16, relative to the largest element


class GpuSpeed(msgspec.Struct, frozen=True):
    """The speed of a layer of a model in bf16, in TFLOP/s: our kernel's, cuBLAS's, and the GPU model's prediction.

    Attributes:
        tflops, reference_tflops: ``None`` if they were not measured; ``reason`` says why.
        predicted_tflops: ``None`` for a GPU that the model does not know.
        latency_us: the time of the faster of our kernel and cuBLAS, with which ``calibrate`` fits the GPU model.
        is_wrong: whether the kernel's result was wrong.
    """

    model: str
    layer: str
    m: int
    n: int
    k: int
    family: str
    predicted_tflops: float | None
    tflops: float | None = None
    reference_tflops: float | None = None
    latency_us: float | None = None
    reason: str = ""
    is_wrong: bool = False


def check_gpu(cache: Cache, until: float) -> Iterator[tuple[str, Verdict]]:
    """Checks the current GPU: yields each family, each array library and ``memory pool``, with its verdict.

    Each family runs in a process of its own, all processes at the same time.

    Args:
        until: the time (``time.monotonic``) by which all checks and timings must have ended.

    Raises:
        NotHereError: when there is no GPU, or CuPy or a compiler is not installed.
    """
    number, device = current_gpu()
    orders = []
    for family in FAMILIES:
        found = canaries(family, compiled_for(device.arch)) if FAMILIES[family].template.endswith(".cu") else []
        if found:
            selection = cache.selector.select_installed(found[0].problem, family, None, found[0].config)
            orders.append(order_of(selection, device, number, cache.settings))
    last = time.monotonic() + (until - time.monotonic()) * _OF_CANARIES

    def verdict(order: Order) -> Verdict:
        found = watched(order, lambda: time.monotonic() < last)
        if found.undecided == ENDED:
            found.undecided = f"the time ended after {found.cases} right cases; close what else runs here, and repeat"
        return found

    with ThreadPoolExecutor(len(orders)) as pool:
        yield from zip((order.family for order in orders), pool.map(verdict, orders), strict=True)
    yield "CuPy", _checked(lambda: _of_cupy(cache))
    if find_spec("torch") is not None:
        yield "PyTorch", _checked(lambda: _of_torch(cache))
    yield "memory pool", _checked(lambda: shared_pool().fault())


def speeds(cache: Cache, until: float, refused: Collection[str] = ()) -> Iterator[GpuSpeed]:
    """Times twelve layers of models, each with a few rows and with many. Stops at the time ``until``.

    Args:
        refused: families that must not be launched, because a check has not proved them here.

    Raises:
        NotHereError: as ``check_gpu``.
    """
    _, device = current_gpu()
    known, asked = gpu_called(device.name), list[tuple[GpuSpeed, GemmProblem]]()
    for model, m in product(_MODELS, _ROWS):
        for shape in shapes_of(model)[:4]:
            problem = GemmProblem(m, shape.n, shape.k, arch=compiled_for(device.arch))
            family = cache.selector.select(problem, None, None, None).family.name
            family = (plain_family(problem) or family) if family in refused else family
            of_layer = EvaluationProblem(m, shape.n, shape.k)
            us = None if known is None else predict(of_layer, known).latency_us
            speed = GpuSpeed(model, shape.operation, m, shape.n, shape.k, family, _tflops(problem, us))
            asked.append((speed, problem))
    gets = [partial(cache.get_or_compile, problem, family=speed.family) for speed, problem in asked]
    got = dict(takewhile(lambda _: time.monotonic() < until, side_by_side(gets)))
    for number, (speed, problem) in enumerate(asked):
        try:
            if speed.family in refused:
                raise GemmCacheError(f"{speed.family} is not proved here")
            if number not in got or time.monotonic() >= until:
                raise GemmCacheError(f"the {BUDGET_S:g} s ended")
            yield _timed(speed, problem, got[number])
        except (GemmCacheError, RuntimeError, MemoryError) as failure:
            yield msgspec.structs.replace(speed, reason=in_words(failure))


def _timed(speed: GpuSpeed, problem: GemmProblem, kernel: CompiledKernel | GemmCacheError) -> GpuSpeed:
    if isinstance(kernel, GemmCacheError):
        raise kernel
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, problem)
    if not timing.verified:
        wrong = f"its largest relative error is {timing.max_rel_error:.2g}, seed {timing.seed}"
        return msgspec.structs.replace(speed, reason=wrong, is_wrong=True)
    library_us = timing.reference_median_us
    return msgspec.structs.replace(
        speed, tflops=timing.tflops, reference_tflops=_tflops(problem, library_us), reason=timing.no_reference,
        latency_us=min(timing.median_us, library_us or timing.median_us),
    )  # fmt: skip


def _tflops(problem: GemmProblem, us: float | None) -> float | None:
    return None if us is None else problem.flops / us / 1e6


def _checked(fault_of: Callable[[], str]) -> Verdict:
    try:
        fault = fault_of()
    except (GemmCacheError, RuntimeError, MemoryError) as failure:  # those of CuPy and PyTorch derive from the last two
        return Verdict(undecided=in_words(failure))
    return Verdict(cases=not fault, refused=fault)


def _fault_of(error: float) -> str:
    return "" if error <= _LARGEST_ERROR else f"the largest relative error of matmul is {error:.2g}"


def _of_cupy(cache: Cache) -> str:
    problem = GemmProblem(_M, _N, _K, dtype=DType.FP16)
    operands = random_operands(problem)
    operands.c = matmul(operands.a[0], operands.b[0].T, cache=cache)[None]
    return _fault_of(largest_error(problem, operands, None))


def _of_torch(cache: Cache) -> str:
    torch: Any = import_module("torch")
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((_M, _K), (_K, _N)))
    c = torch.empty((_M, _N), device="cuda", dtype=torch.float16)
    matmul(a, b, c, cache=cache)
    expected = a.float() @ b.float()
    return _fault_of(float((c.float() - expected).abs().max() / expected.abs().max()))
