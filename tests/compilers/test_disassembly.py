"""Machine code as text: counted, and made comparable."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from cache_engine.compilers import COMPILERS
from cache_engine.compilers.contents import find_tool
from cache_engine.compilers.disassembly import CLASSES, OTHER, comparable_lines, instruction_mix, sass
from cache_engine.kernels.select import choose
from cache_engine.kernels.source import render
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig

NVRTC = COMPILERS["nvrtc"]

TEXT = """\
\t.target\tsm_90
gemm:
.text.gemm:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_0) ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64] ;
        /*0030*/              @!PT LDS.128 R4, [R5] ;
.L_x_0:
        /*0040*/             @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R8, R6, R4 ;
        /*0060*/                   HMMA.16816.F32.BF16 R4, R8.reuse, R7, R4 ;
        /*0070*/                   CALL.REL.NOINC `($gemm$helper) ;
        /*1f80*/                   BRA `(.L_x_0);
        /*1f90*/                   NOP;
$gemm$helper:
        /*1fa0*/                   RET.REL.NODEC R6 `(gemm) ;
"""


def _compiled(problem: GemmProblem, config: KernelConfig | None = None, name: str = "") -> bytes:
    family, chosen = choose(problem, config=config)
    constants = family.constants(problem, chosen)
    if name:
        constants["KERNEL_NAME"] = name
    return NVRTC.compile(render(family.template, constants), problem.arch or "").cubin


def test_opcodes_are_counted_without_guards_modifiers_and_filling() -> None:
    mix = instruction_mix(TEXT)
    assert mix.opcodes == {
        "BRA": 2, "HMMA": 2, "CALL": 1, "LDC": 1, "LDGSTS": 1, "LDS": 1, "RET": 1, "UIADD3": 1,
    }  # fmt: skip
    assert list(mix.opcodes)[:2] == ["BRA", "HMMA"]
    assert mix.classes == {"HMMA": 2, "LDGSTS": 1, "LDS": 1, OTHER: 6}
    assert mix.total == 10


def test_comparable_lines_have_no_addresses_and_no_name() -> None:
    lines = comparable_lines(TEXT, "gemm")
    assert lines[:2] == ["LDC R1, c[0x0][0x28]", "@P0 BRA `(.L_x_0)"]
    assert lines[4] == ".L_x_0:"
    assert lines[-2:] == ["$kernel$helper:", "RET.REL.NODEC R6 `(kernel)"]
    assert len(lines) == 12


def test_text_without_instructions_has_none() -> None:
    assert instruction_mix("").classes == {OTHER: 0}
    assert comparable_lines("nothing\n", "gemm") == []


@pytest.mark.parametrize(
    ("problem", "classes"),
    [
        (GemmProblem(256, 256, 256, arch="sm_90"), "HMMA LDSM LDGSTS STG BAR"),
        (GemmProblem(64, 128, 64, dtype=DType.FP16, arch="sm_120"), "HMMA LDSM LDGSTS STG BAR"),
        (GemmProblem(256, 256, 256, dtype=DType.FP32, arch="sm_75"), "FFMA LDG STS LDS STG BAR"),
        (GemmProblem(64, 64, 64, dtype=DType.FP64, arch="sm_100"), "DFMA LDG STS LDS STG BAR"),
    ],
    ids=lambda value: value.arch if isinstance(value, GemmProblem) else value.split()[0],
)
def test_real_kernels_contain_the_instructions_of_their_family(problem: GemmProblem, classes: str) -> None:
    found = instruction_mix(sass(_compiled(problem))).classes
    assert set(classes.split()) <= set(found)
    assert all(found.values())
    # The work is done by one kind of arithmetic.
    assert len({"HMMA", "FFMA", "DFMA"} & set(found)) == 1


def test_the_unrolled_tile_is_counted_in_full() -> None:
    """A warp's tile of 32 × 16 and 32 deep takes 2 · 2 · 2 instructions of 16 × 8 × 16, in every copy of the loop."""
    problem = GemmProblem(64, 64, 4096, arch="sm_90")
    config = KernelConfig(64, 32, 32, 2, 2, 2)
    count = instruction_mix(sass(_compiled(problem, config))).classes["HMMA"]
    assert count % 8 == 0
    assert count > 0


def test_nvidias_other_disassembler_gives_the_same_counts(tmp_path: Path) -> None:
    """The one of cuobjdump prints with encodings, and in another form."""
    cubin = _compiled(GemmProblem(256, 256, 256, arch="sm_90"))
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    tool = find_tool("cuobjdump", "nvidia-cuda-cuobjdump")
    printed = subprocess.run(
        [tool, "-sass", tmp_path / "kernel.cubin"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"},
    ).stdout
    assert instruction_mix(printed) == instruction_mix(sass(cubin))
    words = re.findall(r"\bHMMA\.", printed)
    assert instruction_mix(printed).classes["HMMA"] == len(words)


def test_kernels_that_differ_in_name_alone_compare_equal() -> None:
    problem = GemmProblem(64, 64, 64, dtype=DType.FP32, arch="sm_90")
    texts = {name: sass(_compiled(problem, name=name)) for name in ("first", "another_name")}
    assert texts["first"] != texts["another_name"]
    first, second = (comparable_lines(text, name) for name, text in texts.items())
    assert first == second
    assert len(first) > 100


def test_every_class_is_named_once() -> None:
    assert len(set(CLASSES)) == len(CLASSES)
