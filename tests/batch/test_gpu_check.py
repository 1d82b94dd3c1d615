"""The check of a GPU names each family and library, and what is wrong with it. NumPy is the GPU."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from cache_engine.batch import gpu_check
from cache_engine.batch.gpu_check import GpuSpeed, check_gpu, speeds
from cache_engine.cache.cache import open_cache
from cache_engine.cache.proving import watchdog
from cache_engine.cache.proving.watchdog import Order, Verdict, watched
from cache_engine.cli.main import commands
from cache_engine.gpu.memory_pool import DeviceMemoryPool, PoolStatistics
from cache_engine.gpu.timer import Timing
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED
from tests.device import numpy_gpu

FAMILIES = ["tensor_core", "scaled", "simt", "hopper", "grouped"]


def _pool(in_use_bytes: int, failures: int) -> Any:
    found = PoolStatistics(2**20, in_use_bytes, 0, 2**20, 1, failures, None)
    return SimpleNamespace(serving=nullcontext, statistics=lambda: found)


POOL = _pool(2**20, 0)


def _stand_in(monkeypatch: pytest.MonkeyPatch, behaviours: dict[str, str]) -> None:
    """Has the check find NumPy for a GPU, on which the kernels of a family behave so."""

    def run(order: Order, is_wanted: Callable[[], bool]) -> Verdict:
        command = [sys.executable, "-m", "tests.device.canary_process", behaviours.get(order.family, "right")]
        return watched(msgspec.structs.replace(order, budget_s=600.0), is_wanted, command)

    monkeypatch.setattr(gpu_check, "watched", run)
    monkeypatch.setattr(watchdog, "HANG_S", 600.0)  # a busy processor is no GPU
    monkeypatch.setattr(gpu_check, "current_gpu", lambda: (0, numpy_gpu.DEVICE))
    monkeypatch.setattr(gpu_check, "shared_pool", lambda: SimpleNamespace(fault=partial(DeviceMemoryPool.fault, POOL)))
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)  # PyTorch, which takes no memory of NumPy


def _checked(
    monkeypatch: pytest.MonkeyPatch, folder: Path, behaviours: dict[str, str], seconds: float = 600.0
) -> dict[str, Verdict]:
    _stand_in(monkeypatch, behaviours)
    with numpy_gpu.launching_in_numpy(monkeypatch), open_cache(folder / "store", durability="fast") as cache:
        return dict(check_gpu(cache, time.monotonic() + seconds))


def test_a_right_gpu_proves_every_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _checked(monkeypatch, tmp_path, {})
    assert list(found) == [*FAMILIES, "CuPy", "memory pool"]
    assert {one.state for one in found.values()} == {PROVED}
    assert {found[name].cases for name in FAMILIES} == {2}


def test_what_is_wrong_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "largest_error", lambda *_: float("nan"))
    found = _checked(monkeypatch, tmp_path, {"simt": "wrong", "scaled": "gone"})
    assert {name: one.state for name, one in found.items() if one.state != PROVED} == {
        "simt": REFUSED, "scaled": UNPROVED, "CuPy": REFUSED,
    }  # fmt: skip
    assert "elements of C are wrong" in found["simt"].refused
    assert "--family=simt" in found["simt"].command
    assert "the GPU was lost" in found["scaled"].undecided
    assert "nan" in found["CuPy"].refused


def test_the_doctor_proves_on_the_ptx_machine_and_measures_nothing_without_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand_in(monkeypatch, dict.fromkeys(FAMILIES, "ptx"))
    monkeypatch.setattr(gpu_check, "BUDGET_S", 600.0)
    words = ["--store", str(tmp_path / "store"), "doctor", "--gpu", "--json", "--output", str(tmp_path / "gpu.html")]
    with numpy_gpu.launching_in_numpy(monkeypatch):
        printed = CliRunner().invoke(commands, words).stdout
    document = json.loads(printed)
    checks = {one["name"]: one for one in document["checks"] if one["name"].startswith("GPU: ")}
    assert [name.removeprefix("GPU: ") for name in checks] == [*FAMILIES, "CuPy", "memory pool", "speed"]
    assert {name: one["status"] for name, one in checks.items() if one["status"] != "ok"} == {"GPU: speed": "note"}
    assert checks["GPU: speed"]["detail"].startswith("not measured: ")
    assert len(document["speeds"]) == 24
    assert {one["tflops"] for one in document["speeds"]} == {None}
    assert (tmp_path / "gpu.html").read_text().count("not measured</td>") == 48


def test_canaries_that_take_too_long_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _checked(monkeypatch, tmp_path, {}, seconds=0.0)
    assert {found[name].state for name in FAMILIES} == {UNPROVED}
    assert "the time ended after" in found["simt"].undecided


@pytest.mark.parametrize(
    ("in_use_bytes", "failures", "state"), [(2**20, 0, PROVED), (0, 0, REFUSED), (2**20, 1, REFUSED)]
)
def test_a_pool_that_miscounts_or_fails_is_named(
    in_use_bytes: int, failures: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "POOL", _pool(in_use_bytes, failures))
    assert _checked(monkeypatch, tmp_path, {}, seconds=0.0)["memory pool"].state == state


def _speeds(
    monkeypatch: pytest.MonkeyPatch, folder: Path, timed: Any, refused: tuple[str, ...] = (), seconds: float = 600.0
) -> list[GpuSpeed]:
    device = msgspec.structs.replace(numpy_gpu.DEVICE, name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(gpu_check, "current_gpu", lambda: (0, device))
    monkeypatch.setattr(gpu_check, "time_kernel", timed)
    kernel = SimpleNamespace(cubin=b"", record=SimpleNamespace(name="k"), launch=None)
    monkeypatch.setattr(gpu_check, "side_by_side", lambda gets: ((number, kernel) for number, _ in enumerate(gets)))
    with open_cache(folder / "store", durability="fast") as cache:
        return list(speeds(cache, time.monotonic() + seconds, refused))


def test_twelve_layers_are_timed_beside_cublas_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*_: object) -> Timing:
        return Timing(numpy_gpu.DEVICE, 20.0, 20.0, 20.0, 50, 100.0, 0.0, True, reference_median_us=10.0)

    found = _speeds(monkeypatch, tmp_path, timed)
    assert len({(one.model, one.layer) for one in found}) == 12
    assert {one.m for one in found} == {16, 4096}
    assert {(one.family, one.latency_us, one.reason) for one in found} == {("hopper", 10.0, "")}
    qkv = next(one for one in found if (one.model, one.layer, one.m) == ("Llama-3.1-8B", "qkv", 4096))
    assert qkv.reference_tflops == pytest.approx(2 * 4096 * 6144 * 4096 / 10 / 1e6)
    assert qkv.predicted_tflops is not None
    assert 400 < qkv.predicted_tflops < 990  # of an H100's peak
    assert {one.family for one in _speeds(monkeypatch, tmp_path, timed, ("hopper",))} == {"tensor_core"}
    unproved = _speeds(monkeypatch, tmp_path, timed, ("hopper", "tensor_core"))
    assert {(one.tflops, one.reason) for one in unproved} == {(None, "tensor_core is not proved here")}


def test_what_is_not_measured_has_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_clock(*_: object) -> Timing:
        raise RuntimeError("there is no clock of a device")

    for seconds, reason in ((600.0, "there is no clock of a device"), (0.0, "the 60 s ended")):
        for one in _speeds(monkeypatch, tmp_path, no_clock, seconds=seconds):
            assert reason in one.reason
            assert (one.tflops, one.reference_tflops, one.latency_us) == (None, None, None)
