"""What is asked: one matrix multiplication."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar

from cache_engine.errors import InvalidProblem
from cache_engine.model.architecture import architecture

_E = TypeVar("_E", bound=StrEnum)

MAX_DIMENSION = 2**24
MAX_BATCH = 65_535  # gridDim.z, CUDA programming guide, "Technical Specifications per Compute Capability"
MAX_ELEMENTS = 2**40  # of one operand over the whole batch: two TiB of bf16, beyond any GPU

OPT_LEVELS = (0, 1, 2, 3)
"""How hard a compiler may optimise. The highest is the default."""

# What the config of a dynamic kernel is chosen for: m, n, k and batch, neither a decode nor a prefill.
_ANY_SIZES = (1024, 1024, 1024, 1)


class DType(StrEnum):
    """Element types, by the names the field uses.

    ``tf32`` is stored as fp32 and multiplied with ten bits of mantissa. ``fp8_e4m3`` and ``fp8_e5m2`` are those of the
    OCP 8-bit floating point specification. ``int32`` is for sums alone.
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
        """Bytes of one element."""
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

# Output types each input type can be rounded to; the first is the default.
_OUT_DTYPES = {
    DType.FP16: (DType.FP16, DType.FP32, DType.BF16),
    DType.BF16: (DType.BF16, DType.FP32, DType.FP16),
    DType.TF32: (DType.FP32,),
    DType.FP32: (DType.FP32,),
    DType.FP64: (DType.FP64,),
    DType.FP8_E4M3: (DType.BF16, DType.FP16, DType.FP32),
    DType.FP8_E5M2: (DType.BF16, DType.FP16, DType.FP32),
    DType.INT8: (DType.INT32,),
}

INPUT_DTYPES = tuple(_OUT_DTYPES)
"""The types A and B can have."""

OUTPUT_DTYPES = tuple(dict.fromkeys(out for allowed in _OUT_DTYPES.values() for out in allowed))
"""The types C can have, for one input type or another."""


class Layout(StrEnum):
    """How A and B lie in row-major storage: a letter for A, then one for B.

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
        return self.value[0] == "t"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored as n × k."""
        return self.value[1] == "t"


LayoutLike: TypeAlias = Layout | Literal["nn", "nt", "tn", "tt"]
"""A layout, or its name."""


class Activation(StrEnum):
    """What is applied to every element of C last. GELU in its exact form, x · Φ(x)."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"


ActivationLike: TypeAlias = Activation | Literal["none", "relu", "gelu"]
"""An activation, or its name."""


class Specialisation(StrEnum):
    """Which sizes are constants of a kernel, and so which problems share it. The batch is always an argument.

    ``nk``: n and k are, m is an argument. ``exact``: m is one too. ``bucketed``: as ``nk``, and m is known to be at
    most the next power of two, for which the config is chosen, so all m of a bucket share a kernel. ``dynamic``: none
    is; one kernel serves all sizes whose rows can be read and written as many elements at once.
    """

    NK = "nk"
    EXACT = "exact"
    BUCKETED = "bucketed"
    DYNAMIC = "dynamic"


SpecialisationLike: TypeAlias = Specialisation | Literal["nk", "exact", "bucketed", "dynamic"]
"""A specialisation, or its name."""


def bucket_of(m: int) -> int:
    """The bucket of m: the power of two that is not less."""
    return 1 << (m - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is done to A · B before it is stored: activation(alpha · A · B + beta · C + bias).

    ``GemmProblem(16, 7168, 2048, epilogue="bias+gelu")`` takes it as text, which ``Epilogue.parse`` reads.

    Attributes:
        alpha, beta: whether the kernel takes these factors. With beta it updates C; without, it overwrites it.
        bias: whether a vector of n elements of C's type is added to every row.
        activation: what comes last.
    """

    alpha: bool = False
    beta: bool = False
    bias: bool = False
    activation: Activation = Activation.NONE

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Reads ``alpha+beta+bias+relu``: any of them, in any order; nothing for none.

        Raises:
            InvalidProblem: naming the part that is unknown or repeated.
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


@dataclass(frozen=True, slots=True, init=False, repr=False)
class GemmProblem:
    """C = A · B, ``batch`` times, C row-major and contiguous. A value: comparable, hashable, checked when it is made.

    Example:
        ```python
        GemmProblem(4096, 7168, 2048, dtype="bf16", out_dtype="fp32", arch="sm_90a", epilogue="bias")
        ```

    Attributes:
        m: rows of A and C, from 1 to 16 777 216.
        n: columns of B and C, from 1 to 16 777 216.
        k: columns of A and rows of B, from 1 to 16 777 216.
        batch: how many independent products lie one behind the other, 1 to 65 535.
        dtype: element type of A and B.
        out_dtype: element type of C; by default that of the inputs, bf16 for fp8, int32 for int8.
        layout: how A and B are stored.
        arch: the target, such as ``"sm_90"``; ``None`` leaves it to the engine (the local GPU, else sm_90).
        epilogue: what is done to the product before it is stored; by default nothing. int8 problems take none.
        specialisation: which sizes are constants of the kernel; by default n and k.
        opt_level: how hard the compiler may optimise, 0 to 3.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: DType
    out_dtype: DType | None
    layout: Layout
    arch: str | None
    epilogue: Epilogue
    specialisation: Specialisation
    opt_level: int

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        batch: int = 1,
        dtype: DTypeLike = DType.BF16,
        out_dtype: DTypeLike | None = None,
        layout: LayoutLike = Layout.NT,
        arch: str | None = None,
        epilogue: EpilogueLike = NO_EPILOGUE,
        specialisation: SpecialisationLike = Specialisation.NK,
        opt_level: int = OPT_LEVELS[-1],
    ) -> None:
        """Takes names in place of the members of enumerations, and whole numbers of NumPy.

        Raises:
            InvalidProblem: naming the field and what it may be.
        """
        m, n, k = (_size(name, size, MAX_DIMENSION) for name, size in (("m", m), ("n", n), ("k", k)))
        batch = _size("batch", batch, MAX_BATCH)
        dtype = _member(DType, "dtype", dtype, INPUT_DTYPES)
        allowed = _OUT_DTYPES[dtype]
        out_dtype = allowed[0] if out_dtype is None else _member(DType, "out dtype", out_dtype)
        if out_dtype not in allowed:
            names = ", ".join(allowed)
            raise InvalidProblem(f"out dtype {out_dtype} cannot be made from {dtype} inputs; use one of: {names}")
        layout = _member(Layout, "layout", layout)
        if arch is not None:
            architecture(arch)
        if not isinstance(epilogue, Epilogue):
            epilogue = Epilogue.parse(str(epilogue))
        if dtype is DType.INT8 and epilogue != NO_EPILOGUE:
            raise InvalidProblem(f"int8 problems take no epilogue, and {epilogue} was asked for; leave it out")
        specialisation = _member(Specialisation, "specialisation", specialisation)
        if isinstance(opt_level, bool) or opt_level not in OPT_LEVELS:
            levels = ", ".join(map(str, OPT_LEVELS))
            raise InvalidProblem(f"opt level is {opt_level!r}; it must be one of: {levels}")
        elements = batch * max(m * k, n * k, m * n)
        if elements > MAX_ELEMENTS:
            raise InvalidProblem(
                f"an operand of {elements:,} elements is larger than any GPU holds; the limit is {MAX_ELEMENTS:,}"
            )
        values = (m, n, k, batch, dtype, out_dtype, layout, arch, epilogue, specialisation, opt_level)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """As it can be written again: the sizes, the types, and what is not the default."""
        default = GemmProblem(1, 1, 1, dtype=self.dtype)
        given = [str(self.m), str(self.n), str(self.k)]
        for name in self.__slots__[3:]:
            value = getattr(self, name)
            if name == "dtype" or value != getattr(default, name):
                given.append(f"{name}={value if isinstance(value, int) else str(value)!r}")
        return f"GemmProblem({', '.join(given)})"

    @property
    def output(self) -> DType:
        """Element type of C."""
        return self.out_dtype or _OUT_DTYPES[self.dtype][0]

    @property
    def accumulate(self) -> DType:
        """Element type of the accumulator: int32 for int8, fp64 for fp64, else fp32."""
        return {DType.FP64: DType.FP64, DType.INT8: DType.INT32}.get(self.dtype, DType.FP32)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Bytes of A, B and C, each counted once."""
        inputs = (self.m * self.k + self.n * self.k) * self.dtype.itemsize
        return self.batch * (inputs + self.m * self.n * self.output.itemsize)

    @property
    def planned_sizes(self) -> tuple[int, int, int, int]:
        """m, n, k and batch that a config is chosen for: the same for all problems that are to share a kernel."""
        if self.specialisation is Specialisation.BUCKETED:
            return (bucket_of(self.m), self.n, self.k, self.batch)
        if self.specialisation is Specialisation.DYNAMIC:
            return _ANY_SIZES
        return (self.m, self.n, self.k, self.batch)

    def on(self, arch: str) -> GemmProblem:
        """The same problem for another target."""
        return self if self.arch == arch else replace(self, arch=arch)


def _size(name: str, value: Any, limit: int) -> int:
    """The value as a plain whole number; those of NumPy are welcome."""
    try:
        size = operator.index(value)
    except TypeError:
        size = 0
    if isinstance(value, bool) or not 1 <= size <= limit:
        shown = f"{size:,}" if size else repr(value)
        raise InvalidProblem(f"{name} is {shown}; it must be a whole number from 1 to {limit:,}")
    return size


def _member(kind: type[_E], what: str, value: object, allowed: Collection[_E] = ()) -> _E:
    if isinstance(value, kind) and (not allowed or value in allowed):
        return value  # most often; asking by name takes a microsecond
    try:
        member = kind(str(value))
    except ValueError:
        member = None
    if member is None or (allowed and member not in allowed):
        raise InvalidProblem(f"unknown {what} {str(value)!r}; use one of: {', '.join(allowed or kind)}")
    return member
