"""Every kind of kernel computes C = A · B, on the CPU, against NumPy in fp64.

The problems are small and awkward: sizes off every tile, reads of one, two, four and eight elements, batches, all
layouts. Each kernel runs under several interleavings of its threads.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache_engine.kernels.family import Family, check_config
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig
from tests.emulator import emulator

INTERLEAVINGS = (emulator.FORWARD, emulator.BACKWARD_LATE, emulator.SHUFFLED_LATE)

# What rounding may cost: half a unit in the last place of the output, and the accumulator's own over k additions.
_EPSILON = {DType.BF16: 2**-8, DType.FP16: 2**-11, DType.FP32: 2**-24, DType.FP64: 2**-53}

LARGE, SMALL, WIDE = (
    KernelConfig(128, 128, 32, 2, 4, 4),
    KernelConfig(16, 64, 64, 1, 2, 3),
    KernelConfig(64, 128, 16, 2, 2, 2),
)
TENSOR_CORE = [
    # Aligned to 16 bytes everywhere; several tiles each way, and edges.
    *((GemmProblem(152, 200, 104, layout=layout), LARGE) for layout in Layout),
    *((GemmProblem(40, 72, 136, dtype=DType.FP16, batch=3, layout=layout), SMALL) for layout in Layout),
    # Rows that allow reads of 8, 4 and 2 bytes only.
    *((GemmProblem(84, 76, 52, layout=layout, out_dtype=DType.FP32), WIDE) for layout in Layout),
    *((GemmProblem(70, 74, 46, layout=layout, dtype=DType.FP16), WIDE) for layout in Layout),
    *((GemmProblem(67, 131, 37, layout=layout, batch=2), WIDE) for layout in Layout),
    # One row, one column, one step; less than a fragment.
    (GemmProblem(1, 1, 1), SMALL),
    (GemmProblem(1, 64, 64), SMALL),
    (GemmProblem(33, 1, 8, dtype=DType.FP16, out_dtype=DType.BF16), SMALL),
]
BIG, LITTLE, NARROW = (
    KernelConfig(128, 64, 16, 4, 1, 2),
    KernelConfig(16, 32, 32, 1, 1, 2),
    KernelConfig(32, 64, 16, 2, 2, 2),
)
SIMT = [
    *((GemmProblem(136, 72, 40, dtype=DType.FP32, layout=layout), BIG) for layout in Layout),
    *((GemmProblem(34, 70, 50, dtype=DType.FP32, layout=layout, batch=3), NARROW) for layout in Layout),
    *((GemmProblem(33, 35, 37, dtype=DType.FP64, layout=layout, batch=2), LITTLE) for layout in Layout),
    *((GemmProblem(64, 96, 48, dtype=DType.FP64, layout=layout), NARROW) for layout in Layout),
    (GemmProblem(1, 1, 1, dtype=DType.FP32), LITTLE),
    (GemmProblem(1, 130, 3, dtype=DType.FP64), LITTLE),
]
CASES = [
    pytest.param(FAMILIES[name], problem, config, id=f"{name}-{problem.m}x{problem.n}x{problem.k}x{problem.batch}-"
                 f"{problem.dtype}-{problem.output}-{problem.layout}-{config}")
    for name, cases in (("tensor_core", TENSOR_CORE), ("simt", SIMT))
    for problem, config in cases
]  # fmt: skip


@pytest.mark.parametrize(("family", "problem", "config"), CASES)
def test_the_kernel_multiplies(family: Family, problem: GemmProblem, config: KernelConfig, tmp_path: Path) -> None:
    _check(family, problem, config, tmp_path)


@pytest.mark.parametrize("family", [FAMILIES["tensor_core"], FAMILIES["simt"]], ids=lambda family: family.name)
def test_every_config_offered_multiplies(family: Family, tmp_path: Path) -> None:
    """Each config of the lists once, on a problem of its own that leaves no tile whole."""
    target = architecture("sm_90")
    for number, config in enumerate(family.configs(GemmProblem(1, 1, 1, dtype=family.dtypes[0]))):
        layout = list(Layout)[number % 4]
        dtype = family.dtypes[number % len(family.dtypes)]
        problem = GemmProblem(
            config.block_m + 8, config.block_n + 24, 2 * config.block_k + 8, dtype=dtype, layout=layout
        )
        check_config(family, problem, config, target)
        _check(family, problem, config, tmp_path, INTERLEAVINGS[1:2])


def _check(
    family: Family,
    problem: GemmProblem,
    config: KernelConfig,
    folder: Path,
    interleavings: tuple[emulator.Interleaving, ...] = INTERLEAVINGS,
) -> None:
    a, b = _operands(problem)
    reference, magnitude = a @ b, np.abs(a) @ np.abs(b)
    library = emulator.build(family, problem, config, folder)
    for interleaving in interleavings:
        c = emulator.run(library, family, problem, config, a, b, interleaving)
        allowed = _EPSILON[problem.output] * np.abs(reference) + problem.k * _EPSILON[problem.accumulate] * magnitude
        assert np.all(np.abs(c - reference) <= allowed + 1e-30), interleaving


def _operands(problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(zlib.crc32(repr(problem).encode()))
    a = generator.standard_normal((problem.batch, problem.m, problem.k))
    b = generator.standard_normal((problem.batch, problem.k, problem.n))
    return emulator.rounded(a, problem.dtype), emulator.rounded(b, problem.dtype)


# What the emulator is worth: each of these mistakes, put into a right kernel, must be seen.
MISTAKES = [
    pytest.param("tensor_core", "wait_copies<STAGES - 2>();", "", id="copies not waited for"),
    pytest.param("tensor_core", "wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();", id="one copy too few"),
    pytest.param("tensor_core", "        sync_block();\n", "", id="a barrier dropped"),
    pytest.param(
        "tensor_core", "lane % 16, k + lane / 16 * 8", "lane % 16, k + lane / 8 * 8", id="a wrong ldmatrix row"
    ),
    pytest.param("tensor_core", "first_row + row < rows", "first_row + row <= rows", id="an edge off by one"),
    pytest.param("tensor_core", "if (row >= m || column >= N) return;", "", id="a store not masked"),
    pytest.param("tensor_core", "batch * N * K", "batch * N * (K + 8)", id="a wrong batch stride"),
    pytest.param(
        "tensor_core", "row * COLUMNS + chunk * 8", "row * (COLUMNS + 8) + chunk * 8", id="beyond shared memory"
    ),
    pytest.param("simt", "            sync_block();\n", "", id="a barrier dropped in the loop"),
    pytest.param("simt", "row < rows && column < columns", "row < rows", id="an edge not checked"),
    pytest.param("simt", "if (row >= m) return;", "", id="a row too many stored"),
    pytest.param("simt", "step % 2 * A_BUFFER", "0 * A_BUFFER", id="the wrong buffer"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), MISTAKES)
def test_the_emulator_sees_a_seeded_mistake(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    problem, config = (
        (GemmProblem(72, 136, 112, batch=2), KernelConfig(64, 128, 16, 2, 2, 3))
        if name == "tensor_core"
        else (GemmProblem(72, 72, 72, dtype=DType.FP32, batch=2), KernelConfig(32, 64, 16, 2, 2, 2))
    )
    text = emulator.emulated_source(family, problem, config)
    assert text.count(right) == 1, "the template no longer holds the line to be spoilt"
    library = emulator.build(family, problem, config, tmp_path, source=text.replace(right, wrong))
    a, b = _operands(problem)
    reference = a @ b
    for interleaving in INTERLEAVINGS:
        try:
            c = emulator.run(library, family, problem, config, a, b, interleaving)
        except emulator.EmulatorFault:
            return
        if not np.allclose(c, reference, rtol=2**-6, atol=2**-4):
            return
    pytest.fail("the mistake went unseen under every interleaving")


def test_a_problem_is_computed_with_any_m(tmp_path: Path) -> None:
    """M is an argument: the kernel made for one m serves every other."""
    family, config = FAMILIES["tensor_core"], SMALL
    made_for = GemmProblem(64, 72, 40)
    library = emulator.build(family, made_for, config, tmp_path)
    for m in (1, 15, 16, 17, 150):
        problem = replace(made_for, m=m)
        a, b = _operands(problem)
        c = emulator.run(library, family, problem, config, a, b)
        assert np.allclose(c, a @ b, rtol=2**-7, atol=2**-5), m
