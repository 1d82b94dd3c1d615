"""Kernels for groups on the machine: which of them, with which counts, and what C must be."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from cache_engine.gpu.fp8 import E8M0_BIAS, scaled
from cache_engine.gpu.groups import rows_of_groups
from cache_engine.gpu.launch import ARRAY_TYPES, LoadedKernel, Operands, from_stored, to_stored
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import DType, GemmProblem, Layout, Mode, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.ptx.machine import Kernel
from tests.ptx.mistakes import in_templates
from tests.ptx.problems import SCALE_RESULT, Array, Case, as_multiplied, difference_of, kernel_of, operands

_GROUPED = FAMILIES["grouped"]
_ALPHA, _BETA = 0.75, -0.5
# Rows of each of five groups, of at most M together, or each. With empty groups, all empty, one that has everything,
# and numbers that are multiples of nothing; then numbers that no caller should give.
M = 37
COUNTS = {
    "uneven": (5, 0, 17, 1, 14),
    "one has all": (0, 0, 0, M, 0),
    "the last has all": (0, 0, 0, 0, M),
    "none": (0, 0, 0, 0, 0),
    "fewer than there is room for": (3, 3, 3, 3, 3),
    "whole tiles": (16, 16, 0, 0, 0),
    "too many": (20, 20, 20, 20, 20),
    "negative": (-3, 7, -(2**31), 9, -1),
    "huge": (2**31 - 1, 2**31 - 1, 4, 2**30, 1),
}
_SMALL = {size: KernelConfig(16, 64, 64 // size, 1, 2, 3) for size in (1, 2, 4)}
_SCALED = KernelConfig(16, 64, 128, 1, 2, 2)
# Blocks fewer than tiles, so that each computes several; and as many as a launch has.
_BLOCKS = (2, 3, None)


@dataclass(frozen=True)
class GroupedCase(Case):
    """A kernel, a problem, the rows of its groups, and how many blocks compute them."""

    counts: tuple[int, ...]
    blocks: int | None = 2

    def __str__(self) -> str:
        return f"{super().__str__()} counts {self.counts}, {self.blocks} blocks"


def case_of(
    counts: str | Sequence[int], blocks: int | None = 2, config: KernelConfig | None = None, **asked: Any
) -> GroupedCase:
    """A case, by default of bf16 on sm_90 with a small tile."""
    given: dict[str, Any] = {"m": M, "n": 72, "k": 72, "batch": 5, "arch": "sm_90", "mode": "grouped"} | asked
    problem = GemmProblem(**given)
    config = config or (_SCALED if problem.scales else _SMALL[problem.dtype.itemsize])
    rows = COUNTS[counts] if isinstance(counts, str) else tuple(counts)
    return GroupedCase(_GROUPED, problem, config, rows, blocks)


def _made() -> list[GroupedCase]:
    """Every type, mode, layout of B and specialisation, with each kind of counts in turn; then each kind of scales."""
    turn = itertools.count()
    rows, blocks = list(COUNTS), itertools.cycle(_BLOCKS)
    sizes = itertools.cycle(((72, 72), (64, 96), (70, 46), (67, 41), (135, 64)))
    kinds = [Specialisation.NK, Specialisation.BUCKETED, Specialisation.DYNAMIC]
    modes = [Mode.GROUPED, Mode.MASKED]
    epilogues = itertools.cycle(("", "bias", "", "alpha+beta+bias+relu", "", "beta"))
    cases = []
    for dtype, mode, layout, kind in itertools.product(_GROUPED.flops_per_clock, modes, (Layout.NT, Layout.NN), kinds):
        n, k = next(sizes)
        epilogue = "" if dtype is DType.INT8 else next(epilogues)
        asked: dict[str, Any] = {"mode": mode, "layout": layout, "specialisation": kind, "dtype": dtype, "n": n, "k": k}
        cases.append(case_of(rows[next(turn) % len(rows)], next(blocks), **asked, epilogue=epilogue))
    for scales, mode, dtype, kind in itertools.product(
        filter(None, Scales), modes, (DType.FP8_E4M3, DType.FP8_E5M2), kinds
    ):
        asked = {"mode": mode, "scales": scales, "dtype": dtype, "specialisation": kind}
        n, k = (135, 256) if next(turn) % 2 else (64, 384)
        cases.append(case_of(rows[next(turn) % len(rows)], next(blocks), **asked, n=n, k=k, epilogue=next(epilogues)))
    return cases


CASES = _made()
SCALES: dict[str, Any] = {"dtype": "fp8_e4m3", "scales": "1x128,128x128", "n": 135, "k": 256}


def wrong_in_groups(one: GroupedCase, kernel: Kernel | None = None, orders: tuple[bool, ...] = (True, False)) -> str:
    """Launches a kernel with copies that land late and early, and compares each element of C; others must be untouched.

    Returns:
        How many are wrong, in words; empty if all are right.

    Raises:
        Fault: what the machine has to say.
    """
    problem, run = one.problem, kernel or kernel_of(one)
    launch = launch_of(one.family, problem, one.config)
    if one.blocks is not None:
        launch = msgspec.structs.replace(launch, grid=(one.blocks, 1, 1))
    loaded = LoadedKernel(b"", run.program.name, launch, problem, run)
    given = _Given(one)
    for run.late in orders:
        if wrong := given.what_is_wrong(run, loaded):
            return wrong
    return ""


class _Given:
    """The operands of a case, as values and as stored, and what becomes of them."""

    def __init__(self, one: GroupedCase) -> None:
        p = self._problem = one.problem
        seed = zlib.crc32(repr((p, one.counts)).encode())
        generator = np.random.default_rng(seed)
        self._rows = rows_of_groups(p, one.counts)
        self._counts = np.array(one.counts, dtype=np.int32)
        self._a, self._b = operands(p.dtype, seed, (p.row_matrices, p.m, p.k), (p.batch, p.k, p.n))
        before, self._bias = (
            generator.integers(-7, 7, shape, endpoint=True).astype(np.float32)
            for shape in ((p.row_matrices, p.m, p.n), (p.batch, p.n))
        )
        self._before = to_stored(before, p.output).astype(ARRAY_TYPES[p.output])
        if not p.epilogue.beta:
            self._before.view(np.uint8)[...] = 0xFF
        self._scales: tuple[Array, ...] = ()
        if p.scales:
            shapes = zip((p.row_matrices, p.batch), p.scales.shapes(p.m, p.n, p.k), strict=True)
            powers = [generator.integers(-2, 2, (count, *shape), endpoint=True) for count, shape in shapes]
            self._scales = tuple(
                (one + E8M0_BIAS).astype(np.uint8) if p.scales.is_e8m0 else np.exp2(one).astype(np.float32)
                for one in powers
            )

    def what_is_wrong(self, run: Kernel, loaded: LoadedKernel) -> str:
        p = self._problem
        c = self._before.copy()
        transposed = p.layout.b_transposed
        b = to_stored(np.ascontiguousarray(self._b.transpose(0, 2, 1) if transposed else self._b), p.dtype)
        bias = to_stored(self._bias, p.output).astype(ARRAY_TYPES[p.output]) if p.epilogue.bias else None
        run.unwritten = () if p.epilogue.beta else (c,)
        given = Operands(to_stored(self._a, p.dtype), b, c, _ALPHA, _BETA, bias, counts=self._counts)
        given.a_scales, given.b_scales = self._scales or (None, None)
        given.scale_result = SCALE_RESULT
        loaded(given)
        written = np.zeros(c.shape, dtype=bool)
        for group, (matrix, rows) in enumerate(self._rows):
            written[matrix, rows] = True
            if difference := difference_of(p, c[matrix, rows], self._expected(group, matrix, rows)):
                return difference
        untouched = [
            each[~written].view(np.uint8) for each in (c, self._before)
        ]  # bytes: what was not set is no number
        return "" if np.array_equal(*untouched) else "rows of no group were written"

    def _expected(self, group: int, matrix: int, rows: slice) -> Array:
        p = self._problem
        a, b = self._a[matrix, rows], self._b[group]
        if p.scales:
            a = scaled(a, self._scales[0][matrix, rows])
            b = scaled(b.T, self._scales[1][group], p.scales.b_columns).T
        sums = as_multiplied(a, p.dtype) @ as_multiplied(b, p.dtype)
        before = from_stored(self._before[matrix, rows], p.output, "float64") if p.epilogue.beta else 0
        exact: Array = sums * (_ALPHA if p.epilogue.alpha else 1) + _BETA * before
        return exact + (self._bias[group] if p.epilogue.bias else 0)


MISTAKES = in_templates(
    (case_of("negative"), "a count below 0 is taken", "count < 0 ? 0 : count < most", "count < most"),
    (case_of("too many"), "a count beyond m is taken", "count < most ? count : most", "count"),
    (case_of((40, 0, 0, 0, 0), mode="masked"), "a masked count beyond m is taken",
     "count < most ? count : most", "count"),
    (case_of("too many"), "each group may have m rows", "MASKED ? m : m - first_row", "m"),
    (case_of("uneven"), "rows before a group are not counted", "first_row += rows;", ""),
    (case_of("uneven", mode="masked"), "a masked group begins where the last ended",
     "static_cast<long long>(group) * m", "group * rows"),
    (case_of("uneven"), "the group after is taken",
     "const long long group = walk.group,", "const long long group = (walk.group + 1) % 5,"),
    (case_of("uneven"), "a group too many is read", "if (++group < groups) enter();", "++group; enter();"),
    (case_of("uneven"), "tiles of a group are not counted", "first_tile += tiles;", ""),
    (case_of("uneven"), "a tile is left out", "tile += block_count()", "tile += block_count() + 1"),
    (case_of("uneven", k=104), "no barrier between tiles", "sync_block();  // the next", "// the next"),
    (case_of("uneven", k=104), "no barrier before boxes", "sync_block();  // other", "// other"),
    (case_of("uneven"), "rows of the next group are stored",
     "{walk.rows, sizes.n, sizes.k}", "{sizes.m, sizes.n, sizes.k}"),
    (case_of("uneven", epilogue="bias"), "the bias of the first group", "bias + group * sizes.n", "bias"),
    (case_of("uneven", **SCALES), "scales of A of the first group", "a_scales + row * scales_of_a_row", "a_scales"),
    (case_of("uneven", **SCALES), "scales of B of the first group", "b_scales + group * scales_of_b", "b_scales"),
    (case_of("one has all"), "columns for rows",
     "row) * BLOCK_M, static_cast<int>(within / band_rows) * BLOCK_N",
     "row) * BLOCK_N, static_cast<int>(within / band_rows) * BLOCK_M"),
    what_is_wrong=wrong_in_groups,
)  # fmt: skip
