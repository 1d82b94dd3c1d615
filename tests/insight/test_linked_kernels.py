"""Linked code of kernels that are really compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers.base import Compiled
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.insight.linked.kernel import linked_code
from cache_engine.insight.linked.marks import Linked, Pane
from cache_engine.kernels import source as rendering
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.helpers import require_triton

# 1,024 threads, for which an SM has 64 registers each.
SPILLING = (
    GemmProblem(512, 512, 512, dtype=DType.TF32, layout="nn", arch="sm_80"),
    KernelConfig(block_m=512, block_n=64, block_k=32, warps_m=8, warps_n=4, stages=2),
)


def _panes(shown: Linked) -> dict[str, Pane]:
    return {pane.name: pane for pane in shown.panes}


def test_each_multiplication_is_linked_to_the_line_and_the_ptx_that_ask_for_it(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        record = next(record for record in cache.records() if record.problem.dtype == DType.BF16)
        shown = linked_code(cache, record)
        assert cache.text(record, "source").splitlines() == list(_panes(shown)["Source"].lines)
    assert (shown.notes, shown.is_linked) == ((), True)
    panes = _panes(shown)
    source, ptx, sass = panes["Source"], panes["PTX"], panes["SASS"]
    found = [number for number, kind in enumerate(sass.kinds) if kind == "mma"]
    assert len(found) > 3
    for number in found:
        assert source.lines[sass.source[number] - 1].startswith("MULTIPLY_ACCUMULATE(bf16, float")
        assert "multiply_accumulate(" in source.lines[sass.chains[number][1] - 1]
        assert source.lines[sass.chains[number][-1] - 1].startswith("    ")
        assert ptx.kinds[sass.ptx[number] - 1] == "mma"
        assert ptx.chains[sass.ptx[number] - 1] == sass.chains[number]
    assert not [line for pane in shown.panes for line in pane.lines if ".loc" in line or "//##" in line]
    assert 0 < max(sass.registers) <= record.resources.registers


def test_spills_are_found_and_linked_and_the_main_loop_is_the_one_of_the_source(cache: Cache) -> None:
    problem, config = SPILLING
    record = cache.get_or_compile(problem, family="tensor_core", config=config).record
    assert record.resources.spill_bytes > 0
    panes = _panes(linked_code(cache, record))
    source, sass = panes["Source"], panes["SASS"]
    spills = [number for number, kind in enumerate(sass.kinds) if kind == "spill"]
    assert spills
    assert any(sass.source[number] for number in spills)
    assert sass.loop is not None
    first, last = sass.loop
    # The compiler may place instructions that start copies outside of the loop's text, and jump there.
    assert {"mma", "shared"} <= set(sass.kinds[first - 1 : last])
    lines = {line for chain in sass.chains[first - 1 : last] for line in chain}
    assert [
        line for line in lines if "for (int step" in source.lines[line - 1] or "multiply_" in source.lines[line - 1]
    ]


def test_a_kernel_of_triton_comes_with_its_irs(cache: Cache) -> None:
    require_triton()
    record = cache.get_or_compile(GemmProblem(256, 256, 256, arch="sm_90"), compiler="triton").record
    shown = linked_code(cache, record)
    assert shown.notes == ()
    assert [pane.name for pane in shown.panes] == ["Source", "TTIR", "TTGIR", "LLIR", "PTX", "SASS"]
    source = shown.panes[0].lines
    for pane in shown.panes[1:]:
        lines = {pane.source[number] for number, kind in enumerate(pane.kinds) if kind == "mma"} - {0}
        assert [source[line - 1] for line in lines if "tl.dot" in source[line - 1]], pane.name


def test_a_kernel_of_another_template_is_shown_without_links_and_is_not_compiled(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may hold any text as source; none of it is compiled."""

    def never(*_: object) -> Compiled:
        raise AssertionError

    with open_cache(compiled_store) as cache:
        record = next(iter(cache.records()))
        render = rendering.render
        monkeypatch.setattr(rendering, "render", lambda *args: f"// another\n{render(*args)}")
        monkeypatch.setattr(Nvrtc, "compile", never)
        shown = linked_code(cache, record)
    assert [note for note in shown.notes if "makes another source of it" in note]
    assert not shown.is_linked
    assert [pane.name for pane in shown.panes] == ["Source", "PTX", "SASS"]
    assert all(pane.lines for pane in shown.panes)


def test_lines_of_other_machine_code_are_not_taken(compiled_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = Nvrtc.compile

    def changed(self: Nvrtc, source: str, arch: str) -> Compiled:
        made = compile_(self, source, arch)
        code = next(code for code in _code(made.cubin).values() if code)
        at = made.cubin.index(code)
        return msgspec.structs.replace(made, cubin=made.cubin[:at] + bytes([code[0] ^ 1]) + made.cubin[at + 1 :])

    with open_cache(compiled_store) as cache:
        monkeypatch.setattr(Nvrtc, "compile", changed)
        shown = linked_code(cache, next(iter(cache.records())))
    assert [note for note in shown.notes if "makes other machine code" in note]
    assert not shown.is_linked


def _code(cubin: bytes) -> dict[str, bytes]:
    from cache_engine.compilers.elf import code_of

    return code_of(cubin)
