"""Makes a GemmProblem from the layouts of arrays, and decides which arrays must be copied. Does not use the GPU.

A kernel needs operands that are contiguous, by rows or by columns, and start at a multiple of 16 bytes. An A or B that
does not is copied; C cannot be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from cache_engine.errors import UsageError
from cache_engine.gpu.arrays import BITS8, BITS16, ITEMSIZE, ArrayView, Form
from cache_engine.model.gemm import NO_EPILOGUE, SCALE_BLOCK, DType, Epilogue, GemmProblem, Layout, Scales

ALIGNMENT = 16
"""Operands must start at a multiple of this number of bytes (``Launch``)."""


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """A plan of ``matmul`` for arrays with certain layouts.

    Attributes:
        problem: the problem; its target is set only if the operator names one.
        copy_a, copy_b: whether the operand is copied, because a kernel cannot read its layout.
        shape: the shape of C.
    """

    problem: GemmProblem
    copy_a: bool
    copy_b: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayForms:
    """The arguments of ``plan_matmul`` that many calls have in common.

    Plans are cached by the identity of this object, so ``asked_alike`` makes one object for equal values.
    """

    dtype: DType | None
    out_dtype: DType | None
    epilogue: Epilogue
    kind: GemmProblem | None


@lru_cache(maxsize=1024)
def asked_alike(
    dtype: DType | None, out_dtype: DType | None, epilogue: Epilogue, kind: GemmProblem | None = None
) -> ArrayForms:
    """The ``ArrayForms`` with these values; equal values give the same object."""
    return ArrayForms(dtype, out_dtype, epilogue, kind)


def plan_matmul(
    a: Form,
    b: Form,
    out: Form | None = None,
    bias: Form | None = None,
    dtype: DType | None = None,
    out_dtype: DType | None = None,
    epilogue: Epilogue = NO_EPILOGUE,
    kind: GemmProblem | None = None,
    a_scales: Form | None = None,
    b_scales: Form | None = None,
) -> MatmulPlan:
    """The plan for C = A · B.

    The last two axes are rows and columns, the others a batch. Both have the same batch, or B has none: then all
    matrices of A are treated as one with all their rows.

    Args:
        out, bias: the layouts of C and of the bias, if given.
        dtype: the element type of A and B, if the arrays cannot express it: bf16 or fp8 in unsigned integers or raw
            bits, tf32 in fp32.
        out_dtype: the type of C; by default that of ``out``, else the default for the inputs.
        epilogue: the steps applied to the product.
        kind: a problem from which the planned problem takes all values except the sizes; give its types and epilogue
            as the other arguments too. By default the layout is that of the arrays, and other values are the
            defaults of ``GemmProblem``.
        a_scales, b_scales: the layouts of the scales of A and of B: both or neither. With them, B is stored n × k.

    Raises:
        UsageError: when the arrays do not fit together or do not fit ``kind``; the text says why.
    """
    for name, form in (("A", a), ("B", b)):
        if len(form.shape) < 2:
            raise UsageError(f"{name} has the shape {form.shape}; it must have rows and columns: reshape it")
        if 0 in form.shape:
            raise UsageError(f"{name} has the shape {form.shape}, and so no element")
    *batch, m, k = a.shape
    *b_batch, b_rows, n = b.shape
    if b_rows != k:
        raise UsageError(f"A is {_shown(a)} and B {_shown(b)}; A must have as many columns as B has rows")
    if b_batch and batch != b_batch:
        raise UsageError(f"A is {_shown(a)} and B {_shown(b)}; their batches must be the same, or B have none")
    folded = bool(batch) and not b_batch
    a_layout, b_layout = ("n" if a.is_packed() else None) if folded else _layout(a), _layout(b)
    rows, count = (m * math.prod(batch), 1) if folded else (m, math.prod(batch))
    element = _element(a, b, dtype)
    scales = _scales(a_scales, b_scales, n)
    if kind is None:
        layout = Layout((a_layout or "n") + (b_layout or ("t" if scales else "n")))
        out_dtype = _out_dtype(out, out_dtype)
        problem = GemmProblem(rows, n, k, count, element, out_dtype, layout, epilogue=epilogue, scales=scales)
    else:
        _check_scales_asked(scales, kind.scales)
        a_layout = _layout_asked("A", a, a_layout, kind.layout, folded=folded)
        b_layout = _layout_asked("B", b, b_layout, kind.layout)
        problem = replace(kind, m=rows, n=n, k=k, batch=count)
    if a_scales is not None and b_scales is not None:
        of_a, of_b = problem.scales.shapes(m, n, k)
        _check_scales("A", a_scales, (*batch, *of_a))
        _check_scales("B", b_scales, (*b_batch, *of_b))
    shape = (*batch, m, n)
    if out is not None:
        _check_out(out, shape, problem.output)
    if bias is not None:
        _check_bias(bias, n, problem.output)
    return MatmulPlan(problem, a_layout is None, b_layout is None, shape)


def check_places(
    a: ArrayView, b: ArrayView, out: ArrayView | None, bias: ArrayView | None, *scales: ArrayView | None
) -> None:
    """Checks the addresses of arrays whose layouts ``plan_matmul`` has accepted.

    Raises:
        UsageError: when C cannot be written at its address, or an array cannot be read at its address.
    """
    if bias is not None and bias.address % bias.form.itemsize:
        raise UsageError(f"the bias starts at an address that is no multiple of {bias.form.itemsize}; copy it first")
    for one in scales:
        if one is not None and one.address % one.form.itemsize:
            raise UsageError(f"scales start at an address that is no multiple of {one.form.itemsize}; copy them first")
    if out is None:
        return
    if out.read_only:
        raise UsageError("out is read-only")
    if out.address % ALIGNMENT:
        raise UsageError(f"out starts at an address that is no multiple of {ALIGNMENT}; take one that is not cut off")
    for place, other in enumerate((a, b, bias, *scales)):
        if other is not None and out.overlaps(other):
            name = ("A", "B", "the bias", "scales")[min(place, 3)]
            raise UsageError(f"out overlaps {name}; give it separate memory, or leave it out")


def _layout(form: Form) -> str | None:
    """The layout of a matrix: ``n`` by rows, ``t`` by columns, or ``None`` if it is not contiguous.

    A single row or column has both layouts. Then the result is the one with the longer rows in memory, because those
    are read with wider accesses.
    """
    rows, columns = form.shape[-2:]
    as_is, transposed = form.is_packed(), form.transposed().is_packed()
    if as_is and transposed:
        return "n" if columns >= rows else "t"
    return "n" if as_is else "t" if transposed else None


def _layout_asked(name: str, form: Form, own: str | None, asked: Layout, *, folded: bool = False) -> str | None:
    """The layout of an operand, if it is the one that the operator needs; ``None`` if the operand has no known layout.

    Raises:
        UsageError: when the operand has the other layout. Copying it at every call would be slow and hide the mistake.
    """
    wanted = asked[0] if name == "A" else asked[1]
    if folded and wanted == "t":
        raise UsageError(
            f"A is {_shown(form)} and B has no batch, so A is read row by row, and the operator's layout is {asked}; "
            f"use an operator with the layout n{asked[1]}, or give A as one matrix"
        )
    if own is None or own == wanted or (form.is_packed() and form.transposed().is_packed()):
        return None if own is None else wanted
    lies, other = ("row", "column") if own == "n" else ("column", "row")
    fitting = f"{own}{asked[1]}" if name == "A" else f"{asked[0]}{own}"
    raise UsageError(
        f"{name} is {_shown(form)} and lies {lies} by {lies}; the operator's layout, {asked}, needs it {other} by "
        f"{other}. Use an operator with the layout {fitting}, or store {name} transposed and give its .T"
    )


def _element(a: Form, b: Form, asked: DType | None) -> DType:
    """The element type of A and B."""
    if a.element != b.element:
        raise UsageError(f"A has elements of {a.element} and B of {b.element}; convert one of them")
    return _meaning("A and B", a.element, asked)


def _meaning(name: str, element: str, asked: DType | None) -> DType:
    """The element type of an array that states ``element``, if the caller asked for ``asked``."""
    raw = element in (BITS8, BITS16)
    if asked is None:
        if raw:
            bits = ", ".join(dtype.value for dtype in DType if dtype.itemsize == ITEMSIZE[element])
            raise UsageError(f"{name} hold {element} that may mean anything; say what, with dtype= one of: {bits}")
        return DType(element)
    fits = asked.value == element or (raw and asked.itemsize == ITEMSIZE[element])
    if not fits and (asked, element) != (DType.TF32, DType.FP32.value):
        raise UsageError(f"{name} hold {element}, which cannot be taken for {asked}; convert them")
    return asked


def _out_dtype(out: Form | None, asked: DType | None) -> DType | None:
    """The type of C; ``None`` for the default of the problem."""
    if asked is not None or out is None or out.element in (BITS8, BITS16):
        return asked
    return DType(out.element)


def _check_out(out: Form, shape: tuple[int, ...], dtype: DType) -> None:
    if out.shape != shape:
        raise UsageError(f"out is {_shown(out)}; C is {' × '.join(map(str, shape))}")
    if out.element not in (dtype.value, _bits(dtype)):
        raise UsageError(f"out has elements of {out.element}; C is of {dtype}")
    if not out.is_packed():
        raise UsageError(f"out has strides of {out.strides} elements; C is written row by row without a gap")


def _check_bias(bias: Form, n: int, dtype: DType) -> None:
    if bias.shape != (n,) or not bias.is_packed():
        raise UsageError(f"the bias is {_shown(bias)}; it must be {n} elements one behind the other")
    if bias.element not in (dtype.value, _bits(dtype)):
        raise UsageError(f"the bias has elements of {bias.element}; it must have those of C, {dtype}")


def _scales(a: Form | None, b: Form | None, n: int) -> Scales:
    """The kind of scales, from the shape of B's scales: they have a row for each column, or each 128 columns, of B."""
    if a is None and b is None:
        return Scales.NONE
    if a is None or b is None:
        raise UsageError("scales are given of one operand; give a_scales and b_scales, or neither")
    if a.element != b.element or a.element not in (DType.FP32, BITS8):
        raise UsageError(f"scales have elements of {a.element} and {b.element}; both must be fp32, or E8M0 as uint8")
    whole = len(b.shape) > 1 and b.shape[-2] == -(-n // SCALE_BLOCK)
    if a.element == BITS8:
        return Scales.BLOCKS_E8M0 if whole else Scales.ROWS_E8M0
    return Scales.BLOCKS if whole else Scales.ROWS


def _check_scales_asked(given: Scales, asked: Scales) -> None:
    """Checks that a call gives scales if and only if the operator has scales, and for the same blocks."""
    if asked and not given:
        raise UsageError(f"the operator's operands have scales, {asked}; give a_scales and b_scales")
    if given and not asked:
        raise UsageError("the operator's operands have no scales; leave them out, or make an operator with scales=")
    if given.is_e8m0 is not asked.is_e8m0:
        kinds = ["fp32", "E8M0 as uint8"]
        raise UsageError(f"scales are {kinds[given.is_e8m0]}; the operator's are {kinds[asked.is_e8m0]}, {asked}")


def _check_scales(name: str, scales: Form, shape: tuple[int, ...]) -> None:
    if scales.shape != shape or not scales.is_packed():
        right = " × ".join(map(str, shape))
        raise UsageError(
            f"the scales of {name} are {_shown(scales)}; they must be {right}, row by row without a "
            "gap: a column for each 128 of k, of E8M0 filled up to a multiple of four"
        )


def _bits(dtype: DType) -> str | None:
    """The name, by size alone, of a type that arrays have no name for; ``None`` if they have one."""
    names = {DType.BF16: BITS16, DType.FP8_E4M3: BITS8, DType.FP8_E5M2: BITS8}
    return names.get(dtype)


def _shown(form: Form) -> str:
    return " × ".join(map(str, form.shape)) or "a single number"
