"""The cache as a whole: compiled once, found ever after, never wrong, and useful even where it cannot write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache import selection as selection_module
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing, InvalidProblem, KeyNotFound, UsageError
from cache_engine.model.gemm import DType, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.store.journal import read_journal
from cache_engine.upkeep.plan import STALE, Limits
from tests.helpers import files_of, needs_host_compiler, publish, record_file, require_triton
from tests.remote.waiting import until

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")


def test_a_kernel_is_compiled_then_found_in_memory_then_on_disk(tmp_path: Path, compiles: list[str]) -> None:
    with open_cache(tmp_path / "store") as cache:
        first, second = cache.get_or_compile(PROBLEM), cache.get_or_compile(PROBLEM)
    with open_cache(tmp_path / "store") as later:
        third = later.get_or_compile(PROBLEM)
    assert [kernel.tier for kernel in (first, second, third)] == ["compiled", "memory", "disk"]
    assert first.cubin == second.cubin == third.cubin
    assert first.record == second.record == third.record
    assert compiles == ["sm_90"]


def test_a_record_describes_its_kernel_completely(cache: Cache) -> None:
    kernel = cache.get_or_compile(PROBLEM)
    record = kernel.record
    assert (record.family, record.compiler, record.arch) == ("simt", "nvrtc", "sm_90")
    assert record.problem.on("sm_90") == PROBLEM
    assert record.resources.registers > 0
    assert record.resources.shared_bytes == kernel.launch.shared_bytes
    assert record.size_bytes == len(kernel.cubin)
    assert set(record.stages_ms) >= {"generate", "compile"}
    assert record.compile_ms == pytest.approx(record.stages_ms["compile"])
    assert record.name.encode() in kernel.cubin
    assert dict(record.components)["N"] == "48"
    for part in ("source", "ptx", "sass", "log"):
        assert record.name in cache.text(record, part)


def test_stages_are_reported_in_order(cache: Cache) -> None:
    told: list[tuple[str, bool]] = []
    cache.get_or_compile(PROBLEM, on_stage=lambda stage, ms: told.append((stage, ms is None)))
    starts = [stage for stage, started in told if started]
    assert starts == ["validate", "select", "load", "load", "queue", "generate", "start_compiler", "compile", "publish"]
    assert [stage for stage, started in told if not started] == starts


def test_one_kernel_serves_every_m(cache: Cache, compiles: list[str]) -> None:
    config = KernelConfig(32, 32, 16, 2, 1, 2)
    kernels = [cache.get_or_compile(replace(PROBLEM, m=m), config=config) for m in (1, 64, 1000)]
    assert len({kernel.key for kernel in kernels}) == 1
    assert [kernel.launch.grid[0] for kernel in kernels] == [2, 4, 64]
    assert len(compiles) == 1


@pytest.mark.parametrize("compiler", ["nvrtc", "triton"])
def test_a_dynamic_kernel_serves_other_shapes_and_none_that_it_would_misread(tmp_path: Path, compiler: str) -> None:
    if compiler == "triton":
        require_triton()
    problem = GemmProblem(64, 96, 128, arch="sm_90", specialisation=Specialisation.DYNAMIC)
    with open_cache(tmp_path / "store", durability="fast") as cache:
        made = cache.get_or_compile(problem, compiler=compiler)
        other = cache.get_or_compile(GemmProblem(1, 4096, 256, 3, **_kind_of(problem)), compiler=compiler)
        assert (made.tier, other.tier) == ("compiled", "memory")
        assert other.key == made.key
        assert other.launch.parameters[:2] == made.launch.parameters[:2] == ("n", "k")
        assert other.launch.grid[2] == 3
        assert other.launch.grid != made.launch.grid
        narrow = cache.get_or_compile(GemmProblem(64, 96, 129, **_kind_of(problem)), compiler=compiler)
        assert narrow.tier == "compiled"
        assert narrow.record.problem.specialisation == "dynamic"
        assert cache.admin.verify() == []
    with open_cache(tmp_path / "store", durability="fast") as later:
        assert later.get_or_compile(GemmProblem(7, 8, 8, **_kind_of(problem)), compiler=compiler).tier == "disk"


def _kind_of(problem: GemmProblem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("dtype", "layout", "arch", "specialisation")}


def test_an_exact_kernel_is_for_its_m_and_a_bucketed_one_for_its_bucket(cache: Cache) -> None:
    exact, bucketed = (
        replace(PROBLEM, specialisation=each) for each in (Specialisation.EXACT, Specialisation.BUCKETED)
    )
    for problem, hits, misses in ((exact, (64,), (63, 1)), (bucketed, (33, 63, 64), (32, 65))):
        assert cache.get_or_compile(problem).tier == "compiled"
        assert [cache.get_or_compile(replace(problem, m=m)).tier for m in hits] == ["memory"] * len(hits)
        assert [cache.get_or_compile(replace(problem, m=m)).tier for m in misses] == ["compiled"] * len(misses)
        for m in (*hits, *misses):
            record = cache.get_or_compile(replace(problem, m=m)).record
            assert record.problem.specialisation == problem.specialisation
            assert ("M" if problem is exact else "M_MOST") in dict(record.components)
    assert cache.get_or_compile(PROBLEM).tier == "compiled"


def test_force_compiles_again_and_replaces(cache: Cache, compiles: list[str]) -> None:
    cache.get_or_compile(PROBLEM)
    again = cache.get_or_compile(PROBLEM, force=True)
    assert again.tier == "compiled"
    assert len(compiles) == 2
    assert len(list(cache.records())) == 1
    assert cache.admin.verify() == []


def test_a_target_is_taken_from_the_argument_then_the_problem_then_the_settings(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", default_arch="sm_100") as cache:
        open_problem = replace(PROBLEM, arch=None)
        assert cache.targeted(open_problem, "sm_80").arch == "sm_80"
        assert cache.targeted(PROBLEM, "sm_80").arch == "sm_80"
        assert cache.targeted(PROBLEM).arch == "sm_90"
        from cache_engine.gpu.probe import local_arch

        assert cache.targeted(open_problem).arch == (local_arch() or "sm_100")


@pytest.mark.parametrize(
    ("problem", "options", "named"),
    [
        ("4096x7168x2048", {}, "with a GemmProblem, not with str"),
        (PROBLEM, {"config": "128x128x32"}, "it must be a KernelConfig"),
    ],
)
def test_an_invalid_problem_or_config_is_refused(cache: Cache, problem: object, options: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        cache.get_or_compile(problem, **options)  # type: ignore[arg-type]


def test_settings_given_by_name_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_byte"):
        open_cache(tmp_path / "store", max_byte=1)
    with pytest.raises(UsageError, match="max_entries"):
        open_cache(tmp_path / "store", max_entries=-1)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compiler": "icc"}, "unknown compiler 'icc'; use one of: nvrtc"),
        ({"family": "wmma"}, "unknown family 'wmma'"),
        ({"arch": "sm_12"}, "unknown architecture"),
        ({"config": KernelConfig(8, 8, 8, 1, 1, 2)}, "must be a multiple"),
    ],
)
def test_a_request_that_cannot_be_right_is_refused_before_anything_is_written(
    cache: Cache, options: dict[str, object], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        cache.get_or_compile(PROBLEM, **options)  # type: ignore[arg-type]
    assert list(files_of(cache.store)) == []


def test_bf16_on_turing_says_what_works(cache: Cache) -> None:
    with pytest.raises(InvalidProblem, match="sm_75 computes: fp16, fp32, fp64, int8"):
        cache.get_or_compile(GemmProblem(8, 8, 8, arch="sm_75"))


def test_usage_outlives_the_process_and_counts_the_time_saved(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        made = cache.get_or_compile(PROBLEM)
        cache.get_or_compile(PROBLEM)
    for _ in range(3):
        with open_cache(tmp_path / "store") as cache:
            cache.get_or_compile(PROBLEM)
    with open_cache(tmp_path / "store") as cache:
        stats = cache.stats()
    assert stats.totals.hits == {"memory": 1, "disk": 3}
    assert (stats.totals.misses, stats.totals.compiles, stats.entries) == (1, 1, 1)
    assert stats.hit_rate == 0.8
    assert stats.totals.saved_us == 3 * round(made.record.compile_ms * 1000)
    assert stats.totals.compile_us == pytest.approx(made.stages_ms["compile"] * 1000, rel=0.01)
    assert stats.totals.last_publish_at > 0


def test_a_key_alone_gets_its_entry_and_is_counted(cache: Cache) -> None:
    key = cache.get_or_compile(PROBLEM).key
    loaded = cache.get(key)
    assert loaded is not None
    assert loaded.record.key == key
    assert cache.stats().totals.hits == {"memory": 1}
    assert cache.get(cache.select(replace(PROBLEM, n=49)).key) is None


def test_a_record_is_found_by_the_start_of_its_key(cache: Cache) -> None:
    key = publish(cache.store, 1)
    assert cache.find(key[:8]).key == key
    assert cache.find(key.upper()).key == key
    with pytest.raises(KeyNotFound, match="no kernel has key prefix"):
        cache.find("0" * 64)
    # Two entries that share four digits.
    twin = record_file(cache.store, key).with_name(f"{key[:60]}0000.json")
    twin.write_bytes(record_file(cache.store, key).read_bytes())
    with pytest.raises(KeyNotFound, match="give more digits"):
        cache.find(key[:10])


def test_searching_goes_by_words(cache: Cache) -> None:
    cache.get_or_compile(PROBLEM)
    cache.get_or_compile(replace(PROBLEM, layout=Layout.TN))
    assert len(cache.search("fp32 sm_90")) == 2
    assert [row["layout"] for row in cache.search("tn")] == ["tn"]
    assert cache.search("bf16") == []


def test_a_dry_run_of_cleaning_evicts_nothing(cache: Cache) -> None:
    key = cache.get_or_compile(PROBLEM).key
    plan = cache.admin.clean(Limits(everything=True), dry_run=True)
    assert [victim.key for victim in plan.victims] == [key]
    assert len(list(cache.records())) == 1
    cache.admin.clean(Limits(everything=True))
    assert list(cache.records()) == []
    assert cache.stats().totals.evictions == 1


def test_cleaning_without_rules_goes_by_the_settings(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", max_entries=10) as cache:
        for seed in range(12):
            publish(cache.store, seed)
        assert len(cache.admin.clean().victims) == 4
        assert len(list(cache.records())) == 8


def test_many_threads_ask_for_many_kernels(cache: Cache, compiles: list[str]) -> None:
    problems = [replace(PROBLEM, n=48 + 16 * number) for number in range(3)]
    got: list[tuple[str, bytes]] = []

    def work() -> None:
        for problem in problems:
            kernel = cache.get_or_compile(problem)
            got.append((kernel.key, kernel.cubin))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 24
    assert len(set(got)) == 3
    assert len(compiles) == 3


def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "named"))
    with open_cache() as cache:
        assert cache.layout.root == tmp_path / "named"
    with open_cache(tmp_path / "argument") as cache:
        assert cache.layout.root == tmp_path / "argument"


def test_counts_reach_the_journal_without_close(tmp_path: Path) -> None:
    code = (
        "import sys; from cache_engine import GemmProblem, open_cache\n"
        "open_cache(sys.argv[1]).get_or_compile(GemmProblem(64, 48, 80, dtype='fp32', arch='sm_90'))\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True, env={**os.environ})
    totals = read_journal(tmp_path / "store" / "journal").totals
    assert (totals.misses, totals.hits) == (1, {"disk": 1})


def test_entries_of_another_toolchain_are_stale(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.get_or_compile(PROBLEM).key
    assert cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()
    monkeypatch.setattr(selection_module, "template_digest", lambda _: "another")
    with open_cache(cache.layout.root) as later:
        plan = later.admin.plan_cleaning(Limits(stale_toolchain=True))
        assert [(victim.key, victim.reason) for victim in plan.victims] == [(key, STALE)]
        assert later.get_or_compile(PROBLEM).tier == "compiled"


def test_results_of_fp8_are_stale_with_another_epilogue(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no part of the template, whose digest the records of all kernels have."""
    cache.get_or_compile(PROBLEM)
    key = cache.get_or_compile(GemmProblem(16, 64, 64, out_dtype="fp8_e4m3", arch="sm_90")).key
    assert cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()
    monkeypatch.setattr(selection_module, "fp8_constants", lambda: {"FP8_EPILOGUE": "another"})
    assert [victim.key for victim in cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims] == [key]


@needs_host_compiler
def test_kernels_of_an_uninstalled_compiler_are_not_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may share the store and have it; and its absence must not keep the rest from being cleaned."""
    with open_cache(tmp_path / "store") as cache:
        kept = cache.get_or_compile(PROBLEM, compiler="nvcc").key
        cache.get_or_compile(PROBLEM)
    monkeypatch.setattr(selection_module, "template_digest", lambda _: "another")

    def missing(self: object) -> None:
        raise CompilerMissing("not here")

    monkeypatch.setattr(type(COMPILERS["nvcc"]), "fingerprint", missing)
    with open_cache(tmp_path / "store") as later:
        later.admin.clean(Limits(stale_toolchain=True))
        assert [record.key for record in later.records()] == [kept]


def test_a_store_is_cleaned_by_itself_when_it_is_due(tmp_path: Path) -> None:
    month_ago = time.time() - 30 * 86_400
    with open_cache(tmp_path / "store") as cache:
        for seed in range(3):
            os.utime(record_file(cache.store, publish(cache.store, seed)), (month_ago, month_ago))
        cache.layout.cleaned.touch()
        os.utime(cache.layout.cleaned, (month_ago, month_ago))
        key = cache.get_or_compile(PROBLEM).key
        until(lambda: list(cache.store.keys()) == [key])
    assert cache.stats().totals.evictions == 3


def test_the_policy_can_be_named(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", "production") as cache:
        assert cache.admin.policy().expire_days == 30.0
    with pytest.raises(UsageError, match="development, production"):
        open_cache(tmp_path / "store", policy="lazy")


def test_a_choice_is_made_for_a_problem_that_names_no_target(tmp_path: Path) -> None:
    with open_cache(tmp_path, default_arch="sm_89") as cache:
        asked = GemmProblem(64, 64, 64)
        assert cache.select(asked).key == cache.select(cache.targeted(asked)).key
