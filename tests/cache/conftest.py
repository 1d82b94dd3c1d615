"""Fixtures of the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cache_engine import GemmOperator
from cache_engine.compilers import COMPILERS
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets of every compile from here on."""
    calls: list[str] = []
    compiler = COMPILERS["nvrtc"]
    really = compiler.compile

    def counted(source: str, arch: str) -> object:
        calls.append(arch)
        return really(source, arch)

    monkeypatch.setattr(compiler, "compile", counted)
    return calls


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Finder]:
    """In the place of every operator's cache; NumPy launches."""
    finder = Finder()
    monkeypatch.setattr(GemmOperator, "cache", finder)
    with numpy_gpu.launching_in_numpy(monkeypatch):
        yield finder


@pytest.fixture
def numpy_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NumPy launches the kernels of real caches."""
    with numpy_gpu.launching_in_numpy(monkeypatch):
        yield
