"""Passes of whole models: what is computed, on how many chips, and what it adds up to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import ModelShape, model_shapes
from cache_engine.evaluator.catalogue.layers import Parallel, layers_named
from cache_engine.evaluator.chips import GPUS, Gpu
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.insight.passes import PHASES, ModelPass, Step, asking, model_pass, operations

CHIP = PRESETS["SG2262"]
NAMES = list(dict.fromkeys(shape.model for shape in model_shapes()))


def passed(name: str, step: Step, parallel: Parallel | None = None, chip: str = "SG2262") -> ModelPass:
    parallel = parallel or Parallel()
    computed = operations(layers_named(name, parallel), step, parallel)
    on = PRESETS[chip] if chip in PRESETS else GPUS[chip]
    return model_pass(computed, on, step.tokens, asking(None))


def test_deepseek_v3_takes_as_long_as_its_active_parameters_say() -> None:
    """37·10⁹ parameters are active for each token, says its report."""
    found = passed("DeepSeek-V3", Step(4096))
    assert found.flops == pytest.approx(2 * 37e9 * 4096, rel=0.05)
    by_parameters = 2 * 37e9 * 4096 / (CHIP.peak_flops * found.utilization)
    assert found.pass_us * 1e-6 == pytest.approx(by_parameters, rel=0.05)
    assert 0.9 < found.utilization < 1


@pytest.mark.parametrize("chip", ["SG2262", "H100"])
@pytest.mark.parametrize("name", NAMES)
def test_totals_are_the_sums_of_the_rows(name: str, chip: str) -> None:
    found = passed(name, Step(96, "decode"), chip=chip)
    each = [row.cost.latency_us * row.operation.calls for row in found.rows]
    assert found.pass_us == pytest.approx(math.fsum(each), rel=1e-12)
    assert found.flops == sum(row.flops for row in found.rows)
    assert found.moved_bytes == sum(row.moved_bytes for row in found.rows)
    head = found.rows[-1]
    assert head.operation.name == "lm_head"
    layers = found.layers()
    dense = next((row.operation.calls for row in found.rows if row.operation.part == "dense"), 0)
    moe = next((row.operation.calls for row in found.rows if row.operation.part == "experts"), 0)
    of_layers = dense * layers.get("dense layer", 0) + moe * layers.get("MoE layer", 0)
    assert of_layers + head.pass_us == pytest.approx(found.pass_us, rel=1e-9)


def test_the_phase_decides_between_ways_of_computing_unless_one_is_chosen() -> None:
    def names(step: Step) -> set[str]:
        return {one.name for one in operations(model_shapes("DeepSeek-V3"), step)}

    absorbed, expanded = {"W_UK absorb", "W_UV absorb"}, {"kv_b"}
    prefill, decode = (names(Step(8, phase)) for phase in PHASES)
    assert prefill - decode == expanded
    assert decode - prefill == absorbed
    assert "q_a+kv_a(fused)" in prefill
    assert not {"q_a", "kv_a"} & prefill
    assert names(Step(8, alternatives=("absorbed", "separate"))) == (decode - {"q_a+kv_a(fused)"} | {"q_a", "kv_a"})
    assert names(Step(8, "decode", alternatives=("expanded",))) == prefill


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"phase": "training"}, "unknown phase 'training'; use one of: prefill, decode"),
        ({"alternatives": ("other",)}, "unknown mode 'other'; use one of: "),
        ({"alternatives": ("fused", "separate")}, "fused and separate exclude each other"),
    ],
)
def test_a_step_that_cannot_be_is_refused(asked: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Step(1, **asked)  # type: ignore[arg-type]


def work_of(name: str, operation: str, step: Step, parallel: Parallel | None = None) -> object:
    parallel = parallel or Parallel()
    return {one.name: one.work for one in operations(layers_named(name, parallel), step, parallel)}[operation]


def test_an_expert_gets_its_share_of_the_tokens() -> None:
    assert work_of("DeepSeek-V3", "expert down", Step(4096)) == EvaluationProblem(128, 7168, 2048, 256)
    assert work_of("DeepSeek-V3", "expert down", Step(1)) == EvaluationProblem(1, 7168, 2048, 8)
    uneven = work_of("DeepSeek-V3", "expert down", Step(100))
    assert getattr(uneven, "groups", None) == ((4, 32), (3, 224))
    skewed = work_of("DeepSeek-V3", "expert down", Step(4096, skew=1.0))
    assert getattr(skewed, "m", 0) == 4096
    assert getattr(skewed, "rows", 0) == 4096 * 8
    counted = work_of("Mixtral-8x7B", "expert down", Step(10, weights=(1, 1, 0, 0, 0, 0, 0, 2)))
    assert getattr(counted, "groups", None) == ((10, 1), (5, 2))


def test_counts_of_other_experts_are_refused() -> None:
    with pytest.raises(UsageError, match="the counts are of 3 experts, and Mixtral-8x7B has 8"):
        work_of("Mixtral-8x7B", "expert down", Step(10, weights=(1, 2, 3)))


def test_chips_with_different_experts_are_judged_by_the_busiest() -> None:
    eight = Parallel(8, 8)
    assert work_of("DeepSeek-V3", "expert down", Step(4096), eight) == EvaluationProblem(128, 7168, 2048, 32)
    assert work_of("DeepSeek-V3", "expert down", Step(1), eight) == EvaluationProblem(1, 7168, 2048, 1)
    # The first of every eight in the order of demand; the sum over all chips is 8 × the tokens.
    skewed = work_of("DeepSeek-V3", "expert down", Step(4096, skew=1.0), eight)
    assert getattr(skewed, "rows", 0) > 4096 * 8 / 8
    # Of counts, the chips have experts in their order.
    heavy = (1.0,) * 4 + (9.0,) * 4
    assert work_of("Mixtral-8x7B", "expert down", Step(40, weights=heavy), Parallel(2, 2)) == EvaluationProblem(
        18, 4096, 14_336, 4
    )


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(8, 8), Parallel(4, 2)])
def test_equal_shares_are_those_of_a_skew_of_hardly_anything(parallel: Parallel) -> None:
    for tokens in (1, 3, 16, 31, 33, 100, 257, 4096):
        plain, hardly = (work_of("gpt-oss-20b", "expert down", Step(tokens, skew=s), parallel) for s in (0, 1e-12))
        assert plain == hardly


def test_copies_share_the_tokens_and_the_experts_see_all() -> None:
    copies = Parallel(1, 8, 8)
    assert work_of("DeepSeek-V3", "o", Step(4096), copies) == EvaluationProblem(512, 7168, 16_384)
    assert work_of("DeepSeek-V3", "expert down", Step(4096), copies) == EvaluationProblem(128, 7168, 2048, 32)


def test_logits_may_be_of_the_last_tokens_only() -> None:
    assert work_of("Llama-3.1-8B", "lm_head", Step(4096)) == EvaluationProblem(4096, 128_256, 4096)
    assert work_of("Llama-3.1-8B", "lm_head", Step(4096, sequences=4)) == EvaluationProblem(4, 128_256, 4096)
    assert work_of("Llama-3.1-8B", "lm_head", Step(2, sequences=4)) == EvaluationProblem(2, 128_256, 4096)
    decode = Step(64, "decode", sequences=4)
    assert work_of("Llama-3.1-8B", "lm_head", decode) == EvaluationProblem(64, 128_256, 4096)


def test_a_table_has_no_layers_and_its_own_m_stays() -> None:
    shapes = [ModelShape("mine", "line 2", 1, 64, 32, 3, m=7), ModelShape("mine", "line 3", 2, 64, 32, 1)]
    found = model_pass(operations(shapes, Step(100)), CHIP, 100, asking(None))
    assert [row.operation.work.m for row in found.rows] == [7, 100]
    assert [row.operation.calls for row in found.rows] == [3, 1]
    assert found.layers() == {}


@pytest.mark.parametrize("chip", [CHIP, GPUS["H100"]])
def test_chips_of_one_name_keep_their_own_costs(chip: Hardware | Gpu) -> None:
    slower = replace(chip, dram_bandwidth=chip.dram_bandwidth / 2)
    work, ask = EvaluationProblem(1, 4096, 4096), asking(None)
    assert ask(work, chip).latency_us < ask(work, slower).latency_us
