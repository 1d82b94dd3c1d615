"""Coverage: the keys it names are those that warming makes."""

from __future__ import annotations

import pytest

from cache_engine.batch.warm import one_per_key, problems_of
from cache_engine.catalogue import TOKENS, ModelShape, model_shapes
from cache_engine.compilers import COMPILERS
from cache_engine.engine.cache import Cache
from cache_engine.errors import CompilerMissing
from cache_engine.insight.coverage import coverage
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm import DType

ARCHS = ("sm_80", "sm_90", "sm_120")
SHAPE = ModelShape("a model", "qkv", 1, 64, 32, 1)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_a_model_asks_for_what_warming_makes(cache: Cache, dtype: DType) -> None:
    shapes = model_shapes("DeepSeek-V3")
    cells = coverage(cache, shapes, dtype, ARCHS)
    assert [[(cell.shape, cell.arch) for cell in row] for row in cells] == [[(s, a) for a in ARCHS] for s in shapes]
    asked = {kernel.key for row in cells for cell in row for kernel in cell.kernels}
    problems, refused = one_per_key(cache, problems_of(shapes, TOKENS, dtype, ARCHS))
    assert asked == {cache.select(problem).key for problem in problems}
    assert refused == []


def test_every_number_of_tokens_is_served_by_one_kernel(cache: Cache) -> None:
    ((cell,),) = coverage(cache, [SHAPE], DType.FP32, ["sm_90"])
    assert sorted(m for kernel in cell.kernels for m in kernel.ms) == list(TOKENS)


def test_a_shape_with_its_own_m_is_asked_for_that(cache: Cache) -> None:
    ((cell,),) = coverage(cache, [ModelShape("", "", 1, 64, 32, 1, m=7)], DType.FP32, ["sm_90"])
    assert [kernel.ms for kernel in cell.kernels] == [(7,)]


def test_what_is_compiled_is_no_longer_missing(cache: Cache) -> None:
    ((cell,),) = coverage(cache, [SHAPE], DType.FP32, ["sm_90"])
    kernel = cache.get_or_compile(cell.kernels[0].selection.problem)
    assert kernel.key == cell.kernels[0].key
    assert cell.missing({}) == len(cell.kernels)
    assert cell.missing({kernel.key}) == len(cell.kernels) - 1


def test_a_cell_that_no_kernel_can_serve_says_why(cache: Cache) -> None:
    ((old, new),) = coverage(cache, [SHAPE], DType.BF16, ["sm_75", "sm_90"])
    assert (old.kernels, old.missing({})) == ((), 0)
    assert "sm_80 or newer" in old.refused
    assert new.kernels
    assert not new.refused


def test_without_the_compiler_no_key_can_be_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ToolchainFingerprint:
        raise CompilerMissing("NVRTC is not installed")

    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", missing)
    with pytest.raises(CompilerMissing, match="not installed"):
        coverage(cache, [SHAPE], DType.FP32, ["sm_90"])
