"""Odd rows (no multiple of 4 bytes) of operands that begin between words: in the emulator, addresses are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.emulator import emulator

_CONFIG = KernelConfig(64, 64, 64, 1, 2, 3)


@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [
        pytest.param(
            GemmProblem(19, 67, 41, batch=2, dtype="fp16", out_dtype="fp32", layout="nn"),
            "reads_words() && !is_first_word",
            "reads_words()",
            id="runs",
        ),
        pytest.param(
            GemmProblem(41, 83, 92, dtype="int8", layout="tn"),
            " && !(begins_matrix && byte_in_word(first) > 0)",
            "",
            id="squares",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_odd_rows_may_begin_between_words(
    problem: GemmProblem, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C is right, and the word that holds the first element is not read."""
    stored = emulator.to_bytes

    def between_words(values: Any, dtype: DType) -> Any:
        size = stored(values, dtype).size
        memory = np.empty(size + 32, dtype=np.uint8)
        start = -memory.ctypes.data % 16 + dtype.itemsize
        memory[start : start + size] = stored(values, dtype)
        return memory[start : start + size]

    monkeypatch.setattr(emulator, "to_bytes", between_words)
    generator, family = np.random.default_rng(3), FAMILIES["tensor_core"]
    a, b = (
        generator.integers(-7, 7, (problem.batch, *shape)).astype(np.float64)
        for shape in ((problem.m, problem.k), (problem.k, problem.n))
    )
    library = emulator.build(family, problem, _CONFIG, tmp_path)
    assert np.array_equal(emulator.run(library, family, problem, _CONFIG, a, b), a @ b)
    text = emulator.emulated_source(family, problem, _CONFIG)
    assert text.count(right) == 1, "the template no longer holds the line to be spoilt"
    library = emulator.build(family, problem, _CONFIG, tmp_path, source=text.replace(right, wrong))
    with pytest.raises(emulator.EmulatorFault, match="outside of global memory"):
        emulator.run(library, family, problem, _CONFIG, a, b)
