"""Fixtures of the tests of the engine."""

from __future__ import annotations

import pytest

from cache_engine.compilers import COMPILERS


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
