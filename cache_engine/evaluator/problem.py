"""A problem for an evaluator: a matrix multiplication of any size, also of types that no kernel here has."""

from __future__ import annotations

from dataclasses import dataclass

from cache_engine.errors import InvalidProblem
from cache_engine.model.gemm import SCALE_BLOCK, Scales, checked_size

MAX_DIMENSION = 10**12

ITEMSIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "int32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one element, by type."""

_NARROW_OUTPUT = {"fp8": "bf16", "int8": "bf16", "tf32": "fp32"}


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """C = A · B, ``batch`` times; A is m × k, B is k × n, C is m × n.

    Args:
        m: rows of A and C. Each size is from 1 to 10¹².
        n: columns of B and C.
        k: columns of A and rows of B.
        batch: the number of products.
        dtype: element type of A and B; a name in ``ITEMSIZE``.
        out_dtype: element type of C; by default that of the inputs, but bf16 for fp8 and int8.
        scales: the blocks of A and B that share a scale, by their name in ``Scales``; only for fp8, with k a multiple
            of 128.

    Raises:
        InvalidProblem: naming the field and its allowed values.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    out_dtype: str = ""
    scales: str = ""

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name), MAX_DIMENSION))
        if not self.out_dtype:
            object.__setattr__(self, "out_dtype", _NARROW_OUTPUT.get(str(self.dtype), self.dtype))
        for what, dtype in (("dtype", self.dtype), ("out dtype", self.out_dtype)):
            if not isinstance(dtype, str) or dtype not in ITEMSIZE:
                raise InvalidProblem(f"unknown {what} {dtype!r}; use one of: {', '.join(ITEMSIZE)}")
        if self.scales:
            _check_scales(self.scales, self.dtype, self.k)

    @property
    def in_bytes(self) -> int:
        """Bytes of one element of A or B."""
        return ITEMSIZE[self.dtype]

    @property
    def out_bytes(self) -> int:
        """Bytes of one element of C."""
        return ITEMSIZE[self.out_dtype]

    @property
    def scale_bytes(self) -> tuple[float, float]:
        """The bytes of scales per element of A, and per element of B, without the padding of rows."""
        if not self.scales:
            return 0.0, 0.0
        of_a, of_b = Scales(self.scales).sizes(SCALE_BLOCK, SCALE_BLOCK, 4 * SCALE_BLOCK)
        return of_a / (4 * SCALE_BLOCK**2), of_b / (4 * SCALE_BLOCK**2)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Bytes of A, B, their scales and C, each counted once."""
        operands = (self.m * self.k + self.k * self.n) * self.in_bytes
        if self.scales:
            operands += sum(Scales(self.scales).sizes(self.m, self.n, self.k))
        return self.batch * (operands + self.m * self.n * self.out_bytes)


def check_unscaled(problem: EvaluationProblem) -> None:
    """Checks that the operands have no scales.

    Raises:
        InvalidProblem: when they have scales.
    """
    if problem.scales:
        raise InvalidProblem("the core-grid model counts no scales; leave them out, or name a GPU")


def _check_scales(scales: str, dtype: str, k: int) -> None:
    known = [kind.value for kind in Scales if kind]
    if scales not in known:
        raise InvalidProblem(f"unknown scales {scales!r}; use one of: {'; '.join(known)}")
    if dtype != "fp8" or k % SCALE_BLOCK:
        raise InvalidProblem(
            f"scales are of fp8 and a k that is a multiple of {SCALE_BLOCK}; dtype is {dtype}, k {k:,}: leave them out"
        )
