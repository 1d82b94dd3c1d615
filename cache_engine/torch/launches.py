"""Launching kernels for tensors of a GPU: memory and streams are PyTorch's, kernels come from the cache.

The plan and the kernel depend only on the dtypes, shapes, strides and devices of the tensors, so they are found once
for each combination of these. While a CUDA graph is captured, no kernel is looked up, compiled or loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cache_engine.errors import CompilerMissing, InvalidProblem, UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.arrays import BITS8, Form
from cache_engine.gpu.launch import LoadedKernel, Operands, Startable
from cache_engine.gpu.matmul_plan import ALIGNMENT, MatmulPlan, asked_alike
from cache_engine.gpu.multiply import Code, Wanted
from cache_engine.gpu.probe import require_gpu
from cache_engine.model.gemm import Activation, DType, Epilogue, GemmProblem, Mode
from cache_engine.model.key import CacheKey
from cache_engine.torch.products import DTYPES

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.model.kernel import Launch

_log = logging.getLogger(__name__)
_TORCH_TYPES = {ours: theirs for theirs, ours in DTYPES.items()}


@dataclass(slots=True)
class Serving:
    """The source of the kernels for PyTorch's tensors. Set it before the first call.

    Attributes:
        cache: the cache that kernels come from; by default the one that operators share.
        wait_ms: the longest wait for a kernel that must be compiled, in milliseconds; ``None`` for no limit. After
            that wait, until the kernel is ready, another correct stored kernel serves, or without one PyTorch's own
            product.
        strict_graphs: whether a call raises an error if its kernel is not loaded while a CUDA graph is captured.
            Otherwise the graph gets PyTorch's own product, and the log says so.
    """

    cache: Cache | None = None
    wait_ms: float | None = 0.0
    strict_graphs: bool = True


serving = Serving()
"""The source of the kernels for all products in this process."""


class Gpu:
    """The facts about the GPU that a launch gets from PyTorch. Tests replace it by one that treats the CPU as a GPU."""

    def owns(self, tensor: Any) -> bool:
        """Whether the tensor is on a GPU for which there are kernels."""
        return bool(tensor.is_cuda)

    def on(self, tensor: Any) -> AbstractContextManager[Any]:
        """A context manager in which the tensor's GPU is the current one.

        PyTorch does not make it the current one for an operator written in Python.
        """
        return nullcontext() if tensor.get_device() == self.current() else torch.cuda.device(tensor.device)

    def current(self) -> int:
        """The number of the current GPU."""
        return int(torch.cuda.current_device())

    def stream(self) -> int:
        """The handle of the current stream of the current GPU."""
        return int(torch._C._cuda_getCurrentRawStream(self.current()))  # noqa: SLF001 (as Inductor's code does)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a CUDA graph."""
        return bool(torch.cuda.is_current_stream_capturing())


gpu = Gpu()
"""The ``Gpu`` that all launches in this process use."""


class Given(NamedTuple):
    """The tensors of one product, and the other arguments of its operator.

    Attributes:
        own: a function without arguments that computes the product with PyTorch's own functions.
        check: raises ``UsageError`` if the same arguments do not fit together. Called once for all tensors with equal
            dtypes, shapes, strides and devices.
        transposes_b: whether the B of the product is the transpose of ``b``.
    """

    a: Any
    b: Any
    own: partial[Any]
    check: Callable[..., object]
    bias: Any | None = None
    activation: str = "none"
    out_dtype: Any | None = None
    a_scales: Any | None = None
    b_scales: Any | None = None
    counts: Any | None = None
    transposes_b: bool = False


def product(given: Given, out: Any | None = None, *, waits: bool = False) -> Any:
    """Starts the product on PyTorch's current stream; returns ``out`` or a new tensor, without waiting for the result.

    Args:
        waits: whether to wait for a kernel that must be compiled, whatever ``serving`` says.

    Raises:
        UsageError: when the tensors do not fit together; when a CUDA graph is captured and the kernel is not loaded.
        ExtraMissing, CompileError: as ``cache_engine.matmul``.
    """
    a, b, bias = given.a, given.b, given.bias
    if bias is not None and not bias.is_contiguous():
        return product(given._replace(bias=bias.contiguous()), out, waits=waits)
    forms = (
        given.activation, given.out_dtype, given.transposes_b, tf32(a.dtype),
        *[
            None if one is None else (one.dtype, one.shape, one.stride(), one.get_device())
            for one in (a, b, bias, given.a_scales, given.b_scales, given.counts)
        ],
    )  # fmt: skip
    found = _plans[forms] if forms in _plans else _new_plan(given, forms)
    if found is None:
        return given.own() if out is None else out.copy_(given.own())
    plan, wanted = found
    if plan.copy_a or a.data_ptr() % ALIGNMENT:
        return product(given._replace(a=_moved(a, plan.copy_a)), out, waits=waits)
    if plan.copy_b or b.data_ptr() % ALIGNMENT:
        return product(given._replace(b=_moved(b, plan.copy_b)), out, waits=waits)
    if bias is not None and bias.data_ptr() % ALIGNMENT:
        return product(given._replace(bias=bias.clone()), out, waits=waits)
    with gpu.on(a):
        kernel = _kernel(wanted, gpu.current(), waits=waits)
        if not isinstance(kernel, _Loaded):
            return given.own() if out is None else out.copy_(given.own())
        # A kernel does not write rows of a matrix that belong to no group.
        make = torch.zeros if plan.problem.mode is Mode.MASKED else torch.empty
        y = make(plan.shape, dtype=_TORCH_TYPES[plan.problem.output], device=a.device) if out is None else out
        kernel.launch(given, y)
    return y


def _moved(tensor: Any, has_gaps: bool) -> Any:
    """A contiguous copy of a tensor, at an address from which a kernel can read.

    The copy has the tensor's strides, unless the tensor has gaps between its elements; then it is contiguous by rows.
    """
    return tensor.clone(memory_format=torch.contiguous_format if has_gaps else torch.preserve_format)


# ---- Plans ----

_plans: dict[Any, tuple[MatmulPlan, Wanted] | None] = {}
_MOST_PLANS = 8192
_NAMES = ("A", "B", "the bias", "a_scales", "b_scales", "counts")


def _new_plan(given: Given, forms: Any) -> tuple[MatmulPlan, Wanted] | None:
    given.check(*given.own.args, **given.own.keywords)
    require_gpu("a product of PyTorch's tensors")
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    found = _plans[forms] = plan_of(*forms)
    return found


def plan_of(
    activation: str, out_dtype: Any, transposes_b: bool, is_tf32: bool, *tensors: Any
) -> tuple[MatmulPlan, Wanted] | None:
    """The plan for tensors of these types, shapes and strides, and the value by which its kernel is looked up.

    ``None`` if no kernel can compute the product. Needs no GPU.
    """
    if any(one is not None and 0 in one[1] for one in tensors[:2]):
        return None
    a, b, bias, *further = (
        None if one is None else _form(name, *one[:3]) for name, one in zip(_NAMES, tensors, strict=False)
    )
    assert a is not None  # noqa: S101 (for the type checker)
    assert b is not None  # noqa: S101
    a_scales, b_scales, counts = further or (None, None, None)
    epilogue = Epilogue(bias=bias is not None, activation=Activation(activation))
    asked = asked_alike(DType.TF32 if is_tf32 else None, out_dtype and DTYPES[out_dtype], epilogue)
    try:
        return multiply.planned(
            asked, (a, b.transposed() if transposes_b else b, None, bias, a_scales, b_scales, counts)
        )
    except InvalidProblem as error:
        _log.info("PyTorch multiplies: %s", error)
        return None


def _form(name: str, dtype: Any, shape: Any, strides: Any) -> Form:
    # Scales of E8M0 are bytes.
    element = BITS8 if dtype in (torch.uint8, getattr(torch, "float8_e8m0fnu", None)) else DTYPES.get(dtype)
    if element is None:
        raise UsageError(f"{name} has the dtype {dtype}; kernels have {', '.join(map(str, DTYPES))}: convert it")
    return Form(str(element), tuple(shape), tuple(strides))


def tf32(dtype: Any) -> bool:
    """Whether a dtype is fp32 whose elements may be rounded to ten bits of mantissa, by a setting of PyTorch.

    The setting is ``torch.set_float32_matmul_precision``, or since 2.9 ``torch.backends.cuda.matmul.fp32_precision``.
    """
    if dtype is not torch.float32:
        return False
    try:
        return bool(torch.get_float32_matmul_precision() != "highest")
    except RuntimeError:  # the program has used the newer setting, after which PyTorch refuses to read the older
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# ---- Kernels ----


def load(problem: GemmProblem) -> None:
    """Loads a problem's kernel on the current GPU, so that a later launch need not.

    Waits until the kernel is compiled; if a faster kernel must first be proved on this GPU, also waits for the proof.
    """
    key, number = _key(Wanted(problem), serving.wait_ms), gpu.current()
    better: Any = multiply.ready_kernel(key, partial(_find, None), number, _MAKE).better
    if better is not None and better.wait():
        multiply.ready_kernel(key, partial(_find, None), number, _MAKE)


def _key(wanted: Wanted, most_ms: float | None) -> tuple[Wanted, Hashable, Hashable]:
    return wanted, ("torch", serving.cache, most_ms is None), "any stream"


def _kernel(wanted: Wanted, number: int, *, waits: bool = False) -> Startable:
    most_ms = None if waits else serving.wait_ms
    key = _key(wanted, most_ms)
    there = multiply.light_kernels.find(number, key)
    if there is None or there.better is not None:
        if not gpu.is_capturing():
            return multiply.ready_kernel(key, partial(_find, most_ms), number, _MAKE).kernel
        if there is None or not isinstance(there.kernel, _Loaded):
            if serving.strict_graphs:
                raise UsageError(
                    f"a CUDA graph is being captured, and the kernel for {wanted.problem!r} is not loaded; call "
                    "cache_engine.torch.warm(model, m=…) before, with this number of rows"
                )
            _log.warning("a CUDA graph is captured with PyTorch's product: no kernel is loaded for %r", wanted.problem)
            return _ByTorch(wanted.problem)
    there.count()
    return there.kernel


def _find(most_ms: float | None, problem: GemmProblem) -> Code:
    """The code of the kernel for a problem; code without a kernel if PyTorch's own product must serve instead."""
    from cache_engine.cache.operator import code_found, default_cache

    there = serving.cache or default_cache()

    try:
        return code_found(there, problem, None, None, partial(there.get_to_launch, problem, wait_ms=most_ms))
    except (UsageError, InvalidProblem, CompilerMissing) as error:  # the first where no family computes it
        _log.warning("PyTorch multiplies %r: %s", problem, error)
        return Code(CacheKey(""), None, "", None, there.journal.asked)


@dataclass(slots=True)
class _ByTorch:
    """Takes the place of a kernel when there is none: the caller then computes PyTorch's own product."""

    problem: GemmProblem
    name: str = "PyTorch"

    def __call__(self, operands: Operands) -> None:
        raise AssertionError(f"no kernel to launch with {operands}: the caller computes PyTorch's own product")


@dataclass(slots=True)
class _Kept:
    size_bytes: int = 0


_kept = _Kept()
"""The bytes of the stored workspaces of all kernels together."""
_MOST_KEPT_BYTES = 2**28


class _Loaded:
    """A kernel in a GPU's memory, and for each stream a workspace: memory in which its blocks exchange accumulators."""

    def __init__(self, cubin: bytes, name: str, launch: Launch, problem: GemmProblem, function: Any) -> None:
        self.name, self.problem = name, problem
        self._workspaces: dict[tuple[int, int], Any] = {}
        self._kernel = LoadedKernel(cubin, name, launch, problem, function, has_workspace=False)

    def __call__(self, operands: Operands) -> None:
        self._kernel(operands)

    def launch(self, given: Given, y: Any) -> None:
        """Starts the kernel on PyTorch's current stream; it writes the product to ``y``."""
        from numpy import uint64

        stream, is_captured = gpu.stream(), gpu.is_capturing()
        if is_captured:
            _in_graphs.add(self)
        operands = Operands(uint64(given.a.data_ptr()), uint64(given.b.data_ptr()), uint64(y.data_ptr()))
        if given.bias is not None:
            operands.bias = uint64(given.bias.data_ptr())
        if given.a_scales is not None and given.b_scales is not None:
            operands.a_scales, operands.b_scales = uint64(given.a_scales.data_ptr()), uint64(given.b_scales.data_ptr())
        if given.counts is not None:
            operands.counts = uint64(given.counts.data_ptr())
        if self._kernel.workspace_bytes:
            workspace = self._workspace(stream, y.device, is_captured=is_captured)
            operands.workspace = uint64(workspace.data_ptr())
        with multiply.on_stream(stream):
            self._kernel(operands)

    def _workspace(self, stream: int, device: Any, *, is_captured: bool) -> Any:
        """A workspace for one launch on a stream. It begins with counters, which are 0.

        Each stream has its own, because launches of one stream do not overlap; a launch leaves the counters 0. Other
        kernels cannot share it, because the sums that a launch leaves may lie where their counters are. A CUDA graph
        that is being captured gets another one, from the graph's memory pool, which each replay fills with zeroes,
        because replays and other launches may overlap. When the stored workspaces have reached ``_MOST_KEPT_BYTES``, a
        launch gets a workspace that is not stored.
        """
        size = self._kernel.workspace_bytes
        key = (stream, get_ident() if stream == multiply.PER_THREAD else 0)
        there = self._workspaces.get(key)
        if there is not None and not is_captured:
            return there
        made = torch.zeros(size, dtype=torch.uint8, device=device)
        if not is_captured and _kept.size_bytes + size <= _MOST_KEPT_BYTES:
            _kept.size_bytes += size
            self._workspaces[key] = made
        return made

    def __del__(self, kept: _Kept = _kept) -> None:  # a default, because at the end of the process globals are gone
        kept.size_bytes -= sum(one.numel() for one in self._workspaces.values())


_in_graphs: set[_Loaded] = set()
"""Kernels in captured CUDA graphs. They stay loaded, because a replay launches them without asking for them."""


_MAKE = multiply.Make(_Loaded, _ByTorch)
