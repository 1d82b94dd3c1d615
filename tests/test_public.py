"""What the package offers to programs: its names, their types, their units, and how they print."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cache_engine
from cache_engine import (
    Cache,
    DType,
    Epilogue,
    GemmProblem,
    InvalidProblem,
    Layout,
    ModelShape,
    Settings,
    Specialisation,
    UsageError,
    errors,
    model_shapes,
    open_cache,
    problems_of,
    warm,
)
from cache_engine.batch import results
from cache_engine.cache.stages import LOAD
from cache_engine.cli.stats import statistics_document
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, Activation
from cache_engine.store.codec import stored_bytes
from cache_engine.store.journal.spans import distributions
from cache_engine.types import ActivationLike, DTypeLike, LayoutLike, Limits, SpecialisationLike
from tests.helpers import public_names

LINE = 200


@pytest.mark.parametrize("alias", [DTypeLike, LayoutLike, ActivationLike, SpecialisationLike], ids=str)
def test_the_names_that_type_check_are_those_of_the_enumeration(alias: Any) -> None:
    enumeration, names = get_args(alias)
    assert enumeration in (DType, Layout, Activation, Specialisation)
    assert get_origin(names) is Literal
    assert list(get_args(names)) == [member.value for member in enumeration]


def test_every_name_is_listed_imported_on_demand_and_known_to_type_checkers() -> None:
    tree = ast.parse(Path(str(cache_engine.__file__)).read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cache_engine.")
        for alias in node.names
    }
    assert set(imported) == set(cache_engine.__all__)
    for name, module in imported.items():
        assert module == f"cache_engine.{cache_engine._HOME_OF[name]}"
        assert getattr(cache_engine, name) is getattr(sys.modules[str(module)], name)
    assert set(dir(cache_engine)) == {*cache_engine.__all__, *cache_engine._MOVED}
    assert len(dir(cache_engine)) <= 40


@pytest.mark.parametrize(("name", "home"), sorted(cache_engine._NEW_HOME_OF.items()))
def test_an_old_import_works_and_names_the_new_place(name: str, home: str) -> None:
    module, now = importlib.import_module(f"cache_engine.{home}"), cache_engine._RENAMED.get(name, name)
    with pytest.warns(DeprecationWarning, match=rf"^import {now} from cache_engine\.{home}; {name} of") as warned:
        assert getattr(cache_engine, name) is getattr(module, now)
    assert warned[0].filename == __file__
    assert name not in cache_engine.__all__


@pytest.mark.parametrize(("old", "now"), cache_engine.errors._OLD.items())
def test_the_errors_of_the_former_mirror_are_those_of_the_index(old: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^import {now} from cache_engine.errors; {old} goes") as warned:
        found = getattr(cache_engine.errors, old)
    assert found is getattr(cache_engine.errors, now)
    assert warned[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        cache_engine.errors.Nothing  # noqa: B018


def test_each_public_module_lists_what_it_has() -> None:
    for home, names in cache_engine._MOVED.items():
        module = importlib.import_module(f"cache_engine.{home}")
        assert set(names.split()) <= set(dir(module))
        if home != "errors":
            assert sorted(names.split()) == sorted(module.__all__)


def test_every_error_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert len(defined) > 20
    assert defined <= {name.rpartition(".")[2] for name in public_names()}


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_store'"):
        cache_engine.open_store  # noqa: B018 (what is tested)


def test_entering_the_package_loads_little_and_listing_its_names_loads_nothing() -> None:
    program = (
        "import sys, cache_engine\ndir(cache_engine)\n"
        "print(sorted(name for name in sys.modules if name.startswith('cache_engine.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- How values print ----

PROBLEMS = st.builds(
    GemmProblem,
    *[st.integers(1, 2**16)] * 3,
    batch=st.integers(1, 8),
    dtype=st.sampled_from([dtype for dtype in INPUT_DTYPES if dtype is not DType.INT8]),
    layout=st.sampled_from(Layout),
    arch=st.none() | st.sampled_from(sorted(ARCHITECTURES)),
    epilogue=st.builds(Epilogue, st.booleans(), st.booleans(), st.booleans(), st.sampled_from(Activation)),
    specialisation=st.sampled_from(Specialisation),
    opt_level=st.integers(0, 3),
)


@given(PROBLEMS)
def test_a_problem_prints_as_it_can_be_written_again(problem: GemmProblem) -> None:
    assert eval(repr(problem)) == problem


def test_a_problem_prints_only_what_matters() -> None:
    assert repr(GemmProblem(16, 64, 32)) == "GemmProblem(16, 64, 32, dtype='bf16')"
    assert repr(GemmProblem(1, 2, 3, dtype="int8", batch=2)) == "GemmProblem(1, 2, 3, batch=2, dtype='int8')"


def test_settings_print_what_differs_from_the_default_and_no_secret() -> None:
    assert repr(Settings()) == "Settings()"
    settings = Settings().with_overrides({"max_entries": 7, "admin_token": "a-Secret-of-many-letters"})
    assert repr(settings) == "Settings(max_entries=7)"


def test_public_values_print_on_a_line(compiled_store: Path) -> None:
    longest = GemmProblem(
        2**20, 2**16, 2**14, 8, "fp8_e4m3", "fp32", "tt", "sm_120f", "alpha+beta+bias+gelu", "bucketed", 0
    )
    with open_cache(compiled_store) as cache:
        kernel = cache.get_or_compile(GemmProblem(128, 256, 192, arch="sm_90"))
        loaded = cache.get(kernel.key)
        values = [
            kernel, kernel.record, kernel.launch, kernel.record.config, kernel.record.resources, cache, cache.stats(),
            loaded, longest, GemmProblem(1, 1, 1), Epilogue.parse("bias"), *warm(cache, [kernel.problem]),
            model_shapes("Llama-3.1-8B")[0], cache.stats().totals,
            cache.settings, cache.admin.plan_cleaning(Limits(everything=True)),
        ]  # fmt: skip
    assert loaded is not None
    lengths = {repr(value): len(repr(value)) for value in values}
    assert {text for text, length in lengths.items() if length > LINE or "\n" in text} == set()
    assert repr(kernel).startswith(f"<CompiledKernel {kernel.key[:12]}: 128 × 256 × 192, bf16, sm_90; tensor_core ")
    assert repr(kernel).endswith(" KiB, disk>")


# ---- Units: what Python and JSON call by one name is one number ----


def test_statistics_have_the_names_and_units_of_the_document(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        cache.get_or_compile(GemmProblem(128, 256, 192, arch="sm_90"))
        statistics = cache.stats()
    document = msgspec.to_builtins(statistics_document(statistics))
    lengths = {span: one["count"] for span, one in document.pop("lengths").items()}
    assert lengths == {span: one.count for span, one in distributions(statistics.totals.spans).items()} != {}
    day = document.pop("last_24h")
    assert day.pop("compiles_per_hour") == day["compiles"] / 24
    assert day == {name: getattr(statistics.last_24h, name) for name in day} != {}
    other = {"hits": "totals.hits", "hit_rates": "tier_hit_rates", "tier_failures": "totals.failures"}
    for name, value in document.items():
        found: Any = statistics
        for part in other.get(name, name).split("."):
            found = getattr(found, part) if hasattr(found, part) else getattr(found.totals, part)
        assert found == value, name
    assert document["compile_ms"] == statistics.totals.compile_us / 1000 > 0
    assert document["saved_ms"] == statistics.totals.saved_ms > 0


def test_a_kernel_has_the_names_and_units_of_the_document(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        kernel = cache.get_or_compile(GemmProblem(128, 256, 192, arch="sm_90"))
    document = msgspec.to_builtins(results.compiled(kernel))
    for name in ("compile_ms", "arch", "compiler", "family", "name", "size_bytes"):
        assert document[name] == getattr(kernel.record, name)
    for name in ("key", "tier", "stages_ms", "config_from", "toolchain_from"):
        assert document[name] == getattr(kernel, name)
    assert document["load_ms"] == kernel.stages_ms[LOAD]
    assert document["stored_bytes"] == stored_bytes(kernel.record)


# ---- Warming ----


def test_after_warming_what_problems_of_names_every_m_hits_with_compiling_off(cache: Cache, tmp_path: Path) -> None:
    shapes = [
        ModelShape("mine", "up", 1, 96, 64, 1),
        ModelShape("mine", "down", 1, 64, 96, 1, None, Epilogue(bias=True)),
    ]
    problems = problems_of(cache, shapes, arch="sm_90", m=range(1, 65), dtype="fp32", layout="tn")
    done = warm(cache, problems, jobs=2)
    assert [one.trouble for one in done] == [None] * len(problems)
    assert cache.count()[0] == len(problems) > 4
    with open_cache(tmp_path / "store", enable_jit=False) as served:
        for shape in shapes:
            for m in range(1, 65):
                problem = GemmProblem(
                    m, shape.n, shape.k, dtype="fp32", layout="tn", arch="sm_90", epilogue=shape.epilogue
                )
                assert served.get_or_compile(problem).tier != "compiled"
        assert served.stats().totals.misses == len(problems)


def test_a_model_by_name_a_file_and_shapes_ask_for_the_same(cache: Cache, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    shapes = model_shapes("Qwen3-0.6B")
    table.write_text("n,k\n" + "".join(f"{shape.n},{shape.k}\n" for shape in shapes))
    asked = [
        problems_of(cache, model, arch=["sm_90", "sm_80"], m=m)
        for model, m in (("Qwen3-0.6B", "1-64"), (str(table), range(1, 65)), (table, "1-32,33-64"), (shapes, "1-64"))
    ]
    assert asked[0] == asked[1] == asked[2] == asked[3]
    assert {problem.arch for problem in asked[0]} == {"sm_90", "sm_80"}


def test_what_cannot_be_warmed_is_refused_with_the_reason(cache: Cache) -> None:
    with pytest.raises(UsageError, match=r"^no kernel serves Qwen3-0.6B qkv \(4096 × 1024\) on sm_75: bf16 needs"):
        problems_of(cache, "Qwen3-0.6B", arch="sm_75", m=[1])
    with pytest.raises(InvalidProblem, match="unknown dtype 'int3'"):
        problems_of(cache, "Qwen3-0.6B", dtype="int3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown model"):
        problems_of(cache, "Qwen4")
    with pytest.raises(InvalidProblem, match="int8 problems take no epilogue"):
        problems_of(cache, "Qwen3-0.6B", dtype="int8", epilogue="bias")


# ---- Names of a cache that moved ----

IN_ADMIN = ("clean", "export", "find_leftovers", "import_pack", "plan_cleaning", "policy", "verify", "quarantined")


@pytest.mark.parametrize(
    ("name", "place"), [*((name, f"admin.{name}") for name in IN_ADMIN), ("present_components", "selector.present")]
)
def test_an_old_method_of_a_cache_works_and_names_the_new_place(cache: Cache, name: str, place: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^Cache\.{name} is Cache\.{place} now;") as warned:
        assert getattr(cache, name) == attrgetter(place)(cache)
    assert warned[0].filename == __file__
    assert name not in dir(Cache)


def test_a_cache_has_few_public_names_and_no_other() -> None:
    assert len([name for name in dir(Cache) if not name.startswith("_")]) <= 30
    with (
        open_cache(enable_caching=False) as cache,
        pytest.raises(AttributeError, match="has no attribute 'tidy'"),
    ):
        cache.tidy  # type: ignore[attr-defined]  # noqa: B018 (what is tested)
