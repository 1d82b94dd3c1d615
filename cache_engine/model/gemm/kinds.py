"""The types of a problem's fields: element types, layouts, epilogues, scales, modes, specialisations."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from functools import cache
from typing import Literal, TypeAlias, TypeVar

import msgspec

from cache_engine.errors import InvalidProblem

_E = TypeVar("_E", bound=StrEnum)

MAX_DIMENSION = 2**24
MAX_BATCH = 65_535  # gridDim.z, CUDA programming guide, "Technical Specifications per Compute Capability"
MAX_ELEMENTS = 2**40  # elements of one operand over the whole batch: two TiB of bf16, more than any GPU has

OPT_LEVELS = (0, 1, 2, 3)
"""The optimisation levels of a compiler. The highest is the default."""


class DType(StrEnum):
    """Element types, with their usual names.

    ``tf32`` is stored as fp32 and multiplied with ten bits of mantissa. ``fp8_e4m3`` and ``fp8_e5m2`` are those of the
    OCP 8-bit floating point specification. ``int32`` is only for the C of int8 problems.
    """

    FP16 = "fp16"
    BF16 = "bf16"
    TF32 = "tf32"
    FP32 = "fp32"
    FP64 = "fp64"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT32 = "int32"

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return _ITEMSIZE[self]


DTypeLike: TypeAlias = DType | Literal["fp16", "bf16", "tf32", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2", "int8", "int32"]
"""An element type, or its name."""

_ITEMSIZE = {
    DType.FP16: 2,
    DType.BF16: 2,
    DType.TF32: 4,
    DType.FP32: 4,
    DType.FP64: 8,
    DType.FP8_E4M3: 1,
    DType.FP8_E5M2: 1,
    DType.INT8: 1,
    DType.INT32: 4,
}

FP8 = (DType.FP8_E4M3, DType.FP8_E5M2)

OUT_DTYPES = {
    DType.FP16: (DType.FP16, DType.FP32, DType.BF16, *FP8),
    DType.BF16: (DType.BF16, DType.FP32, DType.FP16, *FP8),
    DType.TF32: (DType.FP32,),
    DType.FP32: (DType.FP32,),
    DType.FP64: (DType.FP64,),
    DType.FP8_E4M3: (DType.BF16, DType.FP16, DType.FP32, *FP8),
    DType.FP8_E5M2: (DType.BF16, DType.FP16, DType.FP32, *FP8),
    DType.INT8: (DType.INT32,),
}
"""For each input type, the types that C can have; the first is the default."""

_ACCUMULATE = {DType.FP64: DType.FP64, DType.INT8: DType.INT32}

INPUT_DTYPES = tuple(OUT_DTYPES)
"""The types that A and B can have."""

OUTPUT_DTYPES = tuple(dict.fromkeys(out for allowed in OUT_DTYPES.values() for out in allowed))
"""The types that C can have, for at least one input type."""


class Layout(StrEnum):
    """The layout of A and B in row-major storage: a letter for A, then one for B.

    ``n`` is stored as is (A as m × k, B as k × n), ``t`` is stored transposed (A as k × m, B as n × k). The default
    ``nt`` is a linear layer: activations m × k times weights n × k.
    """

    NN = "nn"
    NT = "nt"
    TN = "tn"
    TT = "tt"

    @property
    def a_transposed(self) -> bool:
        """Whether A is stored as k × m."""
        return self[0] == "t"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored as n × k."""
        return self[1] == "t"


LayoutLike: TypeAlias = Layout | Literal["nn", "nt", "tn", "tt"]
"""A layout, or its name."""


class Activation(StrEnum):
    """The function applied last to every element of C. GELU is the exact form, x · Φ(x)."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"


ActivationLike: TypeAlias = Activation | Literal["none", "relu", "gelu"]
"""An activation, or its name."""


class Specialisation(StrEnum):
    """The sizes that are constants in a kernel.

    They decide which problems share the kernel. The batch is always an argument.

    - ``nk``: n and k are constants, m is an argument.
    - ``exact``: m, n and k are constants.
    - ``bucketed``: as ``nk``, and m is at most a constant power of two (the bucket), for which the config is chosen. So
      all m of a bucket share a kernel.
    - ``dynamic``: no size is a constant. One kernel serves all sizes whose rows can be read and written with accesses
      of the same width.
    """

    NK = "nk"
    EXACT = "exact"
    BUCKETED = "bucketed"
    DYNAMIC = "dynamic"


SpecialisationLike: TypeAlias = Specialisation | Literal["nk", "exact", "bucketed", "dynamic"]
"""A specialisation, or its name."""

SCALE_BLOCK = 128
"""The number of elements along k that share a scale."""


class Scales(StrEnum):
    """The blocks of A and of B that have a scale each (along columns of C and along k), and the type of the scales.

    A has a scale for each row and each 128 elements of k. B has one for each block of 128 x 128 or, like A for rows,
    for each column. Scales are fp32, or E8M0: powers of two, stored as bytes, four along k in a word.
    """

    NONE = ""
    BLOCKS = "1x128,128x128"
    ROWS = "1x128,1x128"
    BLOCKS_E8M0 = "1x128,128x128,e8m0"
    ROWS_E8M0 = "1x128,1x128,e8m0"

    @property
    def b_columns(self) -> int:
        """The number of columns of B that share a scale."""
        return SCALE_BLOCK if "128x128" in self else 1

    @property
    def is_e8m0(self) -> bool:
        """Whether the scales are E8M0; otherwise they are fp32."""
        return self.endswith("e8m0")

    def shapes(self, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes (rows, columns) of the stored scales of A and of B; a column for each 128 elements of k."""
        columns = k // SCALE_BLOCK
        columns += -columns % 4 if self.is_e8m0 else 0
        return (m, columns), (-(-n // self.b_columns), columns)

    def sizes(self, m: int, n: int, k: int) -> tuple[int, int]:
        """The bytes of the scales of A, and of the scales of B; 0 without scales."""
        itemsize = 0 if not self else 1 if self.is_e8m0 else 4
        (a_rows, columns), (b_rows, _) = self.shapes(m, n, k)
        return itemsize * a_rows * columns, itemsize * b_rows * columns


ScalesLike: TypeAlias = Scales | Literal["", "1x128,128x128", "1x128,1x128", "1x128,128x128,e8m0", "1x128,1x128,e8m0"]
"""The scales, or their name."""


class Mode(StrEnum):
    """The way in which the rows of A and C are divided among the products of a batch.

    - ``""``: each product has its own A and C, with m rows.
    - ``grouped``: the products share one A and one C of m rows: first the rows of the first group, then those of the
      second, without a gap.
    - ``masked``: each product has its own A and C, with room for m rows, of which the first ones are used.

    With ``grouped`` and ``masked``, the kernel reads the number of rows of each group from device memory, for mixtures
    of experts: ``grouped`` for prefill, ``masked`` for decode.
    """

    BATCHED = ""
    GROUPED = "grouped"
    MASKED = "masked"


ModeLike: TypeAlias = Mode | Literal["", "grouped", "masked"]
"""A mode, or its name."""


def accumulator(dtype: DType) -> DType:
    """The type of the accumulators in which products of elements of this type are summed."""
    return _ACCUMULATE.get(dtype, DType.FP32)


def bucket_of(m: int) -> int:
    """The bucket of m: the smallest power of two that is at least m."""
    return 1 << (m - 1).bit_length()


class Epilogue(msgspec.Struct, frozen=True):
    """The operations on A · B before it is stored: activation(alpha · A · B + beta · C + bias).

    ``GemmProblem(16, 7168, 2048, epilogue="bias+gelu")`` takes it as text, which ``Epilogue.parse`` reads.

    Attributes:
        alpha, beta: whether the kernel has these factors. With beta it updates C; without, it overwrites C.
        bias: whether a vector of n elements of C's type is added to every row.
        activation: the function applied last.
    """

    alpha: bool = False
    beta: bool = False
    bias: bool = False
    activation: Activation = Activation.NONE

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Reads a text such as ``alpha+beta+bias+relu``: some of these parts, in any order; empty for none.

        Raises:
            InvalidProblem: when a part is unknown or repeated; the text names it.
        """
        parts = [part.strip() for part in text.split("+")] if text else []
        factors, activations = ("alpha", "beta", "bias"), (Activation.RELU.value, Activation.GELU.value)
        for part in parts:
            if part not in (*factors, *activations):
                raise InvalidProblem(
                    f"unknown epilogue {part!r}; join some of these with +: {', '.join((*factors, *activations))}"
                )
        last = [part for part in parts if part in activations]
        if len(set(parts)) < len(parts) or len(last) > 1:
            raise InvalidProblem(f"epilogue {text!r} repeats a part, or has two activations")
        alpha, beta, bias = (factor in parts for factor in factors)
        return cls(alpha, beta, bias, Activation(last[0]) if last else Activation.NONE)

    def __str__(self) -> str:
        parts = [name for name in ("alpha", "beta", "bias") if getattr(self, name)]
        return "+".join([*parts, self.activation] if self.activation is not Activation.NONE else parts)


NO_EPILOGUE = Epilogue()

EpilogueLike: TypeAlias = Epilogue | str
"""An epilogue, or the text that ``Epilogue.parse`` reads."""


def checked_epilogue(asked: EpilogueLike | None, dtype: DType, out_dtype: DType) -> Epilogue:
    """The epilogue, checked against the types of the problem.

    Raises:
        InvalidProblem: when a part is unknown, or the types do not allow it; the text names the part.
    """
    epilogue = asked if isinstance(asked, Epilogue) else Epilogue.parse("" if asked is None else str(asked))
    if dtype is DType.INT8 and epilogue != NO_EPILOGUE:
        raise InvalidProblem(f"int8 problems take no epilogue, and {epilogue} was asked for; leave it out")
    if out_dtype in FP8 and epilogue.beta:
        raise InvalidProblem(f"a C of {out_dtype} was scaled when it was stored and cannot be added; leave beta out")
    return epilogue


def checked_scales(asked: object, dtype: DType, layout: Layout, k: int) -> Scales:
    """The scales as a ``Scales``, checked against the types, the layout and k of the problem.

    Raises:
        InvalidProblem: when the scales break a rule; the text names it.
    """
    scales = asked if isinstance(asked, Scales) else _named(Scales).get(str(asked).replace(" ", ""))
    if scales is None:
        names = " | ".join(filter(None, Scales))
        raise InvalidProblem(f"unknown scales {str(asked)!r}; use one of: {names}")
    if not scales:
        return scales
    if dtype not in FP8:
        raise InvalidProblem(f"scales are for fp8_e4m3 and fp8_e5m2, and the dtype is {dtype}; leave them out")
    if k % SCALE_BLOCK:
        raise InvalidProblem(
            f"k is {k:,}, and with scales it must be a multiple of {SCALE_BLOCK}, the length of their blocks; "
            f"pad A and B with zeroes to k = {k + -k % SCALE_BLOCK:,}"
        )
    if layout is not Layout.NT:
        raise InvalidProblem(f"the layout is {layout}, and with scales it must be nt: A m x k, B n x k")
    return scales


def checked_mode(asked: object, layout: Layout, specialisation: Specialisation) -> Mode:
    """The mode as a ``Mode``, checked against the layout and the specialisation of the problem.

    Raises:
        InvalidProblem: when the mode breaks a rule; the text names it.
    """
    mode = asked if isinstance(asked, Mode) else _named(Mode).get(str(asked))
    if mode is None:
        names = ", ".join(filter(None, Mode))
        raise InvalidProblem(f"unknown mode {str(asked)!r}; use one of: {names}, or leave it out")
    if mode and layout.a_transposed:
        raise InvalidProblem(
            f"the layout is {layout}, and with mode {mode} the rows of A must lie one after the other; use nt or nn"
        )
    if mode and specialisation is Specialisation.EXACT:
        raise InvalidProblem(
            f"with mode {mode} the rows of a group are counted on the device, so m cannot be a constant; "
            "use the specialisation nk, bucketed or dynamic"
        )
    return mode


def member_of(kind: type[_E], what: str, value: object, allowed: Collection[_E] = ()) -> _E:
    """The member of an enumeration with this name.

    Raises:
        InvalidProblem: when there is no such member; the text lists the names.
    """
    if isinstance(value, kind) and (not allowed or value in allowed):
        return value
    found: _E | None = _named(kind).get(str(value))
    if found is None or (allowed and found not in allowed):
        raise InvalidProblem(f"unknown {what} {str(value)!r}; use one of: {', '.join(allowed or kind)}")
    return found


@cache
def _named(kind: type[_E]) -> dict[str, _E]:
    """The members of an enumeration by name, cached because calling the enumeration takes a microsecond."""
    return {each.value: each for each in kind}
