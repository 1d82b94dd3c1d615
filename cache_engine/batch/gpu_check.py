"""Checks a GPU at the first contact: every family by its canaries, and products of CuPy's and PyTorch's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from cache_engine.cache.cache import Cache
from cache_engine.cache.matmul import matmul
from cache_engine.cache.proving import order_of
from cache_engine.cache.proving.watchdog import Order, Verdict, Watchdog
from cache_engine.errors import GemmCacheError
from cache_engine.gpu.launch import random_operands
from cache_engine.gpu.probe import current_gpu
from cache_engine.gpu.reference import largest_error
from cache_engine.kernels.canaries import canaries
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import compiled_for
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.outcome import in_words
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED, identity

_M, _N, _K = 70, 136, 200
_LARGEST_ERROR = 2**-7  # of fp16, relative to the largest element


class GpuCheck(msgspec.Struct, frozen=True):
    """The result of checking one kernel family, or ``matmul`` of one library's arrays, on the GPU.

    Attributes:
        name: a family, or the library whose arrays were multiplied.
        state: ``proved`` if all results were right, ``refused`` if one was wrong, ``unproved`` if the check could not
            run.
        cases: the number of canaries (small products with a known result) that were right.
        reason: the error in the result, or why the check could not run; empty if proved.
        case, seed, command: of a refused family, the canary that was wrong, the seed of its operands, and the command
            that checks the kernel again.
    """

    name: str
    state: str
    cases: int = 0
    reason: str = ""
    case: str = ""
    seed: int = 0
    command: str = ""


def check_gpu(cache: Cache, start: Callable[[Order], Watchdog] = Watchdog) -> Iterator[GpuCheck]:
    """Checks the current GPU. Each family runs in a process of its own, all processes at the same time.

    Args:
        start: starts the process that checks one family.

    Raises:
        NotHereError: when there is no GPU, or CuPy or a compiler is not installed.
    """
    number, device = current_gpu()
    orders = []
    for family in FAMILIES:
        found = canaries(family, compiled_for(device.arch)) if FAMILIES[family].template.endswith(".cu") else []
        if found:
            selection = cache.selector.select_installed(found[0].problem, family, None, found[0].config)
            name = identity(device, selection.prefix.components)
            orders.append(order_of(selection, name, number, cache.settings))

    def verdict(order: Order) -> Verdict:
        try:
            return start(order).verdict()
        except OSError as error:
            return Verdict(undecided=in_words(error))

    with ThreadPoolExecutor(len(orders)) as pool:
        for order, v in zip(orders, pool.map(verdict, orders), strict=True):
            if v.refused:
                yield GpuCheck(order.family, REFUSED, v.cases, v.refused, v.case, v.seed, v.command)
            else:
                yield GpuCheck(order.family, UNPROVED if v.undecided else PROVED, v.cases, v.undecided)
    yield _product(cache, "CuPy", _of_cupy)
    if find_spec("torch") is not None:
        yield _product(cache, "PyTorch", _of_torch)


def _product(cache: Cache, name: str, error_of: Callable[[Cache], float]) -> GpuCheck:
    try:
        error = error_of(cache)
    except (GemmCacheError, RuntimeError, MemoryError) as failure:  # those of CuPy and PyTorch derive from the last two
        return GpuCheck(name, UNPROVED, reason=in_words(failure))
    if error <= _LARGEST_ERROR:
        return GpuCheck(name, PROVED, 1)
    return GpuCheck(name, REFUSED, reason=f"the largest relative error of matmul is {error:.2g}")


def _of_cupy(cache: Cache) -> float:
    problem = GemmProblem(_M, _N, _K, dtype=DType.FP16)
    operands = random_operands(problem)
    operands.c = matmul(operands.a[0], operands.b[0].T, cache=cache)[None]
    return largest_error(problem, operands, None)


def _of_torch(cache: Cache) -> float:
    torch: Any = import_module("torch")
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((_M, _K), (_K, _N)))
    c = torch.empty((_M, _N), device="cuda", dtype=torch.float16)
    matmul(a, b, c, cache=cache)
    expected = a.float() @ b.float()
    return float((c.float() - expected).abs().max() / expected.abs().max())
