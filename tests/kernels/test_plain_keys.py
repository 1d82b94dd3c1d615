"""Constants and keys of random problems are those of a plain version, which caches nothing."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from contextlib import suppress

from cache_engine.cache.selection import Selection, Selector
from cache_engine.errors import GemmCacheError
from cache_engine.kernels.family import vector_elements, widest_store
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import fp8_constants
from cache_engine.model.gemm import (
    INPUT_DTYPES,
    OUTPUT_DTYPES,
    GemmProblem,
    Layout,
    Mode,
    Scales,
    Specialisation,
    bucket_of,
)
from tests.helpers import ARCHS

PROBLEMS = 3000
_TYPES = {"fp32": "float", "fp64": "double", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "int32": "int"}
_EPILOGUES = ("", "", "", "bias", "alpha", "alpha+beta+bias+relu", "gelu")


def _size(generator: random.Random, step: int) -> int:
    return step * max(1, int(2 ** generator.uniform(0, 13) / step))


def _selections() -> list[Selection]:
    """Selections of problems of every kind; what no family computes is left out."""
    generator, selector = random.Random(31), Selector()
    found: list[Selection] = []
    while len(found) < PROBLEMS:
        pick, step = generator.choice, generator.choice((1, 8, 64, 128))
        with suppress(GemmCacheError):
            problem = GemmProblem(
                _size(generator, 1), _size(generator, step), _size(generator, step), pick((1, 1, 8)),
                dtype=pick(INPUT_DTYPES), out_dtype=pick((None, None, *OUTPUT_DTYPES)),
                layout=pick((Layout.NT, *Layout)), arch=pick(("sm_90a", *ARCHS)), epilogue=pick(_EPILOGUES),
                specialisation=pick((Specialisation.NK, *Specialisation)), scales=pick((Scales.NONE, *Scales)),
                mode=pick((Mode.BATCHED, Mode.BATCHED, *Mode)),
            )  # fmt: skip
            found.append(selector.select(problem, pick((None, None, *FAMILIES)), None, None))
    return found


def _plain_constants(s: Selection) -> dict[str, str | int]:
    """The constants of a kernel in CUDA C++, each said where it stands."""
    p, c, family = s.problem, s.config, s.family.name
    a_transposed, b_transposed = p.layout[0] == "t", p.layout[1] == "t"
    widest = 16 // (p.accumulate if family == "simt" else p.dtype).itemsize
    store = widest if family == "simt" else widest_store(p)
    a_vector = vector_elements(p.m if a_transposed else p.k, widest)
    b_vector = vector_elements(p.k if b_transposed else p.n, widest)
    c_vector = 1 if p.n % store else store
    types = f"{p.dtype}" if p.dtype is p.output else f"{p.dtype}_{p.output}"
    types += f"_{p.scales.replace(',', '_')}" if p.scales else ""
    types = f"masked_{types}" if p.mode is Mode.MASKED else types
    sizes, labels = {
        Specialisation.NK: (f"n{p.n}_k{p.k}", {"N": p.n, "K": p.k}),
        Specialisation.EXACT: (f"m{p.m}_n{p.n}_k{p.k}", {"M": p.m, "N": p.n, "K": p.k}),
        Specialisation.BUCKETED: (
            f"bucket{bucket_of(p.m)}_n{p.n}_k{p.k}", {"M_MOST": bucket_of(p.m), "N": p.n, "K": p.k},
        ),
        Specialisation.DYNAMIC: (f"dynamic_a{a_vector}_b{b_vector}_c{c_vector}", {}),
    }[p.specialisation]  # fmt: skip
    end = f"{p.epilogue}_{c}".replace("+", "_") if str(p.epilogue) else str(c)
    constants: dict[str, str | int] = {
        "KERNEL_NAME": f"gemm_{family}_{types}_{p.layout}_{sizes}_{end}",
        "IN_TYPE": _TYPES.get(p.dtype, p.dtype.value),
        "SUM_TYPE": _TYPES.get(p.accumulate, p.accumulate.value),
        "OUT_TYPE": _TYPES.get(p.output, p.output.value),
        "BLOCK_M": c.block_m, "BLOCK_N": c.block_n, "BLOCK_K": c.block_k,
        "WARPS_M": c.warps_m, "WARPS_N": c.warps_n, "STAGES": c.stages, "SPLIT_K": c.split_k, "RASTER_ROWS": 8,
        **labels,
        "A_TRANSPOSED": int(a_transposed), "B_TRANSPOSED": int(b_transposed),
        "A_VECTOR": a_vector, "B_VECTOR": b_vector, "C_VECTOR": c_vector,
        "WITH_ALPHA": int(p.epilogue.alpha), "WITH_BETA": int(p.epilogue.beta), "WITH_BIAS": int(p.epilogue.bias),
        "ACTIVATION": ("none", "relu", "gelu").index(p.epilogue.activation),
    }  # fmt: skip
    if p.output in ("fp8_e4m3", "fp8_e5m2"):
        constants.update(fp8_constants())
    if family in ("scaled", "grouped", "hopper"):
        constants["SCALED"] = int(bool(p.scales))
        constants["B_SCALE_COLUMNS"] = 128 if "128x128" in p.scales else 1
        constants["SCALE_TYPE"] = "unsigned char" if p.scales.endswith("e8m0") else "float"
    if family == "grouped":
        constants["MASKED"] = int(p.mode is Mode.MASKED)
    if family == "hopper":
        constants["C_BOXED"] = int(p.n * p.output.itemsize % 16 == 0)
    return constants


def _plain_key(components: list[tuple[str, str]]) -> str:
    text = "".join(f"{len(label)}:{label}{len(value)}:{value}" for label, value in components)
    return hashlib.sha256(text.encode()).hexdigest()


def test_random_problems_have_the_constants_and_keys_of_a_plain_version() -> None:
    families: Counter[str] = Counter()
    for selection in _selections():
        constants: dict[str, str | int] = dict(selection.constants)
        families[selection.family.name] += 1
        if selection.family.name != "triton":
            assert list(constants.items()) == list(_plain_constants(selection).items()), selection.problem
        components = [*selection.prefix.components, *((name, str(value)) for name, value in constants.items())]
        assert selection.key == _plain_key(components), selection.problem
    assert set(families) == set(FAMILIES)
    assert min(families.values()) > 20, families
