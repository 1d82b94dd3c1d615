"""What is asked: one matrix multiplication."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from cache_engine.errors import InvalidProblem
from cache_engine.model.architecture import architecture

_E = TypeVar("_E", bound=StrEnum)

MAX_DIMENSION = 2**24
MAX_BATCH = 65_535  # gridDim.z, CUDA programming guide, "Technical Specifications per Compute Capability"
MAX_ELEMENTS = 2**40  # of one operand over the whole batch: two TiB of bf16, beyond any GPU


class DType(StrEnum):
    """Element types, by the names the field uses."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP64 = "fp64"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {DType.FP16: 2, DType.BF16: 2, DType.FP32: 4, DType.FP64: 8}

# Output types each input type can be rounded to; the first is the default.
_OUT_DTYPES = {
    DType.FP16: (DType.FP16, DType.FP32, DType.BF16),
    DType.BF16: (DType.BF16, DType.FP32, DType.FP16),
    DType.FP32: (DType.FP32,),
    DType.FP64: (DType.FP64,),
}


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


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """C = A · B, ``batch`` times, C row-major and contiguous.

    Args:
        m, n, k: sizes; A is m × k, B is k × n, C is m × n. Each from 1 to 16 777 216.
        batch: how many independent products lie one behind the other, 1 to 65 535.
        dtype: element type of A and B.
        out_dtype: element type of C; by default that of the inputs.
        layout: how A and B are stored.
        arch: the target, such as ``"sm_90"``; ``None`` leaves it to the engine (the local GPU, else sm_90).

    Raises:
        InvalidProblem: naming the field and what it may be.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: DType = DType.BF16
    out_dtype: DType | None = None
    layout: Layout = Layout.NT
    arch: str | None = None

    def __post_init__(self) -> None:
        for name, limit in (("m", MAX_DIMENSION), ("n", MAX_DIMENSION), ("k", MAX_DIMENSION), ("batch", MAX_BATCH)):
            object.__setattr__(self, name, _size(name, getattr(self, name), limit))
        dtype = _member(DType, "dtype", self.dtype)
        layout = _member(Layout, "layout", self.layout)
        allowed = _OUT_DTYPES[dtype]
        out_dtype = allowed[0] if self.out_dtype is None else _member(DType, "out dtype", self.out_dtype)
        if out_dtype not in allowed:
            names = ", ".join(allowed)
            raise InvalidProblem(f"out dtype {out_dtype} cannot be made from {dtype} inputs; use one of: {names}")
        if self.arch is not None:
            architecture(self.arch)
        elements = self.batch * max(self.m * self.k, self.n * self.k, self.m * self.n)
        if elements > MAX_ELEMENTS:
            raise InvalidProblem(
                f"an operand of {elements:,} elements is larger than any GPU holds; the limit is {MAX_ELEMENTS:,}"
            )
        # Plain strings are welcome as arguments; from here on the fields have the types they declare.
        for name, value in (("dtype", dtype), ("out_dtype", out_dtype), ("layout", layout)):
            object.__setattr__(self, name, value)

    @property
    def output(self) -> DType:
        """Element type of C."""
        return self.out_dtype or _OUT_DTYPES[self.dtype][0]

    @property
    def accumulate(self) -> DType:
        """Element type sums are kept in: fp64 for fp64, else fp32."""
        return DType.FP64 if self.dtype is DType.FP64 else DType.FP32

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Bytes of A, B and C, each counted once."""
        inputs = (self.m * self.k + self.n * self.k) * self.dtype.itemsize
        return self.batch * (inputs + self.m * self.n * self.output.itemsize)

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


def _member(kind: type[_E], what: str, value: object) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        names = ", ".join(kind)
        raise InvalidProblem(f"unknown {what} {str(value)!r}; use one of: {names}") from None
