"""The check of a GPU names each family and library, and what is wrong with it. NumPy is the GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from cache_engine.batch import gpu_check
from cache_engine.batch.gpu_check import GpuCheck, check_gpu
from cache_engine.cache.cache import open_cache
from cache_engine.cache.proving.watchdog import Order, Watchdog
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED
from tests.device import numpy_gpu

FAMILIES = ["tensor_core", "scaled", "simt", "hopper", "grouped"]


def _checked(monkeypatch: pytest.MonkeyPatch, folder: Path, behaviours: dict[str, str]) -> dict[str, GpuCheck]:
    def start(order: Order) -> Watchdog:
        command = [sys.executable, "-m", "tests.device.canary_process", behaviours.get(order.family, "right")]
        return Watchdog(msgspec.structs.replace(order, budget_s=600.0), command)

    monkeypatch.setattr(gpu_check, "current_gpu", lambda: (0, numpy_gpu.DEVICE))
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)  # PyTorch, which takes no memory of NumPy
    with numpy_gpu.launching_in_numpy(monkeypatch), open_cache(folder / "store", durability="fast") as cache:
        return {one.name: one for one in check_gpu(cache, start)}


def test_a_right_gpu_proves_every_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _checked(monkeypatch, tmp_path, {})
    assert list(found) == [*FAMILIES, "CuPy"]
    assert {one.state for one in found.values()} == {PROVED}
    assert {found[name].cases for name in FAMILIES} == {2}


def test_what_is_wrong_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "largest_error", lambda *_: float("nan"))
    found = _checked(monkeypatch, tmp_path, {"simt": "wrong", "scaled": "gone"})
    assert {name: one.state for name, one in found.items() if one.state != PROVED} == {
        "simt": REFUSED, "scaled": UNPROVED, "CuPy": REFUSED,
    }  # fmt: skip
    assert "elements of C are wrong" in found["simt"].reason
    assert "--family=simt" in found["simt"].command
    assert "the GPU was lost" in found["scaled"].reason
    assert "nan" in found["CuPy"].reason
