"""Operators behave the same with the cache on or off, and their switches are found in the order that is promised."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cache_engine
from cache_engine.cache import miss, operator
from cache_engine.cache.cache import CompiledKernel, open_cache
from cache_engine.cache.miss import make_artifact
from cache_engine.cache.operator import GemmOperator, Switches, switches
from cache_engine.errors import InvalidProblem, NotCached, StoreUnusable
from cache_engine.model.artifact import Artifact
from cache_engine.model.outcome import Failure
from tests.helpers import code_of


@pytest.fixture(autouse=True)
def _fresh_switches() -> Iterator[None]:
    operator._in_force.cache_clear()
    yield
    switches.enable_jit = switches.enable_caching = switches.cache_dir = None
    operator._in_force.cache_clear()


def _operator(**options: object) -> GemmOperator:
    return GemmOperator(dtype="fp32", arch="sm_90", **options)  # type: ignore[arg-type]


def test_it_gives_the_same_kernel_with_caching_on_or_off(tmp_path: Path) -> None:
    on = _operator(cache_dir=tmp_path / "store")
    off = _operator(cache_dir=tmp_path / "none", enable_caching=False)
    one, other = on.kernel(64, 48, 80), off.kernel(64, 48, 80)
    assert code_of(one.cubin) == code_of(other.cubin)
    for field in ("key", "problem", "launch", "tier"):
        assert getattr(one, field) == getattr(other, field)
    assert list(one.stages_ms) == list(other.stages_ms)
    assert (one.record.name, one.record.resources) == (other.record.name, other.record.resources)
    assert (one.unpublished, other.unpublished) == (None, Failure("caching is switched off"))
    assert off.kernel(64, 48, 80).tier == on.kernel(64, 48, 80).tier == "memory"
    assert not (tmp_path / "none").exists()
    with pytest.raises(StoreUnusable, match="switched off"):
        off.cache.stats()


def test_it_asks_for_the_specialisation_and_level_it_was_made_with(tmp_path: Path) -> None:
    dynamic = _operator(cache_dir=tmp_path, specialisation="dynamic", opt_level=2)
    one, other = dynamic.kernel(64, 48, 80), dynamic.kernel(7, 96, 160)
    assert (one.tier, other.tier) == ("compiled", "memory")
    assert (one.problem.specialisation, one.problem.opt_level) == ("dynamic", 2)


def test_with_caching_off_threads_compile_a_kernel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def counted(*given: Any) -> Artifact:
        compiled.append(given)
        return make_artifact(*given)

    monkeypatch.setattr(miss, "make_artifact", counted)
    with open_cache(tmp_path, enable_caching=False) as cache, ThreadPoolExecutor(8) as pool:
        problem = cache_engine.GemmProblem(64, 48, 80, dtype=cache_engine.DType.FP32, arch="sm_90")
        kernels: list[CompiledKernel] = list(pool.map(lambda _: cache.get_or_compile(problem), range(8)))
    assert len(compiled) == 1
    assert sorted(kernel.tier for kernel in kernels) == ["compiled", *["memory"] * 7]
    assert list(tmp_path.iterdir()) == []


def test_with_compiling_off_only_cached_kernels_are_served(tmp_path: Path) -> None:
    _operator(cache_dir=tmp_path).kernel(64, 48, 80)
    careful = _operator(cache_dir=tmp_path, enable_jit=False)
    assert careful.kernel(64, 48, 80).tier == "disk"
    with pytest.raises(NotCached, match="enable_jit"):
        careful.kernel(64, 48, 88)
    careful.enable_jit = True
    assert careful.kernel(64, 48, 88).tier == "compiled"


def test_the_operator_comes_before_all_operators_and_they_before_the_environment_and_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file = tmp_path / "settings.toml"
    settings_file.write_text('dir = "in-file"\nenable_jit = false\n')
    monkeypatch.setenv("GEMM_CACHE_CONFIG", str(settings_file))
    plain, own = GemmOperator(), GemmOperator(enable_caching=True, cache_dir=tmp_path / "own")
    assert (plain.enable_jit, plain.enable_caching, plain.cache_dir) == (False, True, tmp_path / "in-file")
    operator._in_force.cache_clear()
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "no")
    assert (plain.enable_caching, plain.cache_dir) == (False, tmp_path / "environment")
    assert (own.enable_jit, own.enable_caching, own.cache_dir) == (False, True, tmp_path / "own")
    switches.enable_caching = True
    switches.cache_dir = tmp_path / "all"
    assert (plain.enable_caching, plain.cache_dir) == (True, tmp_path / "all")
    assert (switches.in_force().enable_caching, switches.in_force().directory()) == (True, tmp_path / "all")
    own.enable_caching = own.cache_dir = None
    assert (own.enable_caching, own.cache_dir) == (True, tmp_path / "all")


def test_operators_with_the_same_settings_share_a_cache(tmp_path: Path) -> None:
    one, two, other = (_operator(cache_dir=tmp_path / name) for name in ("a", "a", "b"))
    assert one.cache is two.cache
    assert one.cache is not other.cache


def test_an_invalid_operator_is_refused_when_it_is_created() -> None:
    with pytest.raises(InvalidProblem, match="int3"):
        GemmOperator(dtype="int3")  # type: ignore[arg-type]


def test_it_can_be_had_from_the_package() -> None:
    assert cache_engine.GemmOperator is GemmOperator
    assert cache_engine.switches is switches
    assert switches == Switches()
