"""What NVRTC makes of the template for groups, executed instruction by instruction: right, and never outside of C."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from cache_engine.kernels.family import check_config
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import DType, Mode
from tests.ptx.grouped import CASES, COUNTS, GroupedCase, case_of, check_groups
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import kernel_of, of_today

_SOAK_PARTS = 8
_SCALES: dict[str, Any] = {"dtype": "fp8_e4m3", "scales": "1x128,128x128", "n": 135, "k": 256}


@pytest.mark.parametrize("mode", ["grouped", "masked"])
def test_every_kind_of_counts(mode: str) -> None:
    """Also counts that no caller should give: below 0, beyond m, and whose sum is no number of 32 bits."""
    kernel = kernel_of(case_of("uneven", mode=mode).case)
    for number, counts in enumerate(COUNTS):
        print(counts)
        check_groups(case_of(counts, 7, mode=mode), kernel, orders=(number % 2 == 0,))


def test_blocks_with_scales_of_rows_and_of_groups() -> None:
    for mode in ("grouped", "masked"):
        check_groups(case_of("uneven", mode=mode, **_SCALES))


def test_a_sample_of_the_kinds() -> None:
    """Another one each day."""
    for one in of_today(CASES, 4):
        print(one)
        check_groups(one)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_every_kind_multiplies(part: int) -> None:
    for one in CASES[part::_SOAK_PARTS]:
        print(one)
        check_groups(one)


def test_the_cases_are_what_the_family_offers() -> None:
    for one in CASES:
        check_config(one.case.family, one.case.problem, one.case.config, architecture(one.case.problem.arch or ""))
    kinds = {(p.dtype, p.mode, p.scales, p.layout) for p in (one.case.problem for one in CASES)}
    assert len(kinds) == 6 * 2 * 2 + 2 * 2 * 4
    assert {DType.BF16, DType.FP8_E5M2} < {one.case.problem.dtype for one in CASES}
    assert {one.counts for one in CASES} == set(COUNTS.values())
    assert {mode for mode in Mode if mode} == {one.case.problem.mode for one in CASES}


# A kernel and its counts, what is wrong, what is looked for in the source, what takes its place.
MISTAKES = [
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
    (case_of("uneven", **_SCALES), "scales of A of the first group", "a_scales + row * scales_of_a_row", "a_scales"),
    (case_of("uneven", **_SCALES), "scales of B of the first group", "b_scales + group * scales_of_b", "b_scales"),
    (case_of("one has all"), "columns for rows",
     "row) * BLOCK_M, static_cast<int>(within / band_rows) * BLOCK_N",
     "row) * BLOCK_N, static_cast<int>(within / band_rows) * BLOCK_M"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "right", "wrong"), rows(MISTAKES))
def test_a_mistake_in_the_template_is_seen(one: GroupedCase, right: str, wrong: str) -> None:
    assert_seen(spoilt(one.case, right, wrong), partial(check_groups, one))


@pytest.mark.soak
@pytest.mark.parametrize("one", kernels(MISTAKES), ids=str)
def test_the_kernels_are_right_before(one: GroupedCase) -> None:
    check_groups(one)
