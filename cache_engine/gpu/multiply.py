"""Multiplying arrays on a GPU as they are, with a kernel that the caller finds. Needs a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cache_engine.errors import UsageError
from cache_engine.gpu.arrays import ArrayView, Form, view
from cache_engine.gpu.launch import ARRAY_TYPES, LoadedKernel, Operands, Startable, load_function
from cache_engine.gpu.matmul_plan import ALIGNMENT, ArrayForms, MatmulPlan, check_places, plan_matmul
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.resident_objects import Resident, synchronize
from cache_engine.model.gemm import NO_EPILOGUE, GemmProblem
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey

if TYPE_CHECKING:
    from cache_engine.gpu.groups import GroupCounts
    from cache_engine.gpu.profiling import Watch


class Later(Protocol):
    """A successor of a kernel, which takes its place once it is ready."""

    @property
    def ready(self) -> bool:
        """Whether it is."""
        ...


Tell = Callable[[str, "Later | None"], object]
"""Gets the name of the kernel that serves, and what takes its place later, if anything does."""

# Kernels ready to launch; those of one CacheKey share their code, which has a cache to itself.
_KERNELS_PER_GPU, _LIGHT_PER_GPU, _CODES_PER_GPU = 512, 8192, 256
Views = tuple[
    ArrayView, ArrayView, ArrayView | None, ArrayView | None, ArrayView | None, ArrayView | None, ArrayView | None
]
"""Views of ``_ARRAYS``, in that order."""
Forms = tuple[Form, Form, Form | None, Form | None, Form | None, Form | None, Form | None]
_ARRAYS = ("A", "B", "out", "the bias", "a_scales", "b_scales", "counts")
_LEGACY, PER_THREAD = 1, 2  # handles with a meaning of their own: cudaStreamLegacy, cudaStreamPerThread


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
    a: Any, b: Any, out: Any | None, bias: Any | None, asked: ArrayForms, find: Find, found_by: Hashable, *,
    a_scales: Any | None = None, b_scales: Any | None = None, alpha: float = 1.0, beta: float = 0.0,
    fusion: bool = True, watch: Watch | None = None, stream: Any | None = None, tell: Tell | None = None,
    counts: GroupCounts | None = None, scale_result: float = 1.0,
) -> Any:  # fmt: skip
    """``activation(alpha · A · B + beta · out + bias)`` on a stream; see ``cache_engine.matmul``.

    What the forms of the arrays decide is found out once for each combination of them. Where they lie, on which GPU and
    stream, and what may still write them is looked at in each call.

    Args:
        find: asked when a kernel is needed for the first time.
        found_by: what else than the problem ``find`` depends on.
        fusion: whether the kernel applies the epilogue; else steps after it do, see ``gpu.products``.
        watch: to measure the launch.
        stream: by default the current one.
        tell: called with what serves, once in each call.
        counts: of groups, see ``cache_engine.grouped_matmul``; then without a kind, and with fusion.
        scale_result: of a C of fp8.

    Raises:
        UsageError: as ``plan_matmul`` and ``check_places``; and when there is no ``out`` to be added.
    """
    if beta and out is None:
        raise UsageError(f"beta is {beta}, and there is no out to be added; give one")
    if stream is not None:
        with stream_of(stream):
            return multiply(
                a, b, out, bias, asked, find, found_by, a_scales=a_scales, b_scales=b_scales, alpha=alpha, beta=beta,
                fusion=fusion, watch=watch, tell=tell, counts=counts, scale_result=scale_result,
            )  # fmt: skip
    import cupy

    current = cupy.cuda.get_current_stream()
    queue = current.ptr
    plan, wanted, views = prepare(asked, a, b, out, bias, a_scales, b_scales, counts, queue)
    if scale_result != 1.0 and not plan.problem.has_result_scale:
        raise UsageError(f"scale_result is for results of fp8, and C is of {plan.problem.output}; leave it out")
    runtime = cupy.cuda.runtime
    gpu = runtime.getDevice()
    _check_devices(views, gpu, runtime.pointerGetAttributes, current)
    kernel = _kernel(wanted, find, found_by, gpu, queue, fusion=fusion, tell=tell)
    if views[2] is None:
        same = isinstance(a, cupy.ndarray) and views[0].form.element == plan.problem.output.value
        # The type object of A if it is the same type, else a name that every version of CuPy knows.
        out = c = cupy.empty(plan.shape, dtype=a.dtype if same else ARRAY_TYPES[plan.problem.output])
    else:
        c = _address(views[2])
    operands = operands_of(plan, views, c, alpha, beta)
    operands.scale_result = scale_result
    if watch is None:
        kernel(operands)
    else:
        watch.launch(kernel, operands)
    return out


# ---- Plans ----


def prepare(
    asked: ArrayForms, a: Any, b: Any, out: Any | None = None, bias: Any | None = None, a_scales: Any | None = None,
    b_scales: Any | None = None, counts: GroupCounts | None = None, stream: int = 0,
) -> tuple[MatmulPlan, Wanted, Views]:  # fmt: skip
    """The plan for some arrays, what its kernel is looked up by, and checked views of them. Touches no GPU.

    Raises:
        UsageError: as ``plan_matmul`` and ``check_places``.
    """
    views = (
        view(a, "A", stream),
        view(b, "B", stream),
        None if out is None else view(out, "out", stream),
        None if bias is None else view(bias, "the bias", stream),
        None if a_scales is None else view(a_scales, "a_scales", stream),
        None if b_scales is None else view(b_scales, "b_scales", stream),
        None if counts is None else view(counts.array, "counts", stream),
    )
    plan, wanted = planned(asked, tuple([one and one.form for one in views]))
    if counts is not None and views[-1] is not None:
        _check_counts(plan.problem, counts, views[-1], views[2])
    check_places(*views[:-1])
    return plan, wanted, views


class Wanted:
    """A problem to look kernels up by, whose hash is computed once: that of a problem takes as long as ten look-ups."""

    __slots__ = ("_hash", "problem")

    def __init__(self, problem: GemmProblem) -> None:
        self.problem, self._hash = problem, hash(problem)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wanted) and self.problem == other.problem


@lru_cache(maxsize=4096)
def planned(asked: ArrayForms, forms: Forms) -> tuple[MatmulPlan, Wanted]:
    """The plan for arrays of these forms, and what its kernel is looked up by."""
    a, b, out, bias, a_scales, b_scales, counts = forms
    if counts is None:
        plan = plan_matmul(
            a, b, out, bias, asked.dtype, asked.out_dtype, asked.epilogue, asked.kind, a_scales, b_scales
        )
    else:
        from cache_engine.gpu.groups import plan_groups  # for few callers

        plan = plan_groups(a, b, counts, out, bias, asked.dtype, asked.out_dtype, asked.epilogue, a_scales, b_scales)
    return plan, _wanted(plan.problem)


_wanted = lru_cache(maxsize=4096)(Wanted)


def _check_counts(problem: GemmProblem, counts: GroupCounts, where: ArrayView, out: ArrayView | None) -> None:
    """Checks counts as far as they are known, and where they lie."""
    if counts.known is not None:
        from cache_engine.gpu.groups import check_counts  # here, because few callers need it

        check_counts(problem, counts.known)
    if where.address % where.form.itemsize:
        raise UsageError(f"counts start at an address that is no multiple of {where.form.itemsize}; copy them first")
    if out is not None and out.overlaps(where):
        raise UsageError("out overlaps counts; give it separate memory, or leave it out")


# ---- Kernels ----


@dataclass(frozen=True, slots=True)
class Ready:
    """A kernel ready to launch, what counts a launch, and what takes its place once that is ready."""

    kernel: Startable
    count: Callable[[], object]
    better: Later | None


class Make(NamedTuple):
    """Makers of what is launched: of a kernel, as ``LoadedKernel``, and of a product where no kernel is ready."""

    kernel: Callable[[bytes, str, Launch, GemmProblem, Any], Startable]
    product: Callable[[GemmProblem], Startable]


_codes: Resident[Any] = Resident(_CODES_PER_GPU, synchronize)
_kernels: Resident[Ready] = Resident(_KERNELS_PER_GPU, synchronize)
light_kernels: Resident[Ready] = Resident(_LIGHT_PER_GPU, synchronize)
"""Kernels made by another ``Make``, which have no memory of their own on a GPU: of many m at once."""


def unload() -> set[int]:
    """Unloads all kernels, once nothing runs on their GPUs; returns the GPUs that ever had one."""
    return _kernels.clear() | light_kernels.clear() | _codes.clear()


def _kernel(
    wanted: Wanted, find: Find, found_by: Hashable, gpu: int, stream: int, *, fusion: bool, tell: Tell | None
) -> Startable:
    """The kernel for a problem, ready to launch: one for each stream, since launches of one must not overlap.

    One that is loaded already is counted as asked for; to find one counts it.
    """
    # A product that is rounded to fp8 has no steps after it: it lacks the bits, and the range.
    if not fusion and wanted.problem.epilogue != NO_EPILOGUE and not wanted.problem.has_result_scale:
        from cache_engine.gpu.products import Unfused  # a rare need

        plain = Wanted(replace(wanted.problem, epilogue=NO_EPILOGUE))
        return Unfused(_kernel(plain, find, found_by, gpu, stream, fusion=True, tell=tell), wanted.problem.epilogue)
    key = (wanted, found_by, (stream, threading.get_ident()) if stream == PER_THREAD else stream)
    ready = ready_kernel(key, find, gpu)
    if tell is not None:
        tell(ready.kernel.name, ready.better)
    return ready.kernel


def ready_kernel(key: tuple[Wanted, Hashable, Hashable], find: Find, gpu: int, make: Make | None = None) -> Ready:
    """The kernel under a key, which is loaded at the first call, and when a better one is ready; counts the call.

    Args:
        key: what is wanted, what else ``find`` depends on, and what else the kernel does: one with memory of its own
            is for one stream.
        make: makes what is launched, one of ``light_kernels``; by default a ``LoadedKernel`` with memory of its own,
            and CuPy's product.
    """
    ready = (_kernels if make is None else light_kernels).find(gpu, key)
    if ready is None or (ready.better is not None and ready.better.ready):
        return _load(key, find, gpu, make)
    ready.count()
    return ready


def _load(key: tuple[Wanted, Hashable, Hashable], find: Find, gpu: int, make: Make | None) -> Ready:
    """A kernel that is not loaded, or that another takes the place of."""
    asked, is_loaded, kept = key[0].problem, True, _kernels if make is None else light_kernels
    make = make or Make(LoadedKernel, _by_cupy)

    def load() -> Ready:
        nonlocal is_loaded
        is_loaded = False
        import cupy

        problem = asked.on(asked.arch or f"sm_{cupy.cuda.Device(gpu).compute_capability}")
        code = find(problem)
        if code.cubin is None or code.launch is None:
            return Ready(make.product(problem), partial(code.count, problem), code.better)
        cubin, launch = code.cubin, code.launch

        def load_code() -> Any:
            started = time.perf_counter()
            function = load_function(cubin, code.name, launch.shared_bytes)
            code.loaded((time.perf_counter() - started) * 1e3)
            return function

        function = _codes.get(gpu, code.key, load_code)
        loaded = make.kernel(cubin, code.name, launch, problem, function)
        return Ready(loaded, partial(code.count, problem), code.better)

    ready = kept.get(gpu, key, load)
    if ready.better is not None and ready.better.ready:
        # Launches under way end on the old one: its code stays loaded, and its memory is used again in their order.
        kept.discard(gpu, key, ready)
        ready = kept.get(gpu, key, load)
    if is_loaded:
        ready.count()
    return ready


def _by_cupy(problem: GemmProblem) -> Startable:
    from cache_engine.gpu.products import ByCupy, Unfused  # a rare need

    if problem.has_result_scale:
        return ByCupy(problem)
    plain = ByCupy(replace(problem, epilogue=NO_EPILOGUE))
    return plain if problem.epilogue == NO_EPILOGUE else Unfused(plain, problem.epilogue)


# ---- Operands ----


def operands_of(plan: MatmulPlan, views: Views, c: Any, alpha: float = 1.0, beta: float = 0.0) -> Operands:
    """The kernel's operands: arrays where they lie, or copies of them."""
    a, b, _, bias, of_a, of_b, counts = views
    layout = plan.problem.layout
    operands = Operands(_operand(a, plan.copy_a, layout[0]), _operand(b, plan.copy_b, layout[1]), c, alpha, beta)
    if bias is not None:
        operands.bias = _operand(bias, False)
    if of_a is not None and of_b is not None:
        operands.a_scales, operands.b_scales = _address(of_a), _address(of_b)
    if counts is not None:
        operands.counts = _address(counts)
    return operands


def _operand(one: ArrayView, copy: bool, stored: str = "n") -> Any:
    """A, B or the bias as the kernel takes it: where it lies, or a copy, as a kernel reads several elements at once.

    Args:
        stored: how a copy is to lie, row by row (n) or column by column (t).
    """
    if not copy and one.address % ALIGNMENT == 0:
        return _address_type()(one.address)
    import cupy

    form = one.form.transposed() if stored == "t" else one.form
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


def _address(one: ArrayView) -> Any:
    return _address_type()(one.address)


@cache
def _address_type() -> Any:
    """The type that CuPy takes as an address. Cached: an import for each array takes longer than making an address."""
    import numpy

    return numpy.uint64


def _check_devices(views: Sequence[ArrayView | None], gpu: int, attributes: Callable[[int], Any], current: Any) -> None:
    """Refuses arrays of another GPU, and has the current stream wait for those that another may still fill."""
    in_order = (None, current.ptr or _LEGACY)
    for place, one in enumerate(views):
        if one is None:
            continue
        if (there := attributes(one.address).device) != gpu:
            raise UsageError(
                f"{_ARRAYS[place]} is on GPU {there}, and GPU {gpu} is the current one; use: with cupy.cuda.Device(…)"
            )
        if one.stream not in in_order:
            _wait_for(one.stream, current)


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
        return cupy.cuda.Stream.ptds if handle == PER_THREAD else cupy.cuda.Stream.from_external(_Handle(handle))
    if hasattr(given, "__enter__") and hasattr(given, "ptr"):
        return given
    if hasattr(given, "__cuda_stream__"):
        return cupy.cuda.Stream.from_external(given)
    raise UsageError(f"{given!r} is no stream; give one of CuPy or PyTorch, or a handle")


def on_stream(handle: int) -> AbstractContextManager[Any]:
    """Makes a stream, given as its handle, the current one in a ``with``; does nothing where it is."""
    import cupy

    return _NOTHING if cupy.cuda.get_current_stream().ptr == handle else _stream_of_handle(handle)


_NOTHING = nullcontext()
_stream_of_handle = cache(stream_of)


def _wait_for(stream: int, current: Any) -> None:
    """Has the current stream wait for what another, an array's own, has been asked so far."""
    if stream == current.ptr:
        return
    import cupy

    filled = cupy.cuda.Event(disable_timing=True)
    filled.record(stream_of(stream))
    current.wait_event(filled)
