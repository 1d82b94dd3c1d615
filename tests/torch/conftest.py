"""Tensors of the CPU stand for a GPU's memory, and launches go to NumPy or to the PTX machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder

if find_spec("torch") is None:
    # Without it the modules here cannot even be imported.
    collect_ignore_glob = ["test_c*.py", "test_launches.py", "test_modules.py", "test_vllm*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PyTorch's compiler calls what PyTorch deprecates."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The GPU for which the CPU stands; launches are computed by NumPy."""
    from tests.torch.stand_in import StandIn, standing

    with numpy_gpu.launching_in_numpy(monkeypatch):
        yield standing(monkeypatch, StandIn())


@pytest.fixture
def finder(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Finds the kernels of every call, and remembers what for."""
    from cache_engine.torch import launches

    found: Any = Finder()
    monkeypatch.setattr(launches.serving, "cache", found)
    monkeypatch.setattr(launches.serving, "wait_ms", None)
    return found


@pytest.fixture
def machine(finder: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The PTX machine in place of NumPy: executes what NVRTC makes of the kernels."""
    from tests.torch.stand_in import on_the_machine

    return on_the_machine(monkeypatch)
