"""Default configs spill no registers, whatever n, k and layout are.

``triton`` is left out: Triton assigns registers itself, and with odd rows it spills.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import GemmCacheError
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import DType, GemmProblem, Layout, Mode, Scales, Specialisation
from tests.helpers import of_today

# Family, type, scales, mode.
_KINDS = (
    *(("tensor_core", dtype, "", "") for dtype in ("bf16", "tf32", "fp8_e4m3", "int8")),
    *(("simt", dtype, "", "") for dtype in ("fp32", "fp64", "fp16", "int8")),
    *(("scaled", "fp8_e4m3", scales, "") for scales in ("1x128,1x128", "1x128,1x128,e8m0", "1x128,128x128")),
    ("grouped", "bf16", "", "grouped"),
    ("grouped", "fp8_e4m3", "1x128,1x128", "grouped"),
    ("grouped", "fp8_e4m3", "1x128,1x128,e8m0", "masked"),
    ("hopper", "bf16", "", ""),
    *(("hopper", "fp8_e4m3", scales, "") for scales in ("1x128,1x128", "1x128,1x128,e8m0")),
)
# m, n, k: odd, for few tiles and for many; and whole tiles.
_SIZES = ((67, 129, 135), (5, 1001, 2047), (150, 256, 1024), (4095, 4097, 4095))
_REST: tuple[tuple[Any, Any], ...] = (
    ("nk", ""),
    ("dynamic", "alpha+beta+bias"),
    ("exact", "bias+gelu"),
    ("dynamic", "beta"),
)


def _problems(family: str, dtype: Any, scales: Any, mode: Any) -> list[GemmProblem]:
    """Those that the family takes; each size and layout with its turn of specialisation and epilogue."""
    found = []
    step = 128 if scales else 8 if family == "hopper" else 1
    for number, (layout, (m, n, k)) in enumerate(itertools.product(Layout, _SIZES)):
        specialisation, epilogue = _REST[(number + number // len(_REST)) % len(_REST)]
        arch = "sm_90a" if family == "hopper" else "sm_90"
        try:
            problem = GemmProblem(
                m, n, -(-k // step) * step, 3 if mode else 1, DType(dtype), layout=layout, arch=arch, epilogue=epilogue,
                specialisation=Specialisation(specialisation), scales=Scales(scales), mode=Mode(mode),
            )  # fmt: skip
            choose(problem, family)
        except GemmCacheError:
            continue  # a layout, or a specialisation, that the family does not take
        found.append(problem)
    return found


# They spilled: 640 and 1,232 bytes for addresses of elements, 284 for those of scales, 12 for the scales.
_BY_COLUMN: dict[str, Any] = {
    "dtype": "fp8_e4m3",
    "scales": "1x128,1x128",
    "specialisation": "dynamic",
    "epilogue": "beta",
}
_BY_E8M0: dict[str, Any] = {"dtype": "fp8_e4m3", "scales": "1x128,1x128,e8m0", "specialisation": "dynamic"}
_SPILLED = (
    ("simt", GemmProblem(67, 129, 135, dtype="fp32", layout="nn", arch="sm_90")),
    ("simt", GemmProblem(67, 131, 137, dtype="fp16", layout="tt", arch="sm_90")),
    ("hopper", GemmProblem(60, 128, 1024, arch="sm_90a", **_BY_COLUMN)),
    ("scaled", GemmProblem(4095, 4097, 4096, arch="sm_90", **_BY_E8M0)),
)


def _spilled(family: str, problems: list[GemmProblem], store: Path) -> dict[str, int]:
    """Kernels that spill, and how many bytes."""
    assert problems
    with open_cache(store, durability="fast") as cache:
        records = [cache.get_or_compile(problem, family=family).record for problem in problems]
    return {one.name: one.resources.spill_bytes for one in records if one.resources.spill_bytes}


def test_a_config_that_spilled_does_not(tmp_path: Path) -> None:
    """One of them, another each day; and a default of another kind."""
    family, problem = of_today(_SPILLED, 1)[0]
    assert _spilled(family, [problem], tmp_path / "store") == {}
    kind = of_today(_KINDS, 1)[0]
    assert _spilled(kind[0], of_today(_problems(*kind), 1), tmp_path / "store") == {}


@pytest.mark.soak
@pytest.mark.parametrize("kind", _KINDS, ids="-".join)
def test_no_default_of_a_family_spills(kind: tuple[str, str, str, str], tmp_path: Path) -> None:
    assert _spilled(kind[0], _problems(*kind), tmp_path / "store") == {}


@pytest.mark.soak
@pytest.mark.parametrize(("family", "problem"), _SPILLED)
def test_none_that_spilled_does(family: str, problem: GemmProblem, tmp_path: Path) -> None:
    assert _spilled(family, [problem], tmp_path / "store") == {}
