"""Coverage: the keys it names are those that warming makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing
from cache_engine.evaluator.catalogue import ModelShape, model_shapes
from cache_engine.insight.coverage import coverage, distinct, wanted
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm import DType, Epilogue
from tests.cli.test_cli import document

ARCHS = ("sm_80", "sm_90", "sm_120")
SHAPE = ModelShape("a model", "qkv", 1, 64, 32, 1)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_coverage_of_a_model_needs_the_kernels_that_warming_makes(cache: Cache, tmp_path: Path, dtype: DType) -> None:
    shapes = model_shapes("DeepSeek-V3")
    cells = coverage(cache, wanted(shapes, dtype, ARCHS))
    assert [[(cell.shape, cell.arch) for cell in row] for row in cells] == [[(s, a) for a in ARCHS] for s in shapes]
    asked = {kernel.key for kernel in distinct(cells)}
    listed = document(
        "warm",
        "DeepSeek-V3",
        "--dtype",
        dtype,
        "--dry-run",
        *(f"--arch={arch}" for arch in ARCHS),
        store=tmp_path / "none",
    )
    assert asked == {one["key"] for one in listed["needed"]}
    assert listed["failed"] == []


def test_every_number_of_tokens_is_served_by_one_kernel(cache: Cache) -> None:
    ((cell,),) = coverage(cache, wanted([SHAPE], DType.FP32, ["sm_90"]))
    assert sorted(m for kernel in cell.kernels for ms in kernel.ms for m in ms) == list(range(1, 8193))
    assert len(cell.kernels) > 1


def test_a_shape_with_its_own_m_is_asked_for_that(cache: Cache) -> None:
    ((cell,),) = coverage(cache, wanted([ModelShape("", "", 1, 64, 32, 1, m=7)], DType.FP32, ["sm_90"]))
    assert [kernel.ms for kernel in cell.kernels] == [(range(7, 8),)]


def test_a_compiled_kernel_is_no_longer_missing(cache: Cache) -> None:
    ((cell,),) = coverage(cache, wanted([SHAPE], DType.FP32, ["sm_90"]))
    kernel = cache.get_or_compile(cell.kernels[0].selection.problem)
    assert kernel.key == cell.kernels[0].key
    assert cell.missing({}) == len(cell.kernels)
    assert cell.missing({kernel.key}) == len(cell.kernels) - 1


def test_a_cell_that_no_kernel_can_serve_says_why(cache: Cache) -> None:
    ((old, new),) = coverage(cache, wanted([SHAPE], DType.BF16, ["sm_75", "sm_90"]))
    assert (old.kernels, old.missing({})) == ((), 0)
    assert "sm_80 or newer" in old.refused
    assert new.kernels
    assert not new.refused


def test_without_the_compiler_keys_are_unknown(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ToolchainFingerprint:
        raise CompilerMissing("NVRTC is not installed")

    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", missing)
    with pytest.raises(CompilerMissing, match="not installed"):
        coverage(cache, wanted([SHAPE], DType.FP32, ["sm_90"]))


def test_a_layer_with_a_bias_asks_for_kernels_that_add_it(cache: Cache) -> None:
    def finishes(dtype: DType, epilogue: Epilogue | None = None) -> dict[str, str]:
        cells = coverage(cache, wanted(model_shapes("gpt-oss-20b"), dtype, ["sm_90"], epilogue=epilogue))
        return {row[0].shape.operation: str(row[0].kernels[0].selection.problem.epilogue) for row in cells}

    biased = finishes(DType.BF16)
    assert [operation for operation, finish in biased.items() if finish == "bias"] == ["qkv", "o", "router"]
    assert set(finishes(DType.BF16, Epilogue()).values()) == {""}
    assert set(finishes(DType.INT8).values()) == {""}, "int8 takes no epilogue"
