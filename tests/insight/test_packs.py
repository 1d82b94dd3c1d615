"""Packs in words: what made their kernels, and how many of them can serve here."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.serving.pack_state import pack_state
from cache_engine.compilers import COMPILERS, nvrtc
from cache_engine.errors import CompilerMissing
from cache_engine.insight.explanation import explain
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.settings import Settings
from cache_engine.store.pack import Pack
from tests.conftest import SAMPLE

PROBLEM = SAMPLE[3]


@pytest.fixture
def older_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC here is 13.4."""
    older = nvrtc.Nvrtc()
    monkeypatch.setattr(older, "fingerprint", lambda: ToolchainFingerprint("nvrtc", "13.4", "cd" * 20))
    monkeypatch.setitem(COMPILERS._made, "nvrtc", older)


def test_a_pack_whose_kernels_can_all_serve_says_only_what_made_them(pack: Path) -> None:
    build = COMPILERS["nvrtc"].fingerprint().build[:12]
    state = pack_state(Pack(pack), Settings())
    assert (state.text, state.is_whole) == (f"4 kernels, made by nvrtc 13.5 (build {build})", True)


@pytest.mark.usefixtures("older_nvrtc")
def test_a_pack_of_another_build_says_how_many_can_serve_and_how(pack: Path) -> None:
    state = pack_state(Pack(pack), Settings(toolchain="local"))
    assert (state.usable, state.usable_with_any_toolchain, state.known) == (0, 4, 4)
    assert state.text.endswith(
        "; here is nvrtc 13.4 (build cdcdcdcdcdcd); 0 of 4 can serve, 4 with GEMM_CACHE_TOOLCHAIN=pack"
    )
    for serving in (Settings(), Settings(toolchain="pack"), Settings(enable_jit=False)):
        assert pack_state(Pack(pack), serving).is_whole
    other = pack_state(Pack(pack), Settings(toolchain="pack", compiler_flags=("--use_fast_math",)))
    assert (other.usable, other.text.endswith("0 of 4 can serve; 4 have other templates or flags")) == (0, True)


def test_without_the_compiler_a_pack_says_so(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ToolchainFingerprint:
        raise CompilerMissing("NVRTC is not installed")

    gone = nvrtc.Nvrtc()
    monkeypatch.setattr(gone, "fingerprint", missing)
    monkeypatch.setitem(COMPILERS._made, "nvrtc", gone)
    assert pack_state(Pack(pack), Settings()).is_whole
    local = pack_state(Pack(pack), Settings(toolchain="local"))
    assert "nvrtc is not installed here; 0 of 4 can serve" in local.text


@pytest.mark.usefixtures("older_nvrtc")
def test_explain_says_that_a_pack_has_the_kernel_of_another_build(pack: Path, tmp_path: Path) -> None:
    with open_cache(tmp_path / "new", packs=(pack,), toolchain="local") as cache:
        found = explain(cache, PROBLEM)
    assert found.tier is None
    assert found.nearest is not None
    assert {pair.name for pair in found.nearest.causes} == {"compiler_version"}
    has, state = found.notes
    assert has.startswith("pack kernels.gemmpack has this kernel, made by nvrtc 13.5 (build ")
    assert has.endswith("; GEMM_CACHE_TOOLCHAIN=pack serves it")
    assert "0 of 4 can serve" in state
    with open_cache(packs=(pack,), enable_caching="packs", toolchain="pack") as cache:
        found = explain(cache, PROBLEM)
        assert (found.tier, found.selection.toolchain_from) == ("pack", "pack kernels.gemmpack")
        assert explain(cache, SAMPLE[0].on("sm_100")).notes == ()
