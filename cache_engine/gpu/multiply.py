"""Multiplies arrays on a GPU, with a kernel that the caller finds. Needs a GPU."""

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
from cache_engine.model.architecture import compiled_for
from cache_engine.model.gemm import NO_EPILOGUE, GemmProblem
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey

if TYPE_CHECKING:
    from cache_engine.gpu.groups import GroupCounts
    from cache_engine.gpu.profiling import Watch


class Later(Protocol):
    """A kernel that is being compiled, and replaces another kernel when it is ready."""

    @property
    def ready(self) -> bool:
        """Whether the kernel is ready."""
        ...


Tell = Callable[[str, "Later | None"], object]
"""A function called with the name of the kernel that serves, and with the kernel that will replace it, or ``None``."""

# The number of kernels ready to launch; and of loaded codes, because kernels of one CacheKey share their code.
_KERNELS_PER_GPU, _LIGHT_PER_GPU, _CODES_PER_GPU = 512, 8192, 256
Views = tuple[
    ArrayView, ArrayView, ArrayView | None, ArrayView | None, ArrayView | None, ArrayView | None, ArrayView | None
]
"""The views of the arrays in ``_ARRAYS``, in that order."""
Forms = tuple[Form, Form, Form | None, Form | None, Form | None, Form | None, Form | None]
_ARRAYS = ("A", "B", "out", "the bias", "a_scales", "b_scales", "counts")
_LEGACY, PER_THREAD = 1, 2  # handles with a special meaning: cudaStreamLegacy, cudaStreamPerThread


@dataclass(frozen=True, slots=True)
class Code:
    """The compiled code for a problem, its launch, and a function that counts each further launch.

    ``cubin`` and ``launch`` are ``None`` while no kernel is ready. ``better`` replaces this code when it is ready.
    ``loaded`` is called with the milliseconds of loading the code.
    """

    key: CacheKey
    cubin: bytes | None
    name: str
    launch: Launch | None
    count: Callable[[GemmProblem], object]
    better: Later | None = None
    loaded: Callable[[float], object] = lambda _: None


Find = Callable[[GemmProblem], Code]
"""A function that finds the code for a problem whose target is set."""


def multiply(
    a: Any, b: Any, out: Any | None, bias: Any | None, asked: ArrayForms, find: Find, found_by: Hashable, *,
    a_scales: Any | None = None, b_scales: Any | None = None, alpha: float = 1.0, beta: float = 0.0,
    fusion: bool = True, watch: Watch | None = None, stream: Any | None = None, tell: Tell | None = None,
    counts: GroupCounts | None = None, scale_result: float = 1.0,
) -> Any:  # fmt: skip
    """Starts ``activation(alpha · A · B + beta · out + bias)`` on a stream; returns ``out``, or a new array.

    The plan is made once for each combination of the arrays' layouts. Each call checks their addresses, GPU, stream,
    and the streams that may still write to them.

    Args:
        find: a function that finds a kernel's code, called when the kernel is first needed.
        found_by: everything besides the problem that the result of ``find`` depends on.
        fusion: whether the kernel applies the epilogue; otherwise separate steps after it do (``gpu.products``).
        watch: measures the time of the launch.
        stream: the stream; by default the current one.
        tell: a function called once in each call, with the name of the kernel that serves.
        counts: the number of rows of each group, as for ``cache_engine.grouped_matmul``; only if ``asked`` has no
            ``kind``, and with ``fusion``.
        scale_result: the factor for a C of fp8.

    Raises:
        UsageError: as ``plan_matmul`` and ``check_places``; and when ``beta`` needs ``out`` and it is not given.
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
        # The type object of A if C has the same type, else a name that every version of CuPy knows.
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
    """The plan for some arrays, the value by which its kernel is looked up, and checked views of the arrays.

    Does not use the GPU.

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
    """A problem as the value by which loaded kernels are looked up.

    Its hash is computed once, since hashing takes as long as ten look-ups.
    """

    __slots__ = ("_hash", "problem")

    def __init__(self, problem: GemmProblem) -> None:
        self.problem, self._hash = problem, hash(problem)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wanted) and self.problem == other.problem


@lru_cache(maxsize=4096)
def planned(asked: ArrayForms, forms: Forms) -> tuple[MatmulPlan, Wanted]:
    """The plan for arrays with these layouts, and the value by which its kernel is looked up."""
    a, b, out, bias, a_scales, b_scales, counts = forms
    if counts is None:
        plan = plan_matmul(
            a, b, out, bias, asked.dtype, asked.out_dtype, asked.epilogue, asked.kind, a_scales, b_scales
        )
    else:
        from cache_engine.gpu.groups import plan_groups  # only few callers need it

        plan = plan_groups(a, b, counts, out, bias, asked.dtype, asked.out_dtype, asked.epilogue, a_scales, b_scales)
    return plan, _wanted(plan.problem)


_wanted = lru_cache(maxsize=4096)(Wanted)


def _check_counts(problem: GemmProblem, counts: GroupCounts, where: ArrayView, out: ArrayView | None) -> None:
    """Checks the row counts of groups, if their values are known, and the address of their array on the GPU."""
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
    """A kernel that is ready to launch.

    Attributes:
        count: a function that counts one launch.
        better: the kernel that replaces this one once it is ready; ``None`` if there is none.
    """

    kernel: Startable
    count: Callable[[], object]
    better: Later | None


class Make(NamedTuple):
    """Two functions that make the object to launch: from a kernel's code, or without a kernel."""

    kernel: Callable[[bytes, str, Launch, GemmProblem, Any], Startable]
    product: Callable[[GemmProblem], Startable]


_codes: Resident[Any] = Resident(_CODES_PER_GPU, synchronize)
_kernels: Resident[Ready] = Resident(_KERNELS_PER_GPU, synchronize)
light_kernels: Resident[Ready] = Resident(_LIGHT_PER_GPU, synchronize)
"""Kernels without a workspace of their own, made with a given ``Make``; so kernels for many m can be loaded at once."""


def unload() -> set[int]:
    """Unloads all kernels, after waiting until their GPUs are idle; returns the GPUs that ever had a kernel."""
    return _kernels.clear() | light_kernels.clear() | _codes.clear()


def _kernel(
    wanted: Wanted, find: Find, found_by: Hashable, gpu: int, stream: int, *, fusion: bool, tell: Tell | None
) -> Startable:
    """The kernel for a problem, ready to launch; each stream has its own, as launches of a kernel must not overlap.

    Counts the request if the kernel is already loaded; otherwise ``find`` counts it.
    """
    # A product rounded to fp8 cannot have steps after it: it lacks the precision and the range.
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
    """The loaded kernel for a key; it is loaded at the first call, and again when a better kernel is ready.

    Counts the request if the kernel was already loaded; otherwise ``find`` counts it.

    Args:
        key: the problem, everything else that the result of ``find`` depends on, and, for a kernel with its own
            workspace, the stream.
        make: makes the object to launch, from a kernel's code or, if no kernel is ready, without one. These objects
            have no workspace and are kept in ``light_kernels``. By default: a ``LoadedKernel`` with its own
            workspace, or CuPy if no kernel is ready.
    """
    ready = (_kernels if make is None else light_kernels).find(gpu, key)
    if ready is None or (ready.better is not None and ready.better.ready):
        return _load(key, find, gpu, make)
    ready.count()
    return ready


def _load(key: tuple[Wanted, Hashable, Hashable], find: Find, gpu: int, make: Make | None) -> Ready:
    """Loads a kernel that is not loaded yet, or that replaces a loaded one; returns the loaded kernel."""
    asked, is_loaded, kept = key[0].problem, True, _kernels if make is None else light_kernels
    make = make or Make(LoadedKernel, _by_cupy)

    def load() -> Ready:
        nonlocal is_loaded
        is_loaded = False
        import cupy

        problem = asked.on(asked.arch or compiled_for(f"sm_{cupy.cuda.Device(gpu).compute_capability}"))
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
        # Running launches finish with the old kernel: its code stays loaded, and its memory is reused in stream order.
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
    """The operands of the kernel: the arrays in place, or copies of those that the plan says to copy."""
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
    """A, B or the bias as the kernel takes it: in place, or as a copy that the kernel can read with wide accesses.

    Args:
        stored: the layout of a copy: by rows (n) or by columns (t).
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
    """The type that CuPy accepts as an address. Cached, because an import for each array is slower than the rest."""
    import numpy

    return numpy.uint64


def _check_devices(views: Sequence[ArrayView | None], gpu: int, attributes: Callable[[int], Any], current: Any) -> None:
    """Refuses arrays on another GPU, and lets the current stream wait for streams that may still write the arrays."""
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
    """A CuPy stream from a CuPy or PyTorch stream, from an object with the CUDA stream protocol, or from a handle.

    In the body of a ``with`` it is the current stream.

    Raises:
        UsageError: when ``given`` is none of these.
    """
    import cupy

    handle = getattr(given, "cuda_stream", given)  # for a stream of PyTorch
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
    """Makes the stream with this handle the current one in a ``with``; does nothing if it already is."""
    import cupy

    return _NOTHING if cupy.cuda.get_current_stream().ptr == handle else _stream_of_handle(handle)


_NOTHING = nullcontext()
_stream_of_handle = cache(stream_of)


def _wait_for(stream: int, current: Any) -> None:
    """Lets the current stream wait for all work that is now in another stream."""
    if stream == current.ptr:
        return
    import cupy

    filled = cupy.cuda.Event(disable_timing=True)
    filled.record(stream_of(stream))
    current.wait_event(filled)
