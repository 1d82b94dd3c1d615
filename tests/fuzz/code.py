"""What is fuzzed of code: the texts that a kernel of another framework, or a forged one of a store, may have."""

from __future__ import annotations

from pathlib import Path

from cache_engine.compilers.disassembly import comparable_lines, instruction_mix
from cache_engine.insight.linked.kernel import read_llvm, read_mlir, read_ptx
from cache_engine.insight.linked.machine_code import read_sass
from cache_engine.insight.linked.marks import linked

_MLIR = b"""#loc = loc("a.py":3:0)
#loc1 = loc(callsite(#loc at #loc2))
#loc2 = loc("x"(fused<"f">[#loc, #loc1]))
scf.for %i = %a to %b {
  %0 = tt.dot %1, %2 loc(#loc1)
} loc(unknown)
"""
_LLVM = b"""define void @f() !dbg !4 {
a:
  %1 = call float @llvm.fma.f32(float 1.0), !dbg !7
  br i1 %c, label %a, label %b, !dbg !7
}
!1 = !DIFile(filename: "a.py", directory: "/x")
!4 = distinct !DISubprogram(name: "f", scope: !1, file: !1, line: 2)
!7 = !DILocation(line: 3, column: 1, scope: !4, inlinedAt: !7)
"""
_PTX = b""".file 1 "/x" "a.py"
$L__BB0_1:
\t.loc 1 3 5, function_name $info, inlined_at 1 9 2
\tfma.rn.f32 %f1, %f2, %f3, %f4;
\t@%p1 bra $L__BB0_1;
.section .debug_str { }
}
"""
_SASS = b"""\t.target\tsm_90
  // | GPR   | PRED |
  // |   # 0123 | # 0 |
\t.text.k:
.L_x_1:
\t//## File "a.py", line 3 inlined at "b.py", line 9
        /*0000*/  FFMA R1, R2, R3, R4 ;  // |   4 :^vv |     |
        /*0010*/  @P0 BRA `(.L_x_1) ;  // |   2 :x   | 1 v |
"""


def seeds(_: Path) -> list[bytes]:
    """A text of each language."""
    return [_MLIR, _LLVM, _PTX, _SASS]


def read(data: bytes, _: Path) -> None:
    """Reads it as each, and finds what stands out in it; every pane has as many marks as lines."""
    text = data.decode("utf-8", "replace")
    ptx, ptx_lines = read_ptx(text)
    panes = linked([read_mlir("TTIR", text), read_llvm(text), ptx, read_sass(text, text, ptx_lines)]).panes
    for pane in panes:
        count = len(pane.lines)
        marked = (pane.chains, pane.ptx, pane.registers, pane.stalls, pane.kinds)
        assert all(len(marks) in (0, count) for marks in marked)
        assert all(1 <= line <= count for value in pane.values for line in (*value.defined, *value.used))
        assert all(1 <= first <= last <= count for first, last in (*pane.folds, *([pane.loop] if pane.loop else [])))


def sass_seeds(_: Path) -> list[bytes]:
    """A text as nvdisasm prints it without lines."""
    return [
        b"\t.text.gemm_x:\n.L_x_1:\n        /*0000*/  @P0 IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;\n"
        b"        /*0010*/  HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n        /*0020*/  EXIT ;\n"
    ]


def read_sass_alone(data: bytes, _: Path) -> None:
    """Counts its instructions, and compares it with its beginning."""
    text = data.decode("utf-8", "replace")
    instruction_mix(text)
    comparable_lines(text, text[:20])
