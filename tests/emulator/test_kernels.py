"""Every kind of kernel computes C = A · B, on the CPU, against NumPy in fp64.

The problems are small and awkward: sizes off every tile, reads of one, two, four and eight elements, batches, all
layouts. Each kernel runs under several interleavings of its threads.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache_engine.gpu.fp8 import dequantise, fp8_values, quantise
from cache_engine.kernels.family import Family, check_config
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import Activation, DType, Epilogue, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.emulator import emulator

# Of the configs one in so many is run in short tests,
PARTS = 12
# and of the cases: as the layouts come in fours, each has its turn.
SHORT = 11
INTERLEAVINGS = (emulator.FORWARD, emulator.BACKWARD_LATE, emulator.SHUFFLED_LATE)

# What rounding may cost: half a unit in the last place of the output, and the accumulator's own over k additions.
_EPSILON = {DType.BF16: 2**-8, DType.FP16: 2**-11, DType.FP32: 2**-24, DType.FP64: 2**-53, DType.INT32: 0.0}

LARGE, SMALL, WIDE = (
    KernelConfig(128, 128, 32, 2, 4, 4),
    KernelConfig(16, 64, 64, 1, 2, 3),
    KernelConfig(64, 128, 16, 2, 2, 2),
)
THIN = KernelConfig(32, 64, 16, 2, 2, 3)
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
    # Other sizes of elements: rows of whole 16 bytes, of 4 (of 1 in 8-bit types), and odd ones.
    *((GemmProblem(40, 72, 80, dtype=DType.TF32, layout=layout), THIN) for layout in Layout),
    *((GemmProblem(35, 69, 41, dtype=DType.TF32, layout=layout, batch=2), THIN) for layout in Layout),
    *((GemmProblem(48, 80, 96, dtype=DType.INT8, layout=layout), SMALL) for layout in Layout),
    *((GemmProblem(36, 76, 84, dtype=DType.INT8, layout=layout), SMALL) for layout in Layout),
    *((GemmProblem(35, 69, 41, dtype=DType.INT8, layout=layout, batch=2), SMALL) for layout in Layout),
    *((GemmProblem(48, 80, 96, dtype=DType.FP8_E4M3, layout=layout), SMALL) for layout in Layout),
    (GemmProblem(35, 69, 41, dtype=DType.FP8_E5M2, out_dtype=DType.FP32), SMALL),
    (GemmProblem(38, 70, 90, dtype=DType.FP8_E5M2, out_dtype=DType.FP16, layout=Layout.TN), SMALL),
    # Slices of k: even ones, a short last one, one that is empty.
    (GemmProblem(40, 72, 384, batch=2), replace(SMALL, split_k=3)),
    (GemmProblem(33, 70, 300, dtype=DType.FP16, layout=Layout.TN), replace(WIDE, split_k=5)),
    (GemmProblem(20, 40, 80, dtype=DType.INT8), replace(SMALL, block_k=32, split_k=3)),
    (GemmProblem(16, 64, 320, out_dtype=DType.FP32), replace(SMALL, split_k=4)),
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
    *((GemmProblem(34, 70, 50, dtype=DType.INT8, layout=layout, batch=2), NARROW) for layout in Layout),
    *((GemmProblem(36, 72, 52, dtype=DType.FP16, layout=layout), NARROW) for layout in Layout),
    (GemmProblem(33, 35, 37, out_dtype=DType.FP32), LITTLE),
    (GemmProblem(40, 72, 200, dtype=DType.FP32, batch=2), replace(NARROW, split_k=4)),
    (GemmProblem(33, 35, 137, dtype=DType.FP64), replace(LITTLE, split_k=5)),
    # Six tiles of k in slices of two: the last two slices are empty.
    (GemmProblem(20, 40, 96, dtype=DType.FP32, specialisation=Specialisation.EXACT), replace(NARROW, split_k=5)),
]
# Which sizes are constants: tiles all whole, some of them, and none; one row of tiles, and more than one band of them.
SPECIALISED = [
    *(
        (name, replace(problem, specialisation=specialisation), config)
        for specialisation in (Specialisation.EXACT, Specialisation.BUCKETED, Specialisation.DYNAMIC)
        for name, problem, config in (
            ("tensor_core", GemmProblem(128, 256, 64, batch=2), WIDE),
            ("tensor_core", GemmProblem(64, 131, 37, dtype=DType.FP16, layout=Layout.TN), WIDE),
            ("tensor_core", GemmProblem(148, 72, 96, layout=Layout.NN), replace(SMALL, split_k=2)),
            ("tensor_core", GemmProblem(35, 70, 48, dtype=DType.TF32, layout=Layout.TT), THIN),
            ("tensor_core", GemmProblem(16, 64, 96, dtype=DType.INT8, layout=Layout.TN), SMALL),
            ("simt", GemmProblem(64, 128, 48, dtype=DType.FP32, layout=Layout.TN), NARROW),
            ("simt", GemmProblem(33, 66, 37, dtype=DType.FP64, batch=2, layout=Layout.NN), LITTLE),
            ("simt", GemmProblem(150, 32, 96, dtype=DType.FP32, layout=Layout.TT), replace(LITTLE, split_k=2)),
        )
    )
]
CASES = [
    pytest.param(FAMILIES[name], problem, config, id=f"{name}-{problem.m}x{problem.n}x{problem.k}x{problem.batch}-"
                 f"{problem.dtype}-{problem.output}-{problem.layout}-{problem.specialisation}-{config}")
    for name, problem, config in (
        *(("tensor_core", *case) for case in TENSOR_CORE), *(("simt", *case) for case in SIMT), *SPECIALISED
    )
]  # fmt: skip


def _some(cases: list[Any], one_in: int) -> list[Any]:
    """The same, of which each day only some run, as tests/ptx executes the compiled code; all in the long run."""
    return [
        case if number % one_in == 0 else pytest.param(*case.values, id=case.id, marks=pytest.mark.soak)
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("family", "problem", "config"), _some(CASES, SHORT))
def test_the_kernel_multiplies(family: Family, problem: GemmProblem, config: KernelConfig, tmp_path: Path) -> None:
    _check(family, problem, config, tmp_path)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, PARTS))])
@pytest.mark.parametrize("family", [FAMILIES["tensor_core"], FAMILIES["simt"]], ids=lambda family: family.name)
def test_every_config_offered_multiplies(family: Family, part: int, tmp_path: Path) -> None:
    """Each config of the lists once, on a problem of its own that leaves no tile whole."""
    target = architecture("sm_90")
    dtypes = [dtype for dtype in family.flops_per_clock if dtype.itemsize == 2] or [DType.FP32]
    for number, config in enumerate(family.configs(GemmProblem(1, 1, 1, dtype=dtypes[0]))):
        if number % PARTS != part:
            continue
        layout = list(Layout)[number % 4]
        dtype = dtypes[number % len(dtypes)]
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
    scale = 32 if problem.dtype is DType.INT8 else 1
    a = np.clip(scale * generator.standard_normal((problem.batch, problem.m, problem.k)), -127, 127)
    b = np.clip(scale * generator.standard_normal((problem.batch, problem.k, problem.n)), -127, 127)
    return emulator.rounded(a, problem.dtype), emulator.rounded(b, problem.dtype)


# What the emulator is worth: each of these mistakes, put into a right kernel, must be seen.
MISTAKES = [
    pytest.param("tensor_core", "wait_copies<STEPS>();", "", id="copies not waited for"),
    pytest.param("tensor_core", "wait_copies<STEPS>();", "wait_copies<STEPS + 1>();", id="one copy too few"),
    pytest.param(
        "tensor_core",
        "wait_copies<STEPS>();\n        sync_block();",
        "wait_copies<STEPS>();",
        id="a barrier dropped",
    ),
    pytest.param(
        "tensor_core",
        "(row + lane % 16, k + lane / 16 * CHUNK",
        "(row + lane % 16, k + lane / 8 * CHUNK",
        id="a wrong ldmatrix row",
    ),
    pytest.param(
        "tensor_core",
        "row < rows_left) && (WHOLE_COLUMNS || columns_left",
        "row <= rows_left) && (columns_left",
        id="an edge off by one",
    ),
    pytest.param("tensor_core", "is_inside = WHOLE_N || column < sizes.n", "is_inside = true", id="a store not masked"),
    pytest.param(
        "tensor_core", "batch * sizes.n * sizes.k", "batch * sizes.n * (sizes.k + 8)", id="a wrong batch stride"
    ),
    pytest.param(
        "tensor_core", "row * COLUMNS + chunk * CHUNK", "row * (COLUMNS + 8) + chunk * CHUNK", id="beyond shared memory"
    ),
    pytest.param("simt", "            sync_block();\n", "", id="a barrier dropped in the loop"),
    pytest.param("simt", "(WHOLE_COLUMNS || column < columns)", "true", id="an edge not checked"),
    pytest.param("simt", "if (!WHOLE_M && row >= sizes.m) return;", "", id="a row too many stored"),
    *(
        pytest.param("split", right, wrong, id=f"split-k: {what}")
        for right, wrong, what in (
            ("if (thread_index() == 0) store_global<unsigned, 1>(counters + tile, {0u});", "", "counters left behind"),
            ("!= SPLIT_K - 1) return false", "!= 1) return false", "not the last stores"),
            ("slice < SPLIT_K; ++slice", "slice < SPLIT_K - 1; ++slice", "a slice forgotten"),
            ("tile * SPLIT_K * COUNT", "tile * COUNT", "tiles in each other's sums"),
            ("        fence();\n        sync_block();\n", "", "counted in before all have written"),
            (
                "(k_tiles + SPLIT_K - 1) / SPLIT_K",
                "k_tiles / SPLIT_K",
                "tiles of k left over",
            ),
        )
    ),
    pytest.param("simt", "step % 2 * A_BUFFER", "0 * A_BUFFER", id="the wrong buffer"),
    pytest.param("exact", "WHOLE_M = M % BLOCK_M == 0", "WHOLE_M = true", id="exact: an edge taken for whole"),
    pytest.param("exact", "WHOLE_K = K % BLOCK_K == 0", "WHOLE_K = true", id="exact: an edge in k taken for whole"),
    pytest.param("exact", "#define SIZE_M M", "#define SIZE_M (M + 1)", id="exact: another m"),
    pytest.param(
        "bucketed", "M_MOST <= RASTER_ROWS * BLOCK_M", "M_MOST <= 99 * BLOCK_M", id="bucketed: bands taken for one"
    ),
    pytest.param("bucketed", "M_MOST <= BLOCK_M)", "M_MOST <= 99 * BLOCK_M)", id="bucketed: rows taken for one"),
    pytest.param("dynamic", "#define SIZES {m, n, k}", "#define SIZES {m, k, n}", id="dynamic: n for k"),
    pytest.param("dynamic", "#define C_VECTOR 1", "#define C_VECTOR 2", id="dynamic: writes too wide"),
    pytest.param("dynamic", "#define A_VECTOR 4", "#define A_VECTOR 8", id="dynamic: reads of A too wide"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), _some(MISTAKES, 4))
def test_the_emulator_sees_a_seeded_mistake(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    family = FAMILIES["simt" if name == "simt" else "tensor_core"]
    problem, config = {
        "tensor_core": (GemmProblem(72, 136, 112, batch=2), KernelConfig(64, 128, 16, 2, 2, 3)),
        "simt": (GemmProblem(72, 72, 72, dtype=DType.FP32, batch=2), KernelConfig(32, 64, 16, 2, 2, 2)),
        "split": (GemmProblem(72, 136, 112, batch=2), KernelConfig(64, 64, 16, 2, 2, 3, split_k=3)),
        "exact": (GemmProblem(72, 136, 104, batch=2, specialisation=Specialisation.EXACT), WIDE),
        "bucketed": (GemmProblem(150, 72, 40, specialisation=Specialisation.BUCKETED), SMALL),
        "dynamic": (GemmProblem(72, 137, 100, specialisation=Specialisation.DYNAMIC), WIDE),
    }[name]
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


EPILOGUES = (
    "alpha+beta+bias+gelu",
    *(pytest.param(text, marks=pytest.mark.soak) for text in ("alpha", "beta", "bias", "relu", "bias+relu")),
)


@pytest.mark.parametrize("text", EPILOGUES)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32, DType.FP64, DType.FP8_E4M3])
def test_an_epilogue_is_applied(text: str, dtype: DType, tmp_path: Path) -> None:
    """On both families, on even and odd rows, with and without slices of k; against its formula in fp64."""
    epilogue = Epilogue.parse(text)
    odd = dtype is DType.BF16
    problem = GemmProblem(35, 67 if odd else 72, 128, batch=2, dtype=dtype, epilogue=epilogue)
    family, config = choose(replace(problem, arch="sm_90"))
    config = SMALL if family.name == "tensor_core" else NARROW
    config = replace(config, split_k=2 if odd else 1)
    check_config(family, problem, config, architecture("sm_90"))
    a, b = _operands(problem)
    generator = np.random.default_rng(5)
    before = emulator.rounded(4 * generator.standard_normal((2, problem.m, problem.n)), problem.output)
    bias = emulator.rounded(4 * generator.standard_normal(problem.n), problem.output)
    alpha, beta = 0.75, -0.5
    library = emulator.build(family, problem, config, tmp_path)
    computed = emulator.run(
        library, family, problem, config, a, b, INTERLEAVINGS[2], alpha=alpha, beta=beta,
        before=before if epilogue.beta else None, bias=bias if epilogue.bias else None,
    )  # fmt: skip
    expected = a @ b * (alpha if epilogue.alpha else 1)
    expected = expected + (beta * before if epilogue.beta else 0) + (bias if epilogue.bias else 0)
    if epilogue.activation is Activation.RELU:
        expected = np.maximum(expected, 0)
    if epilogue.activation is Activation.GELU:
        expected = expected * (1 + np.vectorize(math.erf)(expected / math.sqrt(2))) / 2
    scale = np.abs(a) @ np.abs(b) + 8
    allowed = _EPSILON[problem.output] * np.abs(expected) + problem.k * _EPSILON[problem.accumulate] * scale
    assert np.all(np.abs(computed - expected) <= allowed)
    if epilogue.activation is Activation.RELU:
        assert (computed == 0).any()


def test_c_is_not_read_when_beta_is_0(tmp_path: Path) -> None:
    problem = GemmProblem(20, 40, 64, epilogue=Epilogue(alpha=True, beta=True))
    family = FAMILIES["tensor_core"]
    a, b = _operands(problem)
    library = emulator.build(family, problem, SMALL, tmp_path)
    computed = emulator.run(library, family, problem, SMALL, a, b, alpha=2.0, beta=0.0)  # C is NaN before
    assert np.allclose(computed, 2 * a @ b, rtol=2**-7, atol=2**-5)


def test_fp32_inputs_are_rounded_to_tf32_and_not_cut_off(tmp_path: Path) -> None:
    """Cutting off is biased: over many products of one sign it shows."""
    problem, config = GemmProblem(16, 64, 256, dtype=DType.TF32), THIN
    a, b = (np.abs(operand) for operand in _operands(replace(problem, dtype=DType.FP32)))
    family = FAMILIES["tensor_core"]
    text = emulator.emulated_source(family, problem, config)
    # As bits of fp32: the emulator's own rounding is left out.
    errors = []
    for number, source in enumerate((text, text.replace("fragment[i] = rounded_to_tf32(fragment[i])", "fragment[i]"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        library = emulator.build(family, problem, config, folder, source=source)
        computed = emulator.run(library, family, problem, config, a, b, stored_as=DType.FP32)
        errors.append(float(np.mean(computed / (a @ b) - 1)))
    rounded, cut = errors
    assert abs(rounded) < 2**-14 < 2**-12 < -cut


# What a kernel was made for, and other problems that have its key.
SHARED = [
    pytest.param(GemmProblem(64, 72, 40), SMALL, [{"m": m} for m in (1, 15, 16, 17, 150)], id="any m"),
    pytest.param(
        GemmProblem(20, 72, 40, specialisation=Specialisation.EXACT), SMALL, [{"batch": 3}], id="exact: any batch"
    ),
    pytest.param(
        GemmProblem(256, 72, 40, specialisation=Specialisation.BUCKETED),
        SMALL,
        [{"m": m} for m in (129, 144, 255)],
        id="bucketed: any m of the bucket",
    ),
    pytest.param(
        GemmProblem(12, 72, 40, specialisation=Specialisation.BUCKETED),
        SMALL,
        [{"m": 9}, {"m": 16, "batch": 2}],
        id="bucketed: a bucket of one row of tiles",
    ),
    pytest.param(
        GemmProblem(64, 72, 40, specialisation=Specialisation.DYNAMIC),
        WIDE,
        [{"m": 1, "n": 8, "k": 8}, {"m": 130, "n": 16, "k": 72, "batch": 2}, {"m": 700, "n": 264, "k": 16}],
        id="dynamic: any sizes as aligned",
    ),
    pytest.param(
        GemmProblem(64, 70, 40, specialisation=Specialisation.DYNAMIC),
        WIDE,
        [{"m": 1, "n": 2, "k": 8}, {"m": 130, "n": 14, "k": 72, "batch": 2}, {"m": 67, "n": 262, "k": 16}],
        id="dynamic: rows of C as aligned",
    ),
    pytest.param(
        GemmProblem(64, 72, 200, dtype=DType.FP16, layout=Layout.TN, specialisation=Specialisation.DYNAMIC),
        replace(SMALL, split_k=3),
        [{"m": 8, "n": 264, "k": 1}, {"m": 40, "n": 8, "k": 65}, {"m": 16, "n": 16, "k": 333, "batch": 2}],
        id="dynamic: empty slices of k",
    ),
    pytest.param(
        GemmProblem(64, 72, 40, dtype=DType.FP32, specialisation=Specialisation.DYNAMIC),
        NARROW,
        [{"m": 1, "n": 4, "k": 4}, {"m": 65, "n": 132, "k": 92, "batch": 2}],
        id="dynamic: fp32",
    ),
]


@pytest.mark.parametrize(("made_for", "config", "others"), SHARED)
def test_a_kernel_computes_every_problem_that_has_its_key(
    made_for: GemmProblem, config: KernelConfig, others: list[dict[str, int]], tmp_path: Path
) -> None:
    family = FAMILIES["simt" if made_for.dtype is DType.FP32 else "tensor_core"]
    library = emulator.build(family, made_for, config, tmp_path)
    for sizes in others:
        problem = replace(made_for, **sizes)  # type: ignore[arg-type]
        check_config(family, problem, config, architecture("sm_90"))
        assert family.constants(problem, config) == family.constants(made_for, config)
        a, b = _operands(problem)
        assert np.allclose(emulator.run(library, family, problem, config, a, b, INTERLEAVINGS[1]), a @ b, 2**-7, 2**-5)


@pytest.mark.parametrize("scales", [Scales.BLOCKS, Scales.ROWS_E8M0])
def test_blocks_with_scales_multiply(scales: Scales, tmp_path: Path) -> None:
    """Under every interleaving and with slices of k; those of fp32 are no powers of two."""
    problem = GemmProblem(20, 140, 384, batch=2, dtype=DType.FP8_E4M3, out_dtype=DType.FP32, scales=scales)
    config, family = KernelConfig(16, 64, 128, 1, 2, 3, split_k=2), FAMILIES["scaled"]
    generator = np.random.default_rng(4)
    a, b = (generator.standard_normal(shape) for shape in ((2, 20, 384), (2, 140, 384)))
    (a_codes, a_scales), (b_codes, b_scales) = quantise(a, scales), quantise(b, scales, of_b=True)
    values = fp8_values(problem.dtype).astype(np.float64)
    expected = dequantise(a_codes, a_scales, scales, dtype=problem.dtype) @ dequantise(
        b_codes, b_scales, scales, of_b=True, dtype=problem.dtype
    ).transpose(0, 2, 1)
    library = emulator.build(family, problem, config, tmp_path)
    for interleaving in INTERLEAVINGS:
        c = emulator.run(
            library, family, problem, config, values[a_codes], values[b_codes].transpose(0, 2, 1), interleaving,
            scales=(a_scales, b_scales),
        )  # fmt: skip
        assert np.allclose(c, expected, rtol=0, atol=2**-16 * np.abs(expected).max())
