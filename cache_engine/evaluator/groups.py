"""Grouped multiplications: one launch whose products have the same n and k, and each its own m.

Such are the experts of a layer: each token goes to some of them, so they get different numbers of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cache_engine.errors import InvalidProblem
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.model.gemm import DType, GemmProblem, Mode


@dataclass(frozen=True)
class GroupedProblem:
    """Several products C = A · B in one launch, with the same n and k.

    Attributes:
        groups: for each number of rows, how many products have it; most rows first, none without rows.
    """

    groups: tuple[tuple[int, int], ...]
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = ""
    scales: str = ""

    @cached_property
    def parts(self) -> tuple[EvaluationProblem, ...]:
        """The products with the same number of rows, as a batch each."""
        return tuple(
            EvaluationProblem(rows, self.n, self.k, count, self.dtype, self.out_dtype, self.scales)
            for rows, count in self.groups
        )

    @property
    def m(self) -> int:
        """The most rows of a product."""
        return self.groups[0][0]

    @property
    def batch(self) -> int:
        """How many products have rows."""
        return sum(count for _, count in self.groups)

    @property
    def rows(self) -> int:
        """Rows of all products."""
        return sum(rows * count for rows, count in self.groups)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return sum(part.flops for part in self.parts)

    @property
    def moved_bytes(self) -> int:
        """Bytes of each A, B and C, each counted once."""
        return sum(part.moved_bytes for part in self.parts)


Work = EvaluationProblem | GroupedProblem


def grouped(
    rows: Iterable[int], n: int, k: int, dtype: str = "bf16", out_dtype: str = "", scales: str = ""
) -> Work | None:
    """The launch of products with these rows; a batch, where all have as many; ``None`` where none has rows."""
    groups = tuple(sorted(((one, count) for one, count in Counter(rows).items() if one), reverse=True))
    if len(groups) > 1:
        return GroupedProblem(groups, n, k, dtype, out_dtype, scales)
    return EvaluationProblem(groups[0][0], n, k, groups[0][1], dtype, out_dtype, scales) if groups else None


def work_of(problem: GemmProblem) -> Work:
    """What a launch of a kernel computes. How many rows a group has is known on the device alone: here they are even.

    Groups that share their rows (``grouped``) get the same number of these or one more; those with rows of their own
    (``masked``) use all. Both types of fp8 are as fast, and count as ``fp8``.
    """
    p = problem
    dtype = "fp8" if p.dtype in (DType.FP8_E4M3, DType.FP8_E5M2) else p.dtype.value
    each, more = divmod(p.m, p.batch) if p.mode is Mode.GROUPED else (p.m, 0)
    if each and more:
        groups = ((each + 1, more), (each, p.batch - more))
        return GroupedProblem(groups, p.n, p.k, dtype, p.output.value, p.scales.value)
    return EvaluationProblem(each or 1, p.n, p.k, more or p.batch, dtype, p.output.value, p.scales.value)


def zipf(experts: int, skew: float) -> list[float]:
    """How much each expert is asked for: the r-th as 1 / r^skew. With skew 0 all are alike.

    Raises:
        InvalidProblem: when the skew is no number from 0 to 10.
    """
    if not 0 <= skew <= 10:
        raise InvalidProblem(f"skew is {skew:g}; it must be a number from 0 to 10")
    return [(rank + 1) ** -skew for rank in range(experts)]


def routed(tokens: int, per_token: int, weights: Sequence[float]) -> list[int]:
    """The rows that each expert gets: in proportion to the weights, but a token goes to an expert once at most.

    Whole numbers: what is left after rounding down goes to the largest remainders, the first of equals.

    Raises:
        InvalidProblem: when fewer experts than ``per_token`` have a weight.
    """
    rows, left = [0] * len(weights), tokens * per_token
    if per_token <= len(weights) and min(weights) == max(weights) > 0:  # the usual case, without a search
        each, more = divmod(left, len(weights))
        return [each + 1] * more + [each] * (len(weights) - more)
    wanted = {expert for expert, weight in enumerate(weights) if weight > 0}
    if len(wanted) < per_token:
        raise InvalidProblem(f"a token goes to {per_token} experts, and only {len(wanted)} get any")
    while True:
        scale = left / math.fsum(weights[expert] for expert in wanted) if wanted else 0
        full = {expert for expert in wanted if weights[expert] * scale >= tokens}
        if not full:
            break
        for expert in full:
            rows[expert] = tokens
        left -= tokens * len(full)
        wanted -= full
    shares = {expert: weights[expert] * scale for expert in wanted}
    for expert, share in shares.items():
        rows[expert] = int(share)
    left -= sum(rows[expert] for expert in wanted)
    for expert in sorted(wanted, key=lambda expert: (rows[expert] - shares[expert], expert))[:left]:
        rows[expert] += 1
    return rows


def busiest(shares: Iterable[Sequence[int]]) -> Sequence[int]:
    """The rows of the chip's experts that have the most, of those of each chip; of equals, with more experts."""
    return max(shares, key=lambda rows: (sum(rows), sum(map(bool, rows))))
