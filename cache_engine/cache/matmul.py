"""``matmul`` and ``grouped_matmul``: from arrays on a GPU to products in one call, with a kernel from the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from typing import TYPE_CHECKING, Any

from cache_engine.cache.operator import code_found, default_cache, fuses
from cache_engine.cache.selection import check_wait
from cache_engine.cache.serving.launch_support import Product, code_of
from cache_engine.cache.stages import StageClock
from cache_engine.errors import UsageError
from cache_engine.gpu.matmul_plan import ArrayForms, asked_alike
from cache_engine.gpu.multiply import multiply, stream_of
from cache_engine.gpu.probe import require_gpu
from cache_engine.model.gemm import NO_EPILOGUE, Activation, ActivationLike, DType, DTypeLike, Epilogue, GemmProblem

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.gpu.groups import GroupCounts
    from cache_engine.gpu.multiply import Code


def matmul(
    a: Any,
    b: Any,
    out: Any | None = None,
    *,
    a_scales: Any | None = None,
    b_scales: Any | None = None,
    dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any | None = None,
    activation: ActivationLike = Activation.NONE,
    scale_result: float = 1.0,
    family: str | None = None,
    cache: Cache | None = None,
    fusion: bool | None = None,
    stream: Any | None = None,
    wait_ms: float | None = None,
    wait: float | None = None,
) -> Any:
    """``activation(alpha · A · B + beta · out + bias)``, started on the current stream, not waited for.

    The kernel comes from the cache the first time, and from this process's memory from then on.

    Example:
        ```python
        y = matmul(x, weight.T, bias=b, activation="gelu")  # x: m × k, weight: n × k, b: n elements
        ```

    Args:
        a: a matrix m × k, or a batch of them, on the current GPU: anything with ``__cuda_array_interface__`` or
            DLPack. It is read as it lies if that is row by row or column by column without a gap, at a multiple of 16
            bytes; else a copy of it is.
        b: likewise k × n. Without a batch it multiplies all of ``a``.
        out: where the product goes; row by row without a gap, sharing no memory with the others. By default a new
            CuPy array, of bf16 as uint16 unless ``a`` is a CuPy array of a bfloat16 type.
        a_scales: of fp8, a scale for each row of ``a`` and 128 of k, which is a multiple of it: m × k / 128 of fp32;
            or of E8M0 as ``uint8``, with columns filled up to a multiple of four. With a batch as ``a``.
        b_scales: likewise for each column of ``b``, n × k / 128, or for each 128 × 128, n / 128 (rounded up) × k / 128.
            ``quantise`` makes both. ``b`` must lie column by column, as a ``weight.T``.
        dtype: what the elements of ``a`` and ``b`` mean where the arrays cannot say it: ``"bf16"``, ``"fp8_e4m3"`` or
            ``"fp8_e5m2"`` in unsigned integers, ``"tf32"`` for fp32 rounded to ten bits of mantissa.
        out_dtype: element type of the product; by default that of ``out``, else that of the inputs where it can be.
        alpha: factor of the product.
        beta: factor of ``out``, which it needs.
        bias: an element for each column, added to every row.
        activation: applied last: ``"none"``, ``"relu"`` or ``"gelu"``.
        scale_result: of fp8 results (``out_dtype="fp8_e4m3"``), what they are multiplied by before they are rounded;
            what is beyond the largest value becomes that. ``beta`` and ``fusion=False`` are not for these.
        family: of kernels to take; by default the best for the types.
        cache: where kernels come from; by default the one that operators share.
        fusion: whether the kernel applies all but the product; by default as ``switches`` say. Else separate steps do,
            and the product is rounded to the type of the result once more, before them.
        stream: to use in place of CuPy's current one: a CuPy or PyTorch stream, or a handle.
        wait_ms: at most for a kernel that must be compiled; 0 is not at all. Then another kernel serves
            that is there and right, else CuPy does; the kernel takes its place in a later call.
        wait: the old name of ``wait_ms``.

    Returns:
        ``out``, or the new array; with ``wait_ms`` a ``Product`` with that.

    Raises:
        GpuRequired: when there is no GPU.
        UsageError: when the arrays do not go together; the text says why.
        OutOfDeviceMemory: when there is no room for a copy.
        CompilerMissing, CompileError: as ``Cache.get_or_compile``.
        NotCached: with compiling switched off, when no tier has a kernel of the ``family`` that was named. Without a
            family CuPy multiplies, with cuBLAS.
    """
    require_gpu("matmul")
    wait_ms = check_wait(wait_ms, wait)

    def find(problem: GemmProblem) -> Code:
        there = cache or default_cache()
        if wait_ms is None:
            return code_found(there, problem, family, None, lambda: there.get_to_launch(problem, family=family))
        asked, most_ms = (problem, family, None, None), wait_ms
        return code_found(there, problem, family, None, lambda: there.stand_ins.get(asked, StageClock(), most_ms))

    served: list[tuple[str, Any]] = []
    asked = _asked(dtype, out_dtype, alpha != 1.0, beta != 0.0, bias is not None, activation)
    array = multiply(
        a, b, out, bias, asked, find, (family, None, cache, wait_ms is not None),
        a_scales=a_scales, b_scales=b_scales, alpha=alpha, beta=beta, scale_result=scale_result,
        fusion=asked.epilogue == NO_EPILOGUE or fuses(fusion), stream=stream,
        tell=None if wait_ms is None else lambda name, better: served.append((name, better)),
    )  # fmt: skip
    return array if wait_ms is None else Product(array, *served[0])


def grouped_matmul(
    a: Any,
    b: Any,
    counts: Any,
    out: Any | None = None,
    *,
    a_scales: Any | None = None,
    b_scales: Any | None = None,
    dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any | None = None,
    activation: ActivationLike = Activation.NONE,
    scale_result: float = 1.0,
    check: bool = False,
    cache: Cache | None = None,
    stream: Any | None = None,
) -> Any:
    """``matmul`` of groups of rows, each with a matrix of its own in ``b``: the experts of a mixture.

    Example:
        ```python
        # tokens: m × k, sorted by expert; weights: experts × n × k; counts: int32, the tokens of each expert
        y = grouped_matmul(tokens, weights.swapaxes(1, 2), counts)
        ```

    Arguments not named here are those of ``matmul``. The kernel always applies the epilogue.

    Args:
        a: m × k, the rows of all groups, those of the first group first; or groups × m × k, where the first rows of
            each matrix are used. Read as it lies where that is row by row without a gap; else a copy of it is.
        b: groups × k × n.
        counts: how many rows each group has. An array of int32 on the GPU, which is not waited for; or whole numbers in
            a list, a tuple or a NumPy array, which are checked.
        out: as of ``matmul``: m × n, or groups × m × n. Rows that belong to no group are left as they are.
        a_scales: as of ``matmul``: with a row for each of ``a``.
        b_scales: as of ``matmul``, for each group.
        bias: groups × n.
        check: whether counts on the GPU are checked too, which waits for it. The kernel clamps those that are not, so
            it never writes outside of ``out``.

    Returns:
        ``out``, or a new array, whose rows of no group may hold anything.

    Raises:
        GpuRequired: when there is no GPU.
        UsageError: when the arrays do not go together, or counts are wrong: a number below 0 or beyond m, or, where the
            groups share ``a``, numbers whose sum is not m.
        OutOfDeviceMemory: when there is no room for a copy.
        NotCached, CompilerMissing, CompileError: as ``Cache.get_or_compile``.
    """
    require_gpu("grouped_matmul")
    given_counts = _given_counts()
    if stream is None:
        given = given_counts(counts, check=check)
    else:
        with stream_of(stream):
            given = given_counts(counts, check=check)

    def find(problem: GemmProblem) -> Code:
        there = cache or default_cache()
        return code_of(there.get_to_launch(problem), there.journal)

    asked = _asked(dtype, out_dtype, alpha != 1.0, beta != 0.0, bias is not None, activation)
    return multiply(
        a, b, out, bias, asked, find, (None, None, cache, False), a_scales=a_scales, b_scales=b_scales, alpha=alpha,
        beta=beta, stream=stream, counts=given, scale_result=scale_result,
    )  # fmt: skip


@cached
def _given_counts() -> Callable[..., GroupCounts]:
    """Imported when it is first needed: few programs pass counts."""
    from cache_engine.gpu.groups import given_counts

    return given_counts


@cached
def _asked(
    dtype: DTypeLike | None,
    out_dtype: DTypeLike | None,
    alpha: bool,
    beta: bool,
    bias: bool,
    activation: ActivationLike,
) -> ArrayForms:
    """The arguments that calls with the same names share: one object, by which plans are looked up."""
    epilogue = _epilogue(alpha, beta, bias, str(activation))
    return asked_alike(_dtype("dtype", dtype), _dtype("out_dtype", out_dtype), epilogue)


def _dtype(name: str, asked: DTypeLike | None) -> DType | None:
    try:
        return None if asked is None else DType(str(asked))
    except ValueError:
        raise UsageError(f"unknown {name} {str(asked)!r}; use one of: {', '.join(DType)}") from None


def _epilogue(alpha: bool, beta: bool, bias: bool, activation: str) -> Epilogue:
    try:
        return Epilogue(alpha, beta, bias, Activation(activation))
    except ValueError:
        raise UsageError(f"unknown activation {activation!r}; use one of: {', '.join(Activation)}") from None
