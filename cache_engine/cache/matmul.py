"""``matmul`` and ``grouped_matmul``: multiply arrays on a GPU in one call, with a kernel from the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cached
from functools import partial
from typing import TYPE_CHECKING, Any

from cache_engine.cache.operator import Product, code_found, code_of, default_cache, fuses
from cache_engine.cache.selection import check_wait
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
    """``activation(alpha · A · B + beta · out + bias)``, started on the current stream; does not wait for the result.

    The first call gets the kernel from the cache; later calls use it from this process's memory.

    Example:
        ```python
        y = matmul(x, weight.T, bias=b, activation="gelu")  # x: m × k, weight: n × k, b: n elements
        ```

    Args:
        a: a matrix m × k, or a batch of them, on the current GPU: anything with ``__cuda_array_interface__`` or
            DLPack. It is read in place if it is contiguous, by rows or by columns, and starts at a multiple of 16
            bytes; otherwise a copy is made.
        b: a matrix k × n or a batch of them, as ``a``. One matrix multiplies every matrix of ``a``.
        out: the array for the product; contiguous by rows, and without memory in common with the inputs. By default a
            new CuPy array; bf16 is stored as uint16, unless ``a`` is a CuPy array of a bfloat16 type.
        a_scales: for fp8, one scale for each row of ``a`` and each 128 elements of k: m × k / 128 of fp32, or of E8M0
            as ``uint8`` with the columns padded to a multiple of four. k must be a multiple of 128. Batched if ``a``
            is.
        b_scales: the same for each column of ``b``: n × k / 128; or one scale for each block of 128 × 128: n / 128
            (rounded up) × k / 128. ``quantise`` makes ``a_scales`` and ``b_scales``. ``b`` must be contiguous by
            columns, as ``weight.T`` is.
        dtype: the element type of ``a`` and ``b``, if the arrays cannot express it: ``"bf16"``, ``"fp8_e4m3"`` or
            ``"fp8_e5m2"`` in unsigned integers, ``"tf32"`` for fp32 rounded to ten bits of mantissa.
        out_dtype: the element type of the product; by default that of ``out``, else that of the inputs if a product can
            have it.
        alpha: factor of the product.
        beta: factor of ``out``; needs ``out``.
        bias: n elements, one for each column, added to every row.
        activation: applied last: ``"none"``, ``"relu"`` or ``"gelu"``.
        scale_result: for fp8 results (``out_dtype="fp8_e4m3"``), the factor applied before rounding; larger results
            become the largest fp8 value. Not together with ``beta`` or ``fusion=False``.
        family: the family of kernels to use; by default the best for the types.
        cache: the cache that kernels come from; by default the one that operators share.
        fusion: whether the kernel also applies alpha, beta, bias and activation; by default as ``switches`` say.
            Otherwise separate steps apply them, and the product is first rounded to the type of the result.
        stream: the stream to use in place of CuPy's current one: a CuPy or PyTorch stream, or a handle.
        wait_ms: the longest wait for a kernel that must be compiled, in milliseconds; 0 for no wait. After it, another
            stored kernel that is correct for the arrays is used, else CuPy multiplies. A later call uses the compiled
            kernel.
        wait: the old name of ``wait_ms``.

    Returns:
        ``out``, or the new array; with ``wait_ms`` a ``Product`` that contains it.

    Raises:
        GpuRequired: when there is no GPU.
        UsageError: when the arrays do not fit together; the text says why.
        OutOfDeviceMemory: when the GPU has no memory for a copy.
        CompilerMissing, CompileError: as ``Cache.get_or_compile``.
        NotCached: when compiling is switched off and no tier has a kernel of the given ``family``. Without a given
            family, CuPy multiplies with cuBLAS instead.
    """
    require_gpu("matmul")
    wait_ms = check_wait(wait_ms, wait)

    def find(problem: GemmProblem) -> Code:
        there = cache or default_cache()
        get = partial(there.get_to_launch, problem, family=family, wait_ms=wait_ms)
        return code_found(there, problem, family, None, get)

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
    """Multiplies each group of rows of ``a`` by its own matrix in ``b``: the experts of a mixture.

    Example:
        ```python
        # tokens: m × k, sorted by expert; weights: experts × n × k; counts: int32, the tokens of each expert
        y = grouped_matmul(tokens, weights.swapaxes(1, 2), counts)
        ```

    Arguments not listed here are those of ``matmul``. The kernel always applies the epilogue.

    Args:
        a: m × k, the rows of all groups in the order of the groups; or groups × m × k, with the rows of a group at the
            start of its matrix. It is read in place if it is contiguous by rows; otherwise a copy is made.
        b: groups × k × n.
        counts: the number of rows of each group: an array of int32 on the GPU, which the call does not wait for or
            check; or integers in a list, a tuple or a NumPy array, which are checked.
        out: as for ``matmul``: m × n, or groups × m × n. Rows that belong to no group stay unchanged.
        a_scales: as for ``matmul``, with a row for each row of ``a``.
        b_scales: as for ``matmul``, for each group.
        bias: groups × n.
        check: whether counts on the GPU are checked too, which waits for the GPU. The kernel clamps unchecked counts,
            so it never writes outside of ``out``.

    Returns:
        ``out``, or a new array; in a new array, rows that belong to no group have any values.

    Raises:
        GpuRequired: when there is no GPU.
        UsageError: when the arrays do not fit together, or counts are wrong: below 0, above m, or, if ``a`` is one
            matrix for all groups, with a sum other than m.
        OutOfDeviceMemory: when the GPU has no memory for a copy.
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
    """The function that prepares ``counts``, imported at its first use, because few programs pass counts."""
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
    """The arguments that decide a plan, as one object: calls with equal arguments get the same object."""
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
