"""Launches go through the project's own launch code, with NumPy in the place of CuPy."""

from __future__ import annotations

import pytest

from tests.device import numpy_gpu


@pytest.fixture(autouse=True)
def _numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_gpu.install(monkeypatch)
