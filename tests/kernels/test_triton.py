"""Triton kernels compute C = A · B: run by Triton's interpreter, against NumPy in fp64.

The problems are small and awkward: sizes off every tile, less than one tile, batches, all layouts and types.
"""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cache_engine.cache.selection import Selector
from cache_engine.compilers import COMPILERS
from cache_engine.errors import InfeasibleConfig, UsageError
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.helpers import of_today, require_triton
from tests.kernels import interpreter

# What rounding may cost: half a unit in the last place of the output, but all of it in bf16, to which the interpreter
# cuts off and does not round as the hardware does. It also rounds no input to tf32.
_EPSILON = {DType.BF16: 2**-7, DType.FP16: 2**-11, DType.FP32: 2**-24}

SMALL, WIDE, TALL = (
    KernelConfig(16, 32, 32, 4, 1, 3),
    KernelConfig(32, 64, 16, 4, 1, 2),
    KernelConfig(64, 16, 64, 4, 1, 4),
)
SHAPES = (
    # Whole tiles; edges on 16 bytes; edges anywhere.
    (64, 128, 64, 1, SMALL),
    (40, 72, 136, 2, SMALL),
    (67, 131, 37, 2, WIDE),
    # More rows of tiles than are walked down at once, the last band a short one.
    (150, 40, 48, 1, SMALL),
    # Less than one tile each way; k less than one step.
    (1, 64, 64, 1, TALL),
    (33, 1, 8, 3, TALL),
    (1, 1, 1, 1, SMALL),
)
CASES = [
    *(
        (GemmProblem(m, n, k, batch=batch, dtype=dtype, layout=layout), config)
        for (m, n, k, batch, config), dtype, layout in itertools.product(
            SHAPES, FAMILIES["triton"].flops_per_clock, Layout
        )
    ),
    *(
        (GemmProblem(m, n, k, batch=batch, layout=layout, specialisation=specialisation), config)
        for (m, n, k, batch, config), layout, specialisation in itertools.product(
            SHAPES, Layout, (Specialisation.EXACT, Specialisation.BUCKETED, Specialisation.DYNAMIC)
        )
    ),
    *((GemmProblem(40, 72, 50, dtype=DType.FP16, out_dtype=out), WIDE) for out in (DType.FP32, DType.BF16)),
    *((GemmProblem(40, 72, 50, dtype=DType.BF16, out_dtype=out), WIDE) for out in (DType.FP32, DType.FP16)),
]


def test_kernels_multiply(tmp_path: Path) -> None:
    """A sample of the cases, another one each day."""
    assert _wrong(of_today(CASES, 16), tmp_path) == {}


@pytest.mark.soak
def test_every_kind_of_kernel_multiplies(tmp_path: Path) -> None:
    assert _wrong(CASES, tmp_path) == {}


@pytest.mark.soak
@pytest.mark.parametrize("dtype", FAMILIES["triton"].flops_per_clock)
def test_every_config_offered_multiplies(dtype: DType, tmp_path: Path) -> None:
    """Each config of the lists once, on a problem of its own that leaves no tile whole."""
    layouts = itertools.cycle(Layout)
    cases = []
    for config in FAMILIES["triton"].configs(GemmProblem(1, 1, 1, dtype=dtype)):
        m, n, k = config.block_m + 8, config.block_n + 24, 2 * config.block_k + 8
        cases.append((GemmProblem(m, n, k, dtype=dtype, layout=next(layouts)), config))
    assert _wrong(cases, tmp_path) == {}


def test_a_kernel_computes_with_any_m(tmp_path: Path) -> None:
    """M is an argument: the kernel made for one m serves every other."""
    made_for = GemmProblem(64, 72, 40)
    source = interpreter.source_of(made_for, SMALL)
    cases = [(replace(made_for, m=m), SMALL) for m in (1, 15, 16, 17, 150)]
    assert _wrong(cases, tmp_path, [source] * 5) == {}


def test_a_kernel_computes_every_problem_that_has_its_key(tmp_path: Path) -> None:
    """Of a bucket of several bands of tiles, of one row of them, and any sizes as aligned."""
    cases, sources = [], []
    for made_for, others in (
        (
            GemmProblem(256, 72, 40, specialisation=Specialisation.BUCKETED),
            [{"m": 129}, {"m": 150, "batch": 2}],
        ),
        (GemmProblem(12, 72, 40, specialisation=Specialisation.BUCKETED), [{"m": 9}, {"m": 16}]),
        (
            GemmProblem(64, 72, 40, specialisation=Specialisation.DYNAMIC),
            [{"m": 1, "n": 8, "k": 8}, {"m": 150, "n": 40, "k": 104, "batch": 2}],
        ),
        (GemmProblem(24, 40, 33, layout=Layout.TN, specialisation=Specialisation.DYNAMIC), [{"m": 40, "k": 50}]),
    ):
        source = interpreter.source_of(made_for, SMALL)
        for sizes in others:
            problem = replace(made_for, **sizes)  # type: ignore[arg-type]
            assert interpreter.source_of(problem, SMALL) == source
            cases.append((problem, SMALL))
            sources.append(source)
    assert _wrong(cases, tmp_path, sources) == {}


def test_far_rows_are_addressed_in_64_bits(tmp_path: Path) -> None:
    """The same kernels with the bound from which on they do so moved to where these problems are."""
    cases = [
        (GemmProblem(40, 72, 136, batch=2, layout=layout, specialisation=specialisation), SMALL)
        for layout, specialisation in itertools.product(Layout, (Specialisation.NK, Specialisation.DYNAMIC))
    ]
    sources = [interpreter.source_of(*case) for case in cases]
    assert all(source.count("2**31") == 3 for source in sources)
    assert _wrong(cases, tmp_path, [source.replace("2**31", "2**4") for source in sources]) == {}


def _wrong(
    cases: list[tuple[GemmProblem, KernelConfig]], folder: Path, sources: list[str] | None = None
) -> dict[str, str]:
    """Those that the interpreter refuses, or whose C is too far from the product, and how far."""
    require_triton()
    sources = sources or [interpreter.source_of(*case) for case in cases]
    runs = [(problem, config, source) for (problem, config), source in zip(cases, sources, strict=True)]
    operands = [_operands(problem) for problem, _ in cases]
    computed, wrong = interpreter.run(runs, operands, folder), {}
    for (problem, config), (a, b), c in zip(cases, operands, computed, strict=True):
        if isinstance(c, interpreter.InterpreterFault):
            wrong[f"{problem} {config}"] = str(c)
            continue
        allowed = _EPSILON[problem.output] * np.abs(a @ b) + problem.k * 2**-24 * (np.abs(a) @ np.abs(b))
        if not np.all(np.abs(c - a @ b) <= allowed + 1e-30):
            wrong[f"{problem} {config}"] = f"off by {np.max(np.abs(c - a @ b))}"
    return wrong


def _operands(problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(zlib.crc32(repr(problem).encode()))
    a = generator.standard_normal((problem.batch, problem.m, problem.k))
    b = generator.standard_normal((problem.batch, problem.k, problem.n))
    return interpreter.rounded(a, problem.dtype), interpreter.rounded(b, problem.dtype)


# What the interpreter is worth: each of these mistakes, put into a right kernel, must be seen.
MISTAKES = {
    "an edge of A in m not masked": ("in_a = row_valid[:, None] & deep_valid[None, :]", "in_a = deep_valid[None, :]"),
    "an edge of A in k not masked": ("in_a = row_valid[:, None] & deep_valid[None, :]", "in_a = row_valid[:, None]"),
    "an edge of B in n not masked": (
        "in_b = column_valid[None, :] & deep_valid[:, None]",
        "in_b = deep_valid[:, None]",
    ),
    "an edge of B in k not masked": (
        "in_b = column_valid[None, :] & deep_valid[:, None]",
        "in_b = column_valid[None, :]",
    ),
    "rows of C not masked": ("in_c = row_valid[:, None] & column_valid[None, :]", "in_c = column_valid[None, :]"),
    "columns of C not masked": ("in_c = row_valid[:, None] & column_valid[None, :]", "in_c = row_valid[:, None]"),
    "an edge off by one": ("first_row + row < m", "first_row + row <= m"),
    "a wrong batch stride": ("b += batch * n * k", "b += batch * n * (k + 8)"),
    "a wrong stride of A": ("row_a[:, None] * k", "row_a[:, None] * (k + 1)"),
    "a wrong stride of C": ("row_c[:, None] * n", "row_c[:, None] * (n + 1)"),
    "a wrong step in k": ("b_tile += block_k if", "b_tile += 2 * block_k if"),
    "a step too few": ("tl.range(0, (k + block_k - 1) // block_k)", "tl.range(0, k // block_k)"),
    "a tile computed twice, another never": ("within % band_rows", "within % raster_rows"),
    "bands one upon the other": ("(band * raster_rows + within % band_rows)", "(within % band_rows)"),
}


def test_the_interpreter_sees_seeded_mistakes(tmp_path: Path) -> None:
    require_triton()
    problem = GemmProblem(135, 43, 45, batch=2)
    right = interpreter.source_of(problem, SMALL)
    for name, (text, _) in MISTAKES.items():
        assert right.count(text) == 1, f"the template no longer holds the line to be spoilt: {name}"
    sources = [right, *(right.replace(*mistake) for mistake in MISTAKES.values())]
    a, b = _operands(problem)
    sound, *spoilt = interpreter.run(
        [(problem, SMALL, source) for source in sources], [(a, b)] * len(sources), tmp_path
    )
    assert _is_product(sound, a @ b)
    unseen = [name for name, c in zip(MISTAKES, spoilt, strict=True) if _is_product(c, a @ b)]
    assert unseen == []


def _is_product(c: np.ndarray | interpreter.InterpreterFault, product: np.ndarray) -> bool:
    return isinstance(c, np.ndarray) and np.allclose(c, product, rtol=2**-6, atol=2**-4)


# ---- Which family and compiler, and which config ----

PROBLEM = GemmProblem(4096, 7168, 2048, arch="sm_90")


@pytest.mark.parametrize(
    ("family", "compiler", "chosen"),
    [
        (None, None, ("tensor_core", "nvrtc")),
        (None, "nvrtc", ("tensor_core", "nvrtc")),
        ("tensor_core", None, ("tensor_core", "nvrtc")),
        ("triton", None, ("triton", "triton")),
        (None, "triton", ("triton", "triton")),
        ("triton", "triton", ("triton", "triton")),
    ],
)
def test_a_family_implies_its_compiler_and_the_other_way_round(
    family: str | None, compiler: str | None, chosen: tuple[str, str]
) -> None:
    if "triton" in chosen:
        require_triton()
    selection = Selector().select(PROBLEM, family, compiler, None)
    assert (selection.family.name, selection.compiler.name) == chosen


@pytest.mark.parametrize(
    ("family", "compiler", "says"),
    [
        ("triton", "nvrtc", "nvrtc cannot compile the triton family, triton can"),
        ("tensor_core", "triton", "triton cannot compile the tensor_core family, nvrtc"),
    ],
)
def test_a_family_and_a_compiler_that_do_not_go_together_are_refused(family: str, compiler: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Selector().select(PROBLEM, family, compiler, None)


def test_fp32_is_rounded_to_tf32_only_for_who_asks() -> None:
    assert choose(GemmProblem(64, 64, 64, dtype=DType.FP32, arch="sm_90"))[0].name == "simt"
    problem = GemmProblem(64, 64, 64, dtype=DType.TF32, arch="sm_90")
    family, config = choose(problem, "triton")
    assert family.constants(problem, config)["INPUT_PRECISION"] == "tf32"
    with pytest.raises(UsageError, match="family triton does not compute fp32"):
        choose(GemmProblem(64, 64, 64, dtype=DType.FP32, arch="sm_90"), "triton")
    with pytest.raises(UsageError, match="family triton takes no epilogue"):
        choose(GemmProblem(64, 64, 64, epilogue=Epilogue(bias=True), arch="sm_90"), "triton")
    with pytest.raises(UsageError, match="family triton does not compute fp64"):
        choose(GemmProblem(8, 8, 8, dtype=DType.FP64, arch="sm_90"), templates=COMPILERS["triton"].takes)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (
            KernelConfig(256, 128, 64, 8, 1, 5),
            "needs 245,760 bytes of shared memory per block, 13,312 more than the 232,448 that sm_90 has",
        ),
        (KernelConfig(256, 256, 16, 4, 1, 2), "needs 512 registers per thread, 257 more than the 255"),
        (KernelConfig(128, 128, 64, 2, 2, 3), "warps_m must be 4 or 8, and warps_n 1"),
        (KernelConfig(96, 128, 64, 4, 1, 3), "block_m must be a power of two of at least 16"),
        (KernelConfig(128, 128, 8, 4, 1, 3), "block_k must be a power of two of at least 16"),
    ],
)
def test_an_impossible_config_says_which_limit_it_breaks_and_by_how_much(config: KernelConfig, limit: str) -> None:
    with pytest.raises(InfeasibleConfig, match=re.escape(limit)):
        choose(PROBLEM, "triton", config)


def test_m_is_in_the_key_only_where_rows_of_a_are_m_long() -> None:
    require_triton()
    selector = Selector()

    def key(m: int, layout: Layout) -> str:
        return selector.select(replace(PROBLEM, m=m, layout=layout), "triton", None, SMALL).key

    assert key(64, Layout.NT) == key(63, Layout.NT)
    assert key(64, Layout.TN) == key(72, Layout.TN) != key(63, Layout.TN)
