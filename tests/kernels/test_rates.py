"""Rates of targets: those that were fitted are those of the evaluator, and peaks are those of the data sheets."""

from __future__ import annotations

import re

import pytest

from cache_engine.evaluator.chips import GPUS, TARGETS
from cache_engine.kernels.rates import rates_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import render
from cache_engine.model.architecture import ARCHITECTURES, Architecture
from cache_engine.model.gemm import DType

EXAMPLES = {"A100": "A100", "H100": "H100 SXM", "B200": "B200", "L40S": "L40S"}


@pytest.mark.parametrize("gpu", EXAMPLES)
def test_the_rates_of_a_target_give_the_peak_and_bandwidth_of_its_gpus_data_sheet(gpu: str) -> None:
    target, known = ARCHITECTURES[TARGETS[gpu]], GPUS[gpu]
    rates = rates_of(target)
    assert (target.example, target.example_sms) == (EXAMPLES[gpu], known.sms)
    assert rates.tensor * target.example_sms * rates.clock_mhz * 1e6 == pytest.approx(known.peak_flops, rel=0.02)
    assert rates.dram_gb_s * 1e9 == pytest.approx(known.dram_bandwidth, rel=0.001)


@pytest.mark.parametrize(
    ("gpu", "reached"), [("A100", (0.92438, 0.79343)), ("H100", (0.87191, 0.85876)), ("B200", (0.75652, 0.81695))]
)
def test_what_is_reached_stays_when_the_gpu_model_is_fitted_again(gpu: str, reached: tuple[float, float]) -> None:
    """Another share could change the choice of a config, and with it keys: see docs/decisions/0014."""
    rates = rates_of(ARCHITECTURES[TARGETS[gpu]])
    assert (rates.reached, rates.dram_reached) == reached


@pytest.mark.parametrize("name", ["sm_75", "sm_86", "sm_87", "sm_89", "sm_110", "sm_120", "sm_121"])
def test_a_target_whose_gpu_was_not_measured_reaches_its_rates(name: str) -> None:
    assert (rates_of(ARCHITECTURES[name]).reached, rates_of(ARCHITECTURES[name]).dram_reached) == (1, 1)


@pytest.mark.parametrize("target", ARCHITECTURES.values(), ids=lambda target: target.name)
def test_every_target_has_a_rate_for_whatever_a_family_computes_there(target: object) -> None:
    rates = rates_of(target)  # type: ignore[arg-type]
    for family in FAMILIES.values():
        for dtype in family.flops_per_clock:
            assert 1 <= rates.operations(family.unit, dtype) <= 65_536


def test_warps_multiply_more_slowly_than_groups_of_warps_on_hopper() -> None:
    hopper, ada = rates_of(ARCHITECTURES["sm_90"]), rates_of(ARCHITECTURES["sm_89"])
    share = hopper.operations("mma", DType.BF16) / hopper.operations("tensor", DType.BF16)
    assert share == pytest.approx(0.629, abs=0.001)
    assert hopper.operations("mma", DType.INT8) / hopper.operations("tensor", DType.INT8) == pytest.approx(share)
    assert ada.operations("mma", DType.BF16) == ada.operations("tensor", DType.BF16)
    assert hopper.operations("tensor", DType.TF32) * 2 == hopper.operations("tensor", DType.FP16)
    assert hopper.operations("tensor", DType.FP8_E4M3) == 2 * hopper.operations("tensor", DType.FP16)


@pytest.mark.parametrize("target", ARCHITECTURES.values(), ids=lambda target: target.name)
def test_fp8_is_converted_where_the_template_converts_it(target: Architecture) -> None:
    rates, converts = rates_of(target), _template_converts_fp8(target)
    for dtype in (DType.FP8_E4M3, DType.FP8_E5M2):
        assert rates.converts("mma", dtype) == converts
        assert not rates.converts("tensor", dtype)
    assert not rates.converts("mma", DType.INT8)


def _template_converts_fp8(target: Architecture) -> bool:
    """Reads the condition under which the template multiplies fp8 directly."""
    found = re.search(r"#if __CUDA_ARCH__ < (\d+) \|\| __CUDA_ARCH__ >= (\d+)\nMULTIPLY_ACC", render("scaled.cu", {}))
    assert found is not None
    return int(found[1]) <= target.major * 100 + target.minor * 10 < int(found[2])
