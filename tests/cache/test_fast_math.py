"""Fast math per problem: part of the key only where it changes the flags, and carried wherever problems are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.reproduction import reproducing_command
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.index import queries
from cache_engine.insight.inspection import described
from cache_engine.insight.toolchains import made_by_toolchain
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.shapes import Shape
from cache_engine.team.broker import CompileMessage, asked, encode
from cache_engine.upkeep.plan import Limits
from tests.helpers import require_triton

PLAIN = GemmProblem(8, 32, 32, dtype="fp32", arch="sm_80")
FAST, EXACT = replace(PLAIN, fast_math=True), replace(PLAIN, fast_math=False)
SET: Any = {"compiler_flags": ("--use_fast_math",)}


def _keys(folder: Path, **settings: Any) -> list[str]:
    with open_cache(folder, **settings) as cache:
        return [cache.select(problem).key for problem in (PLAIN, EXACT, FAST)]


def test_a_problem_that_asks_for_what_the_settings_say_has_the_key_without(tmp_path: Path) -> None:
    plain, exact, fast = _keys(tmp_path)
    assert plain == exact != fast
    assert _keys(tmp_path, **SET) == [fast, exact, fast]


def test_records_say_what_their_kernels_have(tmp_path: Path) -> None:
    """So that a request with other settings, and a rebuild, is for the same kernel."""
    for number, (problem, fast_math, stated) in enumerate((
        (PLAIN, False, None), (EXACT, False, None), (FAST, False, True), (PLAIN, True, True), (EXACT, True, False),
    )):  # fmt: skip
        with open_cache(tmp_path / str(number), compiler_flags=("--use_fast_math",) * fast_math) as cache:
            kernel = cache.get_or_compile(problem)
        assert kernel.record.problem.fast_math is stated
        assert ("--use_fast_math" in dict(kernel.record.components)["flags"]) == bool(stated)
        assert ("fast math" in described(kernel.record, "today")["Types"]) == (stated is not None)


def test_a_record_of_an_older_version_says_it_by_its_flags(cache: Cache) -> None:
    record = cache.get_or_compile(FAST).record
    stored = msgspec.to_builtins(record)
    del stored["problem"]["fast_math"]
    assert msgspec.convert(stored, Record) == record
    plain = msgspec.to_builtins(cache.get_or_compile(PLAIN).record)
    del plain["problem"]["fast_math"]
    assert msgspec.convert(plain, Record).problem.fast_math is None


def test_a_search_finds_those_with_and_those_without(cache: Cache) -> None:
    fast, plain = (cache.get_or_compile(problem).key for problem in (FAST, PLAIN))
    cache.index.sync()
    for text, key in (
        ("fast_math=yes", fast),
        ("fast_math=no", plain),
        ("fast_math=True", fast),
        ("fast_math!=yes", plain),
    ):
        assert [row["key"] for row in cache.search(text)] == [key]


def test_a_pack_carries_it(tmp_path: Path) -> None:
    with open_cache(tmp_path / "source") as source:
        source.get_or_compile(FAST)
        source.admin.export(tmp_path / "fast.gemmpack")
    with open_cache(tmp_path / "new", packs=(tmp_path / "fast.gemmpack",), enable_jit=False) as cache:
        assert cache.other_toolchains.useless == {}
        assert cache.get_or_compile(FAST).tier == "pack"


def test_a_farm_carries_it_to_workers_with_other_settings(cache: Cache, tmp_path: Path) -> None:
    selection = cache.select(FAST)
    found = asked(encode(CompileMessage.of("0" * 32, selection)))
    assert cache.select(found.gemm).key == selection.key
    with open_cache(tmp_path / "asking", **SET) as asking:
        exact = asking.select(EXACT)
        found = asked(encode(CompileMessage.of("0" * 32, exact)))
        assert asking.select(found.gemm).key == exact.key != selection.key


def test_it_never_makes_a_kernel_stale(cache: Cache) -> None:
    """Any problem can ask for it, whatever the settings say."""
    cache.get_or_compile(FAST)
    assert cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()
    cache.index.sync()
    assert [made.state for made in made_by_toolchain(cache, cache.query(queries.made_with))] == ["present"]


def test_demand_and_commands_tell_the_two_apart(cache: Cache) -> None:
    assert Shape.of(FAST) != Shape.of(PLAIN)
    assert Shape.of(FAST).problem(8) == replace(FAST, out_dtype=DType.FP32)
    command = reproducing_command(cache.get_or_compile(FAST).record, cache.settings, cache.layout.root)
    assert command.startswith("gemm-cache")
    assert "--fast-math" in command.split()


def test_triton_refuses_it_and_takes_its_absence(tmp_path: Path) -> None:
    require_triton()
    problem = GemmProblem(16, 64, 64, dtype="fp16", arch="sm_80")
    with open_cache(tmp_path, **SET) as cache:
        with pytest.raises(UsageError, match="Triton accepts no compiler_flags and no fast math"):
            cache.select(problem, compiler="triton")
        assert cache.select(replace(problem, fast_math=False), compiler="triton").compiler.name == "triton"


@pytest.mark.parametrize("value", [1, 0, "yes", "", 1.0])
def test_what_is_neither_yes_nor_no_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProblem, match="True, False or None"):
        GemmProblem(8, 8, 8, fast_math=value)
