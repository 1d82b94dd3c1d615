"""On a real GPU: operators that are called, kernels that ``warm --check`` loads, the pool's limit as a setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cache_engine import GemmOperator, UsageError, matmul
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cli.main import commands
from cache_engine.gpu.memory_pool import shared_limit, shared_pool
from tests.gpu.test_matmul import close, normal


@pytest.fixture
def linear(kernels: Cache) -> GemmOperator:
    return GemmOperator(dtype="fp16", epilogue="bias+relu", cache_dir=kernels.layout.root)


def test_a_call_is_what_cupy_computes(linear: GemmOperator) -> None:
    import cupy

    x, weight, bias = (normal(*shape).astype("float16") for shape in ((70, 128), (96, 128), (96,)))
    expected = cupy.maximum(x.astype("float32") @ weight.T.astype("float32") + bias, 0)
    out = cupy.empty((70, 96), dtype="float16")
    assert linear(x, weight.T, out, bias=bias) is out
    assert close(out.astype("float32"), expected)
    again = linear(x, weight.T, bias=bias)
    assert bool((again == out).all())
    assert (linear.statistics().calls, sum(linear.statistics().kernels.values())) == (2, 1)


def test_a_single_row_is_read_in_the_operators_layout_and_the_other_way_is_refused(linear: GemmOperator) -> None:
    x, weight, bias = (normal(*shape).astype("float16") for shape in ((1, 128), (96, 128), (96,)))
    assert close(linear(x, weight.T, bias=bias), (x @ weight.T + bias).clip(0))
    with pytest.raises(UsageError, match="B is 128 × 96 and lies row by row"):
        linear(x, normal(128, 96).astype("float16"), bias=bias)


def test_an_operator_for_a_target_that_this_gpu_does_not_run_says_so(kernels: Cache) -> None:
    import cupy

    here = int(cupy.cuda.Device().compute_capability)
    other = GemmOperator(dtype="fp16", arch="sm_75" if here >= 80 else "sm_90", cache_dir=kernels.layout.root)
    a: Any = normal(64, 64).astype("float16")
    with pytest.raises(UsageError, match="does not run on"):
        other(a, a.T)


def test_the_time_of_a_call_is_measured_and_grows_with_the_work(kernels: Cache) -> None:
    product = GemmOperator(dtype="fp16", layout="nn", cache_dir=kernels.layout.root)
    small, large = normal(64, 64).astype("float16"), normal(4096, 4096).astype("float16")
    product(small, small)
    product(large, large)
    with product.profiling() as calls:
        for _ in range(5):
            product(small, small)
            product(large, large)
    times = [call.gpu_ms or 0.0 for call in calls]
    assert min(times) > 0
    assert min(times[1::2]) > min(times[::2])
    assert {call.tier for call in calls} == {None}


def test_without_fusion_the_result_is_the_same_but_for_rounding(linear: GemmOperator) -> None:
    x, weight, bias = (normal(*shape).astype("float16") for shape in ((70, 128), (96, 128), (96,)))
    fused = linear(x, weight.T, bias=bias)
    linear.fusion = False
    apart = linear(x, weight.T, bias=bias)
    assert close(apart.astype("float32"), fused.astype("float32"), 2**-9)


def test_without_fusion_with_beta_and_gelu(kernels: Cache) -> None:
    a, b, bias, out = normal(70, 64), normal(64, 48, seed=1), normal(48, seed=2), normal(70, 48, seed=3)
    asked: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "bias": bias, "activation": "gelu", "cache": kernels}
    again = out.copy()
    assert matmul(a, b, out, **asked) is out
    assert matmul(a, b, again, fusion=False, **asked) is again
    assert close(again, out, 2**-18)


def test_warm_loads_kernels_of_this_target_and_says_which_the_driver_refuses(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("n,k\n64,128\n")
    asked = [
        "--store",
        str(tmp_path / "store"),
        "warm",
        str(table),
        "--m",
        "16",
        "--dtype",
        "fp16",
        "--check",
        "--json",
    ]
    done = CliRunner().invoke(commands, asked)
    assert (done.exit_code, json.loads(done.stdout)["loaded"]) == (0, 1), done.output
    refused = CliRunner().invoke(commands, [*asked, "--arch", "sm_75"])
    assert refused.exit_code == 1
    assert "does not run on" in json.loads(refused.stdout)["failed"][0]["error"]


def test_the_setting_limits_the_shared_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limit, "size_bytes", None)
    with open_cache(tmp_path, device_memory_bytes=3 * 2**30):
        assert shared_pool().statistics().limit_bytes == 3 * 2**30
    shared_pool().limit(None)
