"""The table of machine code in docs/records/machine-code.md: what is read of a kernel's code, and whether it holds."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig

_DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(_DOCS))
written = import_module("write_machine_code")
sys.path.remove(str(_DOCS))
PAGE = written.PAGE.read_text(encoding="utf-8")
_GROUPS = """
        /*0100*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0110*/                   UTMALDG.3D [UR8], [UR4] ;
        /*0120*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0130*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0140*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24, gsb0 ;
        /*0150*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3 ;
        /*0160*/                   NOP ;
        /*0170*/              @!P0 BRA `(.L_x_2) ;
        /*0180*/                   STG.E.128 desc[UR6][R2.64], R4 ;
"""
_WARPS = """
.L_x_1:
        /*0110*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR6][R4.64] ;
        /*0120*/                   LDGSTS.E.BYPASS.128 [R2+0x800], desc[UR6][R6.64] ;
        /*0128*/                   LDGDEPBAR ;
        /*0130*/                   LDG.E.U16 R9, desc[UR6][R8.64] ;
        /*0140*/                   HMMA.16816.F32.BF16 R24, R12, R16, R24 ;
        /*0150*/                   HMMA.16816.F32.BF16 R28, R12, R18, R28 ;
        /*0160*/               @P0 BRA `(.L_x_1) ;
"""


def test_of_warp_groups_a_product_is_of_four_warps() -> None:
    loop = written.loop_of(_GROUPS, KernelConfig(128, 256, 64, 8, 1, 4))
    assert loop == written.Loop(depth=32, products=2, instructions=4, multiply_adds=2 * 64 * 256 * 16 // 4)
    assert written.copies_of(_GROUPS, [16384, 32768, 16384]) == "boxes of 16 and 32 KiB"


def test_of_warps_a_product_is_of_one() -> None:
    loop = written.loop_of(_WARPS, KernelConfig(32, 16, 32, 2, 1, 3))
    assert loop == written.Loop(depth=16, products=2, instructions=7, multiply_adds=2 * 16 * 8 * 16)
    assert written.copies_of(_WARPS) == "16 B, 2 B to registers"
    assert written.loop_of(_WARPS.replace("HMMA", "FADD"), KernelConfig(32, 16, 32, 2, 1, 3)) is None


def test_a_table_takes_the_place_of_the_old_one() -> None:
    page = "before\n<!-- machine code -->\nold\n<!-- end -->\nafter\n"
    assert written.page(page, "new\n") == page.replace("old", "new")
    assert PAGE.count("<!-- machine code -->") == 1


@pytest.mark.soak
@pytest.mark.parametrize("family", ["tensor_core", "hopper"])
def test_the_table_is_of_the_code_that_is_made_now(family: str, tmp_path: Path) -> None:
    made = re.search(r"NVRTC ([\d.]+), Triton", PAGE)
    assert made is not None
    try:
        if version("nvidia-cuda-nvrtc") != made[1]:
            pytest.skip("another NVRTC than that of the table")
    except PackageNotFoundError:
        pytest.skip("no NVRTC")
    with open_cache(tmp_path / "store", durability="fast") as cache:
        kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048, arch="sm_90a"), family=family)
        row = " | ".join(written.cells(kernel, cache.text(kernel.record, "sass")))
    assert f"| {row} |" in PAGE, "python docs/write_machine_code.py"
