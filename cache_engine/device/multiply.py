"""Multiplying arrays on a GPU as they are, with a kernel that the caller finds. Needs a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cache_engine.device.arrays import ArrayView, Form, view
from cache_engine.device.launch import ARRAY_TYPES, LoadedKernel, Operands, Startable, load_function
from cache_engine.device.matmul_plan import ALIGNMENT, MatmulPlan, check_places, plan_matmul
from cache_engine.device.memory_pool import shared_pool
from cache_engine.device.resident import Resident
from cache_engine.errors import UsageError
from cache_engine.model.gemm import NO_EPILOGUE, DType, Epilogue, GemmProblem
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey

if TYPE_CHECKING:
    from cache_engine.device.groups import Counts
    from cache_engine.device.profiling import Watch


class Later(Protocol):
    """What takes a kernel's place once it is ready."""

    @property
    def ready(self) -> bool:
        """Whether it is."""
        ...


Tell = Callable[[str, "Later | None"], object]
"""Gets the name of the kernel that serves, and what takes its place later, if anything does."""

# Kernels ready to launch; those of one CacheKey share their code, which has a cache to itself.
_KERNELS_PER_GPU, _CODES_PER_GPU = 512, 256
_LEGACY, _PER_THREAD = 1, 2  # handles with a meaning of their own: cudaStreamLegacy, cudaStreamPerThread


@dataclass(frozen=True, slots=True)
class Code:
    """Compiled code, how to launch it for the problem it was found for, and what counts each further launch.

    ``cubin`` and ``launch`` are ``None`` while no kernel is ready. ``better`` replaces this one once it is ready.
    ``loaded`` gets the milliseconds that loading the code took.
    """

    key: CacheKey
    cubin: bytes | None
    name: str
    launch: Launch | None
    count: Callable[[GemmProblem], object]
    better: Later | None = None
    loaded: Callable[[float], object] = lambda _: None


Find = Callable[[GemmProblem], Code]
"""Finds the code for a problem whose target is set."""


def multiply(
    a: Any, b: Any, out: Any | None, bias: Any | None, *, a_scales: Any | None = None, b_scales: Any | None = None,
    dtype: DType | None, out_dtype: DType | None, alpha: float, beta: float, epilogue: Epilogue,
    find: Find, found_by: Hashable, kind: GemmProblem | None = None, fusion: bool = True,
    watch: Watch | None = None, stream: Any | None = None, tell: Tell = lambda *_: None, counts: Counts | None = None,
) -> Any:  # fmt: skip
    """``activation(alpha · A · B + beta · out + bias)`` on a stream; see ``cache_engine.matmul``.

    Args:
        find: asked when a kernel is needed for the first time.
        found_by: what else than the problem ``find`` depends on.
        kind: as of ``plan_matmul``.
        fusion: whether the kernel applies the epilogue; else steps after it do, see ``device.unfused``.
        watch: to measure the launch.
        stream: by default the current one.
        tell: called with what serves, once in each call.
        counts: of groups, see ``cache_engine.grouped_matmul``; then without a kind, and with fusion.

    Raises:
        UsageError: as ``plan_matmul`` and ``check_places``; and when there is no ``out`` to be added.
    """
    if beta and out is None:
        raise UsageError(f"beta is {beta}, and there is no out to be added; give one")
    if stream is not None:
        with stream_of(stream):
            return multiply(
                a, b, out, bias, dtype=dtype, out_dtype=out_dtype, alpha=alpha, beta=beta, epilogue=epilogue,
                find=find, found_by=found_by, kind=kind, fusion=fusion, watch=watch, tell=tell, a_scales=a_scales,
                b_scales=b_scales, counts=counts,
            )  # fmt: skip
    import cupy

    current = cupy.cuda.get_current_stream()
    arrays = {"A": a, "B": b, "out": out, "the bias": bias, "a_scales": a_scales, "b_scales": b_scales}
    views = {name: view(array, name, current.ptr) for name, array in arrays.items() if array is not None}
    a_view, b_view, out_view, bias_view = views["A"], views["B"], views.get("out"), views.get("the bias")
    scale_views = [views[name] for name in ("a_scales", "b_scales") if name in views]
    if counts is not None:
        views["counts"] = view(counts.array, "counts", current.ptr)
        plan = _grouped_plan(views, counts, dtype, out_dtype, epilogue)
    else:
        plan = plan_matmul(
            a_view.form, b_view.form, _form(out_view), _form(bias_view), dtype, out_dtype, epilogue, kind,
            _form(views.get("a_scales")), _form(views.get("b_scales")),
        )  # fmt: skip
    check_places(a_view, b_view, out_view, bias_view, *scale_views)
    gpu = cupy.cuda.runtime.getDevice()
    for name, one in views.items():
        _check_device(name, one, gpu)
        _wait_for(one, current)
    kernel = _kernel(plan.problem, find, found_by, gpu, current.ptr, fusion=fusion, tell=tell)
    if out_view is None:
        out = c = cupy.empty(plan.shape, dtype=_result_type(a, a_view, plan.problem.output))
    else:
        c = _address(out_view)
    added = None if bias_view is None else _operand(bias_view, transposed=False, copy=False)
    operands = Operands(*_a_and_b(a_view, b_view, plan), c, alpha, beta, added, *map(_address, scale_views))
    if counts is not None:
        operands = replace(operands, counts=_address(views["counts"]))
    if watch is None:
        kernel(operands)
    else:
        watch.launch(kernel, operands)
    return out


# ---- Kernels ----


@dataclass(frozen=True, slots=True)
class _Ready:
    """A kernel ready to launch, what counts a launch, and what takes its place once that is ready."""

    kernel: Startable
    count: Callable[[], object]
    better: Later | None


def _synchronize(gpu: int) -> None:
    """Waits for all of a GPU, where code may still run that is to be unloaded."""
    import cupy

    cupy.cuda.Device(gpu).synchronize()


_codes: Resident[Any] = Resident(_CODES_PER_GPU, _synchronize)
_kernels: Resident[_Ready] = Resident(_KERNELS_PER_GPU, _synchronize)


def _kernel(
    asked: GemmProblem, find: Find, found_by: Hashable, gpu: int, stream: int, *, fusion: bool = True,
    tell: Tell = lambda *_: None,
) -> Startable:  # fmt: skip
    """The kernel for a problem, ready to launch: one for each stream, since launches of one must not overlap.

    One that is loaded already is counted as asked for; to find one counts it.
    """
    if not fusion and asked.epilogue != NO_EPILOGUE:
        from cache_engine.device.unfused import Unfused  # a rare need

        plain = _kernel(replace(asked, epilogue=NO_EPILOGUE), find, found_by, gpu, stream, tell=tell)
        return Unfused(plain, asked.epilogue)
    queue = (stream, threading.get_ident()) if stream == _PER_THREAD else stream
    is_loaded = True

    def load() -> _Ready:
        nonlocal is_loaded
        is_loaded = False
        import cupy

        problem = asked.on(asked.arch or f"sm_{cupy.cuda.Device(gpu).compute_capability}")
        code = find(problem)
        if code.cubin is None or code.launch is None:
            return _Ready(_by_cupy(problem), partial(code.count, problem), code.better)
        cubin, launch = code.cubin, code.launch

        def load_code() -> Any:
            started = time.perf_counter()
            function = load_function(cubin, code.name, launch.shared_bytes)
            code.loaded((time.perf_counter() - started) * 1e3)
            return function

        function = _codes.get(gpu, code.key, load_code)
        loaded = LoadedKernel(cubin, code.name, launch, problem, function)
        return _Ready(loaded, partial(code.count, problem), code.better)

    key = (asked, found_by, queue)
    ready = _kernels.get(gpu, key, load)
    if ready.better is not None and ready.better.ready:
        # Launches under way end on the old one: its code stays loaded, and its memory is used again in their order.
        _kernels.discard(gpu, key, ready)
        ready = _kernels.get(gpu, key, load)
    if is_loaded:
        ready.count()
    tell(ready.kernel.name, ready.better)
    return ready.kernel


def _by_cupy(problem: GemmProblem) -> Startable:
    from cache_engine.device.by_cupy import ByCupy  # a rare need
    from cache_engine.device.unfused import Unfused

    plain = ByCupy(replace(problem, epilogue=NO_EPILOGUE))
    return plain if problem.epilogue == NO_EPILOGUE else Unfused(plain, problem.epilogue)


# ---- Operands ----


def _a_and_b(a: ArrayView, b: ArrayView, plan: MatmulPlan) -> tuple[Any, Any]:
    layout = plan.problem.layout
    return _operand(a, layout.a_transposed, plan.copy_a), _operand(b, layout.b_transposed, plan.copy_b)


def _operand(one: ArrayView, transposed: bool, copy: bool) -> Any:
    """A, B or the bias as the kernel takes it: where it lies, or a copy, as a kernel reads several elements at once."""
    if not copy and one.address % ALIGNMENT == 0:
        return _address(one)
    import cupy

    form = one.form.transposed() if transposed else one.form
    start, end = one.extent()
    memory = cupy.cuda.UnownedMemory(start, end - start, one.owner)
    array = cupy.ndarray(
        form.shape,
        dtype=f"uint{8 * form.itemsize}",
        memptr=cupy.cuda.MemoryPointer(memory, one.address - start),
        strides=tuple(stride * form.itemsize for stride in form.strides),
    )
    with shared_pool().serving():
        return array.copy(order="C")


def _grouped_plan(
    views: dict[str, ArrayView], counts: Counts, dtype: DType | None, out_dtype: DType | None, epilogue: Epilogue
) -> MatmulPlan:
    """The plan for groups, their counts checked as far as they are known."""
    from cache_engine.device.groups import check_counts, plan_groups  # for few callers

    a, b, where = views["A"], views["B"], views["counts"]
    optional = (_form(views.get(name)) for name in ("out", "the bias", "a_scales", "b_scales"))
    out, bias, a_scales, b_scales = optional
    plan = plan_groups(a.form, b.form, where.form, out, bias, dtype, out_dtype, epilogue, a_scales, b_scales)
    if counts.known is not None:
        check_counts(plan.problem, counts.known)
    if where.address % where.form.itemsize:
        raise UsageError(f"counts start at an address that is no multiple of {where.form.itemsize}; copy them first")
    if "out" in views and views["out"].overlaps(where):
        raise UsageError("out overlaps counts; give it separate memory, or leave it out")
    return plan


def _form(one: ArrayView | None) -> Form | None:
    return None if one is None else one.form


def _address(one: ArrayView) -> Any:
    import numpy

    return numpy.uint64(one.address)


def _result_type(a: Any, a_view: ArrayView, output: DType) -> Any:
    """The type of a new C: that of A if it says the same, else what every CuPy knows."""
    import cupy

    same = isinstance(a, cupy.ndarray) and a_view.form.element == output.value
    return a.dtype if same else ARRAY_TYPES[output]


def _check_device(name: str, one: ArrayView, gpu: int) -> None:
    import cupy

    there = cupy.cuda.runtime.pointerGetAttributes(one.address).device
    if there != gpu:
        raise UsageError(f"{name} is on GPU {there}, and GPU {gpu} is the current one; use: with cupy.cuda.Device(…)")


# ---- Streams ----


class _Handle:
    """A stream's handle, in the form of the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def stream_of(given: Any) -> Any:
    """A CuPy stream from one of CuPy or PyTorch, from what speaks the CUDA stream protocol, or from a handle.

    In a ``with`` it is the current one.

    Raises:
        UsageError: when it is none of these.
    """
    import cupy

    handle = getattr(given, "cuda_stream", given)  # PyTorch's
    if isinstance(handle, int) and not isinstance(handle, bool):
        if handle in (0, _LEGACY):
            return cupy.cuda.Stream.null
        return cupy.cuda.Stream.ptds if handle == _PER_THREAD else cupy.cuda.Stream.from_external(_Handle(handle))
    if hasattr(given, "__enter__") and hasattr(given, "ptr"):
        return given
    if hasattr(given, "__cuda_stream__"):
        return cupy.cuda.Stream.from_external(given)
    raise UsageError(f"{given!r} is no stream; give one of CuPy or PyTorch, or a handle")


def _wait_for(one: ArrayView, current: Any) -> None:
    """Has the current stream wait for what an array's own stream has been asked so far."""
    if one.stream is None or one.stream == current.ptr or (one.stream == _LEGACY and not current.ptr):
        return
    import cupy

    filled = cupy.cuda.Event(disable_timing=True)
    filled.record(stream_of(one.stream))
    current.wait_event(filled)
