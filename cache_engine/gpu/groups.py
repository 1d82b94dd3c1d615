"""Groups of rows, each multiplied by its own B: the meaning of the row counts, and the plan for such arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from cache_engine.errors import UsageError
from cache_engine.gpu.arrays import Form
from cache_engine.gpu.matmul_plan import MatmulPlan, plan_matmul
from cache_engine.model.gemm import NO_EPILOGUE, DType, Epilogue, GemmProblem, Layout, Mode


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The row counts: the number of rows of each group, for the kernel and for checks.

    Attributes:
        array: an int32 for each group, on the GPU, which the kernel reads.
        known: the same numbers on the CPU, to be checked; ``None`` if they are only on the GPU.
    """

    array: Any
    known: Sequence[int] | None = None


def rows_of_groups(problem: GemmProblem, counts: Iterable[int]) -> list[tuple[int, slice]]:
    """For each group, the index of the matrix of A and C that has its rows, and the range of its rows in that matrix.

    Counts are clamped as kernels clamp them: a count below 0 is 0, and a group ends at m at the latest.
    """
    found, first = [], 0
    for group, count in enumerate(counts):
        if problem.mode is Mode.MASKED:
            found.append((group, slice(0, min(max(count, 0), problem.m))))
        else:
            end = min(first + max(count, 0), problem.m)
            found.append((0, slice(first, end)))
            first = end
    return found


def given_counts(counts: Any, *, check: bool) -> GroupCounts:
    """The caller's row counts as ``GroupCounts``; numbers are copied to the GPU on the current stream.

    Args:
        check: whether to read counts that are on the GPU, to check them; this waits for the GPU.

    Raises:
        UsageError: when the counts are not a row of integers, or are on the GPU but not int32.
    """
    import cupy
    import numpy

    # The type is checked first: a CuPy array creates a new interface each time it is asked for one.
    name = "__cuda_array_interface__"
    speaks_cuda = hasattr(type(counts), name) or hasattr(counts, name)
    speaks_dlpack = hasattr(counts, "__dlpack_device__") and not isinstance(counts, numpy.ndarray)
    if speaks_cuda or speaks_dlpack:
        _check_element(getattr(counts, "dtype", "int32"))
        return GroupCounts(counts, cupy.asnumpy(cupy.asarray(counts)).ravel().tolist() if check else None)
    numbers = numpy.asarray(counts)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UsageError(f"counts is {counts!r}; give the rows of each group as whole numbers, or an array on the GPU")
    return GroupCounts(cupy.asarray(numpy.clip(numbers, -1, 2**31 - 1).astype(numpy.int32)), numbers.tolist())


@lru_cache(maxsize=64)
def _check_element(dtype: Hashable) -> None:
    """Raises an error unless a dtype of CuPy, NumPy or PyTorch is int32.

    Cached, as formatting NumPy's type takes a microsecond.
    """
    element = str(dtype).removeprefix("torch.")
    if element != "int32":
        raise UsageError(f"counts has elements of {element}; on a GPU they must be int32: convert them")


def check_counts(problem: GemmProblem, counts: Sequence[int]) -> None:
    """Checks the row counts of groups against the problem.

    Raises:
        UsageError: when the rows of a group are below 0 or above m, or when the groups share m rows and the sum is not
            m; the text names the group or the sum.
    """
    for group, count in enumerate(counts):
        if not 0 <= count <= problem.m:
            raise UsageError(f"group {group} has {count:,} rows; it must have 0 to {problem.m:,}")
    if problem.mode is Mode.GROUPED and sum(counts) != problem.m:
        raise UsageError(
            f"the groups have {sum(counts):,} rows together, and A has {problem.m:,}; every row must be of one group"
        )


def plan_groups(
    a: Form,
    b: Form,
    counts: Form,
    out: Form | None = None,
    bias: Form | None = None,
    dtype: DType | None = None,
    out_dtype: DType | None = None,
    epilogue: Epilogue = NO_EPILOGUE,
    a_scales: Form | None = None,
    b_scales: Form | None = None,
) -> MatmulPlan:
    """The plan of ``plan_matmul``, for groups: the mode is ``grouped`` if A has two axes, ``masked`` if it has three.

    Args:
        b: groups × k × n.
        counts: the layout of the row counts, an int32 for each group.
        bias: groups × n.

    Raises:
        UsageError: when the arrays do not fit together; the text says why.
    """
    if len(b.shape) != 3 or len(a.shape) not in (2, 3):
        raise UsageError(
            f"A has the shape {a.shape} and B {b.shape}; B must be groups × k × n, and A rows × k or groups × rows × k"
        )
    groups, _, n = b.shape
    if counts.element != DType.INT32 or counts.shape != (groups,) or not counts.is_packed():
        raise UsageError(
            f"counts has the shape {counts.shape} and elements of {counts.element}; it must have an int32 for each of "
            f"the {groups:,} groups that B has, with no gap"
        )
    masked = len(a.shape) == 3
    plain = plan_matmul(
        a, b if masked else _one(b), out, None, dtype, out_dtype, epilogue, None,
        a_scales, b_scales if masked or b_scales is None else _one(b_scales),
    )  # fmt: skip
    if bias is not None and (bias.shape != (groups, n) or not bias.is_packed()):
        raise UsageError(f"the bias has the shape {bias.shape}; it must be {groups} × {n}, row by row without a gap")
    if bias is not None and bias.itemsize != plain.problem.output.itemsize:
        raise UsageError(f"the bias has elements of {bias.element}; it must have those of C, {plain.problem.output}")
    b_lies_so = (b.transposed() if plain.problem.layout.b_transposed else b).is_packed()
    mode = Mode.MASKED if masked else Mode.GROUPED
    problem = replace(plain.problem, batch=groups, layout=Layout(f"n{plain.problem.layout[1]}"), mode=mode)
    return MatmulPlan(problem, not a.is_packed(), not b_lies_so, plain.shape)


def _one(form: Form) -> Form:
    """The layout of the first matrix of a batch."""
    return Form(form.element, form.shape[1:], form.strides[1:])
