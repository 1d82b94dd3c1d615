"""Which rows of A and C belong to which group: what kernels make of the counts that they read on the device. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cache_engine.model.gemm import GemmProblem, Mode


def rows_of_groups(problem: GemmProblem, counts: Iterable[int]) -> list[tuple[int, slice]]:
    """For each group: which matrix of A and C has its rows, and which rows of that they are.

    Counts are clamped as kernels clamp them: one below 0 counts as 0, and one that reaches beyond m, or beyond what the
    groups before it have left of m, is cut off.
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
