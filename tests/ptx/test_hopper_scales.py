"""Kernels of the ``hopper`` family for fp8 with block scales: every kind of scales, and mistakes that are seen."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from cache_engine.errors import InfeasibleConfig
from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.faults.counting import report
from tests.ptx.hopper_problems import HOPPER, hopper
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import EPILOGUES, Case, check, is_output, of_today

_SCALES = [scales for scales in Scales if scales]
_TYPES = (DType.FP8_E4M3, DType.FP8_E5M2)
# The tiles that the family offers for scales, with rings so short that a small problem goes around them.
_CONFIGS = (
    KernelConfig(128, 64, 128, 8, 1, 2),
    KernelConfig(256, 128, 128, 8, 1, 2),
    KernelConfig(64, 256, 128, 4, 2, 2),
    KernelConfig(64, 128, 128, 4, 1, 2),
    KernelConfig(128, 128, 128, 8, 1, 2),
    KernelConfig(64, 128, 128, 4, 2, 3),
    KernelConfig(64, 64, 128, 4, 1, 3),
)
# m, n, k, batch: whole tiles and not, an odd n, one block of k, more than a word of four E8M0.
_SHAPES = ((150, 135, 384, 1), (40, 264, 128, 2), (300, 200, 640, 1), (128, 256, 256, 1))


def _problem(scales: Scales, dtype: DType = DType.FP8_E4M3) -> GemmProblem:
    return GemmProblem(4096, 4096, 4096, dtype=dtype, scales=scales, arch="sm_90a")


def _fitting(scales: Scales) -> list[KernelConfig]:
    return [one for one in _CONFIGS if HOPPER.shape_fault(_problem(scales), one) is None]


def _cases() -> list[Case]:
    """Every block and type of scales, type of elements, shape and specialisation; and every epilogue."""
    kinds = list(itertools.product(_SCALES, _TYPES))
    asked = [(*one, "") for one in itertools.product(kinds, _SHAPES, Specialisation)]
    asked += [(kinds[number % len(kinds)], _SHAPES[number % 4], list(Specialisation)[number % 3], epilogue)
              for number, epilogue in enumerate(EPILOGUES)]  # fmt: skip
    cases = []
    for number, ((scales, dtype), (m, n, k, batch), specialisation, epilogue) in enumerate(asked):
        outputs = [one for one in DType if is_output(dtype, one, epilogue)]
        problem = GemmProblem(
            m, n, k, batch, dtype, outputs[number // 7 % len(outputs)], Layout.NT, "sm_90a", epilogue, specialisation,
            OPT_LEVELS[-1], scales,
        )  # fmt: skip
        configs = [one for one in _fitting(scales) if HOPPER.shape_fault(problem, one) is None]
        cases.append(hopper(problem, configs[number * 5 // 4 % len(configs)]))
    return cases


CASES = _cases()


@pytest.mark.parametrize("part", range(2))
def test_kernels_multiply(part: int) -> None:
    """A sample of the cases, another one each day."""
    case = of_today(CASES, 2)[part]
    print(case)
    check(case)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_every_kind_of_kernel_multiplies(part: int) -> None:
    for case in CASES[part::8]:
        print(case)
        check(case)
    report({"trials": len(CASES[part::8])})


@pytest.mark.soak
@pytest.mark.parametrize("scales", _SCALES)
def test_every_config_multiplies(scales: Scales) -> None:
    tried = 0
    for dtype, config in itertools.product(_TYPES, HOPPER.configs(_problem(scales))):
        if HOPPER.shape_fault(_problem(scales), config) is None:
            m, n = config.block_m + 8, config.block_n + 23
            check(hopper(GemmProblem(m, n, 768, dtype=dtype, scales=scales, arch="sm_90a"), config))
            tried += 1
    report({"trials": tried})


def test_the_cases_are_what_the_family_offers() -> None:
    for case in CASES:
        check_config(HOPPER, case.problem, case.config, architecture("sm_90a"))
    problems = [case.problem for case in CASES]
    assert len({(one.scales, one.dtype, one.k, one.specialisation) for one in problems}) == 4 * 2 * 4 * 4
    assert len({problem.epilogue for problem in problems}) == len(EPILOGUES)
    for scales in _SCALES:
        configs = [case.config for case in CASES if case.problem.scales is scales]
        tiles = {(c.block_m, c.block_n, c.warps_m, c.warps_n) for c in configs}
        offered = [one for one in HOPPER.configs(_problem(scales)) if not HOPPER.shape_fault(_problem(scales), one)]
        assert tiles == {(c.block_m, c.block_n, c.warps_m, c.warps_n) for c in offered}
        assert choose(_problem(scales), "hopper")[1] in offered


# ---- Mistakes ----

_BLOCKS = hopper(
    GemmProblem(300, 136, 384, 2, "fp8_e4m3", scales="1x128,128x128", arch="sm_90a"),
    KernelConfig(256, 128, 128, 8, 1, 2),
)
_COLUMNS = hopper(
    GemmProblem(70, 264, 384, dtype="fp8_e4m3", scales="1x128,1x128,e8m0", arch="sm_90a"),
    KernelConfig(64, 256, 128, 4, 2, 2),
)
_WAIT = "products_wait<0>();\n            products_ended"
_MISTAKES = [
    (_BLOCKS, "nothing waits for tiles", "barrier_wait(place.full(), place.parity);\n#pragma", "\n#pragma"),
    (_BLOCKS, "sums are scaled before products have ended", _WAIT, _WAIT.replace("<0>", "<1>")),
    (_BLOCKS, "a buffer is given back while half of its products are under way", "i == MMA_ROWS - 1 &&", "i == 0 &&"),
    (_BLOCKS, "a buffer is given back twice", "i == MMA_ROWS - 1 &&", ""),
    (_BLOCKS, "a buffer is never given back", "i == MMA_ROWS - 1 &&", "false &&"),
    (_BLOCKS, "the lower rows are multiplied as the upper ones", "a_offset + i * 64 * LINE_BYTES", "a_offset"),
    (_BLOCKS, "products are added to those of the block before", "place.tiles() + b_offset, false);",
     "place.tiles() + b_offset, k > 0);"),
    (_BLOCKS, "sums are what was in the registers", "    clear(sums);\n#pragma unroll 1\n    for (int k",
     "\n#pragma unroll 1\n    for (int k"),
    (_BLOCKS, "the next block of k without a step of the ring", "        place.advance();\n    }\n}", "    }\n}"),
    (_BLOCKS, "sums are scaled again", "multiply_add(products[0][j], step.factor(i, j / 4, j % 4), sums[i][j])",
     "(products[0][j] + sums[i][j]) * step.factor(i, j / 4, j % 4)"),
    (_BLOCKS, "products are not scaled", "step.factor(i, j / 4, j % 4)", "1.0f"),
    (_BLOCKS, "the scales of the upper rows for the lower", "step.factor(i, j", "step.factor(0, j"),
    (_BLOCKS, "the scale of the row eight below", "j / 4, j % 4), sums", "j / 4, j % 4 ^ 2), sums"),
    (_BLOCKS, "scales of A of another block of k", "step.read_a(scales.a, scales.row, k,",
     "step.read_a(scales.a, scales.row, 0,"),
    (_BLOCKS, "scales of B of another block of k", "step.read_b(scales.b, scales.column, k,",
     "step.read_b(scales.b, scales.column, 0,"),
    (_BLOCKS, "scales of rows in the next tile of 16", "StepScales<MMA_ROWS, 64,", "StepScales<MMA_ROWS, 16,"),
    (_BLOCKS, "all warps take the scales of the first", "tile.row + first_row + lane / 4, column}",
     "tile.row + lane / 4, column}"),
    (_BLOCKS, "all tiles take the scales of the first column", "column = tile.column + group_column +",
     "column = group_column +"),
    (_BLOCKS, "every batch takes the first one's scales of A", "    a_scales += batch * sizes.m *",
     "    a_scales += 0 * sizes.m *"),
    (_BLOCKS, "every batch takes the first one's scales of B", "b_scales += batch * scale_rows_of_b(sizes.n)",
     "b_scales += 0 * scale_rows_of_b(sizes.n)"),
    (_BLOCKS, "the scale of a row too many", "WHOLE_M || of < sizes.m", "WHOLE_M || of <= sizes.m"),
    (_COLUMNS, "all lanes take the scales of the first columns", "lane % 4 * 2 : 0);", "0 : 0);"),
    (_COLUMNS, "the second group takes the first one's scales", "column = tile.column + group_column +",
     "column = tile.column +"),
    (_COLUMNS, "the scale of the column before", "j / 4, j % 4), sums", "j / 4, j % 4 ^ 1), sums"),
    (_COLUMNS, "the scales of the eight columns before", "step.factor(i, j / 4,", "step.factor(i, j / 4 ^ 1,"),
]  # fmt: skip
_DAILY = (
    "sums are scaled before products have ended",
    "the scales of the upper rows for the lower",
    "the second group takes the first one's scales",
)


@pytest.mark.parametrize(("case", "right", "wrong"), rows(_MISTAKES, _DAILY))
def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
    assert_seen(spoilt(case, right, wrong), partial(check, case))


@pytest.mark.soak
@pytest.mark.parametrize("case", kernels(_MISTAKES), ids=str)
def test_the_kernels_are_right_before(case: Case) -> None:
    check(case)


# ---- What is offered ----


def test_it_serves_first_for_scales_too() -> None:
    problem = _problem(Scales.BLOCKS)
    family, config = choose(problem)
    assert (family.name, config.block_m * config.block_n) == ("hopper", 128 * 256)
    parameters = launch_of(family, problem, config).parameters
    assert (parameters[:3], parameters[-2:]) == (("a_scales", "b_scales", "alpha"), ("b_map", "c_map"))


@pytest.mark.parametrize(
    ("scales", "config", "what"),
    [
        ("1x128,128x128", KernelConfig(128, 256, 128, 8, 1, 4), "block_n must be at most 128 · warps_n"),
        ("1x128,1x128", KernelConfig(256, 128, 128, 8, 1, 4), "would hold 224 sums, products and scales; the most is"),
    ],
)
def test_a_tile_whose_registers_are_too_few_is_refused(scales: Scales, config: KernelConfig, what: str) -> None:
    with pytest.raises(InfeasibleConfig, match=what):
        choose(_problem(Scales(scales)), "hopper", config)
