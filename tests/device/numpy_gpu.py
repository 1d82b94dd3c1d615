"""NumPy in the place of CuPy, so that what surrounds a launch can run where there is no GPU.

Arrays are real, in the memory of this process; what computes is NumPy. Only that part of CuPy is here which the device
room uses, with CuPy's own names and arguments. Whether CuPy does the same is for tests/gpu to show.
"""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest

from cache_engine.cache import matmul as multiplication
from cache_engine.cache import operator
from cache_engine.cache.cache import CompiledKernel
from cache_engine.gpu import canary, fp8, groups, multiply, probe, products, tensor_map
from cache_engine.gpu import launch as launching
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, GemmProblem, Mode
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.store.journal import Journal, NoJournal

DEVICE = DeviceFingerprint("NumPy", "sm_90", 1, 2**30, 2**20, 1, "0.0")

Kernel = Callable[..., None]

# What CuPy and NumPy have alike.
_SAME = (
    "abs", "ascontiguousarray", "clip", "matmul", "maximum", "rint", "searchsorted", "uint8",
    "uint16", "uint32", "float32", "zeros", "minimum", "where", "isnan", "signbit",
)  # fmt: skip


class Array(numpy.ndarray[Any, Any]):
    """A NumPy array that describes itself as CuPy's do."""

    def __new__(cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> Array:
        """As ``cupy.ndarray``."""
        if memptr is None:
            return numpy.ndarray.__new__(cls, shape, dtype)
        start, size, offset = memptr
        memory: Any = (ctypes.c_uint8 * size).from_address(start)
        return numpy.ndarray.__new__(cls, shape, dtype, buffer=memory, offset=offset, strides=strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3, "stream": 1}


def array(values: Any, dtype: Any = None) -> Any:
    """Values as such an array, at a multiple of 16 bytes, lying as they lay."""
    given = numpy.asarray(values, dtype=dtype)
    memory = numpy.empty(given.nbytes + 16, dtype="uint8")
    start = -memory.ctypes.data % 16
    order: Any = "F" if given.flags.f_contiguous and not given.flags.c_contiguous else "C"
    flat = memory[start : start + given.nbytes].view(given.dtype)
    placed = flat.reshape(given.shape, order=order)
    placed[...] = given
    return placed.view(Array)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Random values."""
    return array(numpy.random.default_rng(seed).standard_normal(shape), dtype)


def stored(*shape: int, seed: int) -> Any:
    """The same in bf16, as its bits."""
    return array(launching.to_stored(normal(*shape, seed=seed), DType.BF16))


class Stream:
    """One that has always done what it was asked."""

    def __init__(self, ptr: int = 0) -> None:
        self.ptr = ptr
        self.waited: list[Any] = []

    def __enter__(self) -> object:
        """Makes it the current one."""
        _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Makes that the current one which was before."""
        _entered.remove(self)

    def wait_event(self, event: Any) -> None:
        """As CuPy's."""
        self.waited.append(event)

    def synchronize(self) -> None:
        """As CuPy's: everything has been done."""


_entered: list[Stream] = []


class Event:
    """Remembers the stream it was recorded on, and when."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.stream: Any = None
        self.recorded_s = 0.0
        self.is_waited_for = False

    def record(self, stream: Any = None) -> None:
        """As CuPy's."""
        self.stream, self.recorded_s = stream, time.perf_counter()

    def synchronize(self) -> None:
        """As CuPy's."""
        self.is_waited_for = True


def _elapsed_ms(start: Event, end: Event) -> float:
    """As CuPy's, which refuses an event that has not happened."""
    assert end.is_waited_for
    return (end.recorded_s - start.recorded_s) * 1e3


def _module(name: str, **content: Any) -> Any:
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


def _cupy(stream: Stream) -> Any:
    module: Any = _module("cupy", **{name: getattr(numpy, name) for name in _SAME})
    external = SimpleNamespace(from_external=lambda given: Stream(given.__cuda_stream__()[1]), null=Stream(0))
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        pointerGetAttributes=lambda address: SimpleNamespace(device=0),
    )
    module.__dict__.update(
        ndarray=Array,
        asarray=lambda values: numpy.asarray(values).view(Array),
        asnumpy=numpy.asarray,
        empty=lambda shape, dtype=float: array(numpy.empty(shape, dtype)),
        full=lambda shape, value, dtype=float: array(numpy.full(shape, value, dtype)),
        random=SimpleNamespace(default_rng=numpy.random.default_rng),
        cuda=_module(
            "cupy.cuda",
            cublas=None,
            runtime=runtime,
            get_current_stream=lambda: _entered[-1] if _entered else stream,
            Device=lambda gpu=0: SimpleNamespace(compute_capability="90", synchronize=lambda: None),
            UnownedMemory=lambda ptr, size, owner: (ptr, size),
            MemoryPointer=lambda memory, offset: (*memory, offset),
            Stream=external,
            Event=Event,
            get_elapsed_time=_elapsed_ms,
        ),
    )
    return module


def install(monkeypatch: pytest.MonkeyPatch, stream: Stream | None = None) -> None:
    """Has the device room find NumPy where it looks for CuPy, and a GPU where there is none.

    Families serve unproved: ``tests/cache/test_proving.py`` proves them.
    """
    monkeypatch.setenv("GEMM_CACHE_PROVE", "never")
    monkeypatch.setattr(tensor_map, "encode", lambda tensor: numpy.zeros(128, dtype="uint8"))
    cupy: Any = _cupy(stream or Stream())
    special = _module("cupyx.scipy.special", erf=numpy.vectorize(math.erf, otypes=[float]))
    for module in (cupy, cupy.cuda, _module("cupyx"), _module("cupyx.scipy"), special):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for user in (launching, probe, multiplication):
        monkeypatch.setattr(user, "require_gpu", lambda what: DEVICE)
    for user in (launching, multiply, products, canary):
        monkeypatch.setattr(user, "shared_pool", lambda: SimpleNamespace(serving=nullcontext))


class Finder:
    """Finds kernels as a cache does, and remembers what for."""

    def __init__(self) -> None:
        self.asked: list[GemmProblem] = []
        self.journal, self.settings = NoJournal(), Settings()

    def get_or_compile(
        self, problem: GemmProblem, family: str | None = None, compiler: str | None = None, wait_ms: None = None
    ) -> CompiledKernel:
        """A kernel with nothing but what is taken from one."""
        self.asked.append(problem)
        chosen, config = choose(problem, family)
        record: Any = SimpleNamespace(name=str(problem))
        launch = launch_of(chosen, problem, config)
        key, tier, stages_ms = CacheKey(str(problem)), "compiled", {"compile": 7.0}
        return CompiledKernel(key, problem, record, b"", tier, launch, "cost model", stages_ms)

    get_to_launch = get_or_compile


@contextmanager
def launching_in_numpy(monkeypatch: pytest.MonkeyPatch, stream: Stream | None = None) -> Iterator[None]:
    """``install``, and what launches a kernel has NumPy compute what it would: also one of a real cache."""
    install(monkeypatch, stream)
    found: dict[str, Any] = {}
    code_of = operator.code_of

    def noted(got: Any, journal: Journal) -> multiply.Code:
        if isinstance(got, CompiledKernel):
            found[got.entry] = got
        return code_of(got, journal)

    for user in (operator, multiplication):
        monkeypatch.setattr(user, "code_of", noted)

    def load_function(cubin: bytes, name: str, shared_bytes: int) -> Kernel:
        return kernel(found[name].problem, found[name].launch.parameters)

    monkeypatch.setattr(multiply, "load_function", load_function)
    multiply._kernels.clear()
    multiply.light_kernels.clear()
    multiply._codes.clear()
    yield
    multiply._kernels.clear()
    multiply.light_kernels.clear()
    multiply._codes.clear()


def kernel(problem: GemmProblem, parameters: tuple[str, ...]) -> Kernel:
    """What a right kernel does with the arguments of its launch, in NumPy."""

    def at(address: Any, dtype: DType, *shape: int) -> Any:
        elements = numpy.dtype(launching.ARRAY_TYPES[dtype])
        if isinstance(address, numpy.ndarray):
            assert address.flags.c_contiguous
            return address.view(elements).reshape(-1)[: math.prod(shape)].reshape(shape)
        memory: Any = (ctypes.c_uint8 * (math.prod(shape) * elements.itemsize)).from_address(int(address))
        return numpy.ndarray(shape, elements, buffer=memory)

    def run(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int) -> None:
        a, b, c, m, *further = arguments
        given = dict(zip(parameters, further, strict=True))
        assert type(m) is numpy.int32
        p, layout = replace(problem, m=int(m)), problem.layout  # one kernel serves many m
        if p.mode:
            _grouped(p, at, a, b, c, given)
            return
        for address in (a, b, c, given["bias"]) if p.epilogue.bias else (a, b, c):
            place = address.ctypes.data if isinstance(address, numpy.ndarray) else int(address)
            assert place % 16 == 0, "operands start at multiples of 16 bytes"
        a_values = launching.from_stored(
            at(a, p.dtype, p.batch, *((p.k, p.m) if layout.a_transposed else (p.m, p.k))), p.dtype, "float64"
        )
        b_values = launching.from_stored(
            at(b, p.dtype, p.batch, *((p.n, p.k) if layout.b_transposed else (p.k, p.n))), p.dtype, "float64"
        )
        if p.scales:
            bytes_of = DType.FP8_E4M3 if p.scales.is_e8m0 else DType.FP32
            of_a, of_b = p.scales.shapes(p.m, p.n, p.k)
            a_values = fp8.scaled(a_values, at(given["a_scales"], bytes_of, p.batch, *of_a))
            b_values = fp8.scaled(b_values, at(given["b_scales"], bytes_of, p.batch, *of_b), p.scales.b_columns)
        a_values = a_values.transpose(0, 2, 1) if layout.a_transposed else a_values
        b_values = b_values.transpose(0, 2, 1) if layout.b_transposed else b_values
        out = at(c, p.output, p.batch, p.m, p.n)
        result = float(given["alpha"]) * (a_values @ b_values)
        if p.epilogue.beta:
            result += float(given["beta"]) * launching.from_stored(out, p.output, "float64")
        if p.epilogue.bias:
            result += launching.from_stored(at(given["bias"], p.output, p.n), p.output, "float64")
        if p.epilogue.activation == "relu":
            result = numpy.maximum(result, 0)
        elif p.epilogue.activation == "gelu":
            result *= (1 + numpy.vectorize(math.erf)(result / 2**0.5)) / 2
        result = result * float(given["scale_result"]) if p.has_result_scale else result
        out[...] = launching.to_stored(result.astype("float32" if p.output is not DType.FP64 else "float64"), p.output)

    return run


def _grouped(p: GemmProblem, at: Any, a: Any, b: Any, c: Any, given: dict[str, Any]) -> None:
    """What a right kernel for groups does: of each group, what one of its rows would."""
    out, counts = at(c, p.output, p.row_matrices, p.m, p.n), at(given["counts"], DType.INT32, p.batch)
    assert int(given["groups"]) == p.batch
    plain = replace(p, mode=Mode.BATCHED, batch=1)
    of_a, of_b = p.scales.shapes(p.m, p.n, p.k) if p.scales else ((0, 0), (0, 0))
    kind = DType.FP8_E4M3 if p.scales.is_e8m0 else DType.FP32
    for group, (matrix, rows) in enumerate(groups.rows_of_groups(p, counts.tolist())):
        if rows.start == rows.stop:
            continue
        matrices = at(b, p.dtype, p.batch, *((p.n, p.k) if p.layout.b_transposed else (p.k, p.n)))
        own = {name: given[name] for name in ("alpha", "scale_result" if p.has_result_scale else "beta")}
        own["bias"] = array(at(given["bias"], p.output, p.batch, p.n)[group]) if p.epilogue.bias else None
        if p.scales:
            own["a_scales"] = array(at(given["a_scales"], kind, p.row_matrices, *of_a)[matrix, rows])
            own["b_scales"] = array(at(given["b_scales"], kind, p.batch, *of_b)[group])
        part = array(out[matrix, rows])
        operands = (array(at(a, p.dtype, p.row_matrices, p.m, p.k)[matrix, rows]), array(matrices[group]), part)
        one = replace(plain, m=rows.stop - rows.start)
        kernel(one, tuple(own))((), (), (*operands, numpy.int32(one.m), *own.values()), 0)
        out[matrix, rows] = part
