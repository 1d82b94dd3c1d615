"""Tuning, as far as it goes without a GPU: what would be timed, what failed, what is missing.

No timing is simulated here: where a timer is put in it fails, as real ones do.
"""

from __future__ import annotations

import pytest

from cache_engine.batch.tuning import candidates, tune
from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.errors import CompileError, GpuRequired, UsageError
from cache_engine.gpu.probe import gpu
from cache_engine.gpu.timer import Timing
from cache_engine.kernels.select import choose, ranking
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, GemmProblem

PROBLEM = GemmProblem(16, 64, 96, dtype=DType.FP16, arch="sm_90")


def test_the_best_predicted_are_candidates_and_those_that_are_cached_are_known(cache: Cache) -> None:
    cache.get_or_compile(PROBLEM)
    found = candidates(cache, PROBLEM, top=4)
    assert [one.selection.config for one in found] == [config for _, config in ranking(PROBLEM, "tensor_core")[:4]]
    assert found[0].selection.config == choose(PROBLEM)[1]
    assert [one.tier for one in found] == ["memory", None, None, None]
    assert [one.predicted_cycles for one in found] == sorted(one.predicted_cycles for one in found)
    assert found[0].predicted_us(1_000_000) == pytest.approx(found[0].predicted_cycles / 1000)


def test_every_family_asked_for_has_its_best_among_them(cache: Cache) -> None:
    found = candidates(cache, PROBLEM, ["simt", "tensor_core", "simt"], top=3)
    names = [one.selection.family.name for one in found]
    assert (names.count("simt"), names.count("tensor_core")) == (3, 3)
    assert {one.selection.compiler.name for one in found} == {"nvrtc"}


@pytest.mark.parametrize(
    ("families", "compiler", "named"),
    [
        (("wmma",), None, "unknown family 'wmma'"),
        ((), "gcc", "unknown compiler 'gcc'"),
        (("tensor_core",), "triton", "triton cannot compile the tensor_core family"),
    ],
)
def test_invalid_input_is_refused(cache: Cache, families: tuple[str, ...], compiler: str | None, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        candidates(cache, PROBLEM, families, compiler)


def test_failures_of_single_configs_are_listed_and_the_rest_goes_on(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = candidates(cache, PROBLEM, top=4)
    broken = chosen[1].selection.config
    get_or_compile, timed, ticks = cache.get_or_compile, [], []

    def compiling(problem: GemmProblem, **options: object) -> CompiledKernel:
        if options["config"] == broken:
            raise CompileError("the compiler refused it", log="", source="", flags=())
        return get_or_compile(problem, **options)  # type: ignore[arg-type]

    def timer(kernel: CompiledKernel) -> Timing:
        timed.append(kernel.record.config)
        if len(timed) == 1:
            raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")
        if len(timed) == 2:
            raise MemoryError
        raise UsageError("compiled for another target")

    monkeypatch.setattr(cache, "get_or_compile", compiling)
    done = tune(cache, chosen, 2, lambda: ticks.append("compiled"), lambda: ticks.append("timed"), timer)
    assert [one.candidate for one in done] == chosen
    assert [str(one.trouble) for one in done] == [
        "CUDA_ERROR_LAUNCH_FAILED", "the compiler refused it", "MemoryError", "compiled for another target",
    ]  # fmt: skip
    assert timed == [one.selection.config for one in chosen if one.selection.config != broken]
    assert ticks == ["compiled"] * 4 + ["timed"] * 4
    assert len(list(cache.records())) == 3
    assert list(cache.timings) == []


@pytest.mark.skipif(isinstance(gpu(), DeviceFingerprint), reason="is about machines without a GPU")
def test_without_a_gpu_nothing_is_compiled(cache: Cache) -> None:
    with pytest.raises(GpuRequired, match="timing kernels needs an NVIDIA GPU"):
        tune(cache, candidates(cache, PROBLEM, top=2))
    assert list(cache.records()) == []
