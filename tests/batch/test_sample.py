"""The sample: real shapes, from the script that ships with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cache_engine.assets import shape_catalogue
from cache_engine.batch.warm import ARCHITECTURES, Warmed, sample_problems, warm
from cache_engine.cache.cache import Cache
from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.model.gemm import DType, GemmProblem


def test_the_catalogue_matches_its_script(tmp_path: Path) -> None:
    catalogue = shape_catalogue()
    script = catalogue.with_name("make_model_gemm_shapes.py")
    spec = importlib.util.spec_from_file_location("make_model_gemm_shapes", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = [",".join(row) for row in (module.COLUMNS, *module.all_rows())]
    assert catalogue.read_text() == "\n".join(lines) + "\n"


def test_a_models_shapes_are_those_of_its_layers() -> None:
    shapes = {shape.operation: shape for shape in model_shapes("Llama-3.1-8B")}
    assert list(shapes) == ["qkv", "o", "gate+up", "down", "lm_head"]
    # 32 query heads and 2 × 8 key and value heads of 128.
    assert (shapes["qkv"].n, shapes["qkv"].k, shapes["qkv"].layers) == (6144, 4096, 32)


def test_an_unknown_model_is_refused_listing_those_there_are_the_most_alike_first() -> None:
    with pytest.raises(UsageError, match="unknown model 'GPT-9'; use one of: gpt-oss-20b, ") as caught:
        model_shapes("GPT-9")
    assert all(shape.model in str(caught.value) for shape in model_shapes())


def test_the_sample_has_several_models_both_families_and_four_targets() -> None:
    problems = sample_problems()
    assert len(problems) == 48
    assert {problem.arch for problem in problems} == set(ARCHITECTURES)
    assert {problem.dtype for problem in problems} == {DType.BF16, DType.FP16, DType.FP32}
    assert len(set(problems)) == 48


def test_one_failure_does_not_keep_the_others_from_being_made(cache: Cache) -> None:
    problems = [
        GemmProblem(8, 16, 16, dtype=DType.FP32, arch="sm_90"),
        GemmProblem(8, 16, 16, arch="sm_75"),
        GemmProblem(8, 32, 16, dtype=DType.FP32, arch="sm_90"),
    ]
    told: list[Warmed] = []
    done = warm(cache, problems, jobs=2, on_done=told.append)
    assert done == told
    failed = [warmed for warmed in done if warmed.kernel is None]
    assert [warmed.problem for warmed in failed] == [problems[1]]
    assert "sm_75 computes" in str(failed[0].error)
    assert len(list(cache.records())) == 2
