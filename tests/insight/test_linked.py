"""Readers of linked code, on short texts of the kind that the tools print."""

from __future__ import annotations

import pytest

from cache_engine.insight.linked import marks
from cache_engine.insight.linked.kernel import read_llvm, read_mlir, read_ptx
from cache_engine.insight.linked.machine_code import read_sass
from cache_engine.insight.linked.marks import PTX, SOURCE, PaneText, folds_of, kinds_of, linked, main_loop

_MANY = 200_000
# Each took minutes to years to read.
HOSTILE = {
    "spaces": " " * _MANY + "x",
    "spaces behind a location": "a loc(unknown)" + " " * _MANY + "x",
    "letters": f"!1 = !DILocation({'a' * _MANY})",
    "loads": "load " * _MANY,
    "jumps": "bra!" * _MANY,
    "loops": "\n".join([f"$L{n}:" for n in range(20_000)] + [f" bra $L{n};" for n in range(20_000)]),
    "circle": "#loc = loc(callsite(#loc at #loc))\n" + "x loc(#loc)\n" * (_MANY // 10),
    "circle of names": '#loc = loc("a"(#loc))\nx loc(#loc)',
    "circle of fused places": "#loc = loc(fused[#loc])\nx loc(#loc)",
    "circle of aliases": "#loc = loc(#loc1)\n#loc1 = loc(#loc)\nx loc(#loc)",
    "circle of scopes": "x, !dbg !1\n!1 = !DILocation(line: 1, scope: !2, inlinedAt: !1)\n!2 = !DIScope(scope: !2)",
}

PTX_TEXT = """\
.version 9.5
.visible .entry k(
)
{
	.reg .b32 	%r<3>;

	.loc	1 39 0
$L__func_begin0:
	.loc	1 71 16
	mov.u32 	%r1, %ctaid.x;
	.loc	2 43 13, function_name $L__info_string0, inlined_at 1 72 5
$L__BB0_1:
	mma.sync.aligned.m16n8k16 {%r1}, {%r1}, {%r1}, {%r2};
	@%p1 bra 	$L__BB0_1;
	ret;

}
	.file	1 "/home/a/kernel.py"
	.file	2 "/lib" "standard.py"
	.section	.debug_str
	{
$L__info_string0:
.b8 95,90,0
	}
"""

SASS_TEXT = """\
	.section	.text.k,"ax",@progbits
.text.k:
	//## File "/home/a/kernel.py", line 39
	//## File ".nv_debug_ptx_txt", line 10
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R9, SR_CTAID.X ;
.L_x_1:
	//## File "/lib/standard.py", line 43 inlined at "/home/a/kernel.py", line 72
	//## File "/home/a/kernel.py", line 72
	//## File ".nv_debug_ptx_txt", line 13
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R2, R8 ;
	//## File ".nv_debug_ptx_txt", line 14
        /*0030*/              @!P6 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/                   NOP;
"""

REGISTERS = """\
                                        // | GPR        | PRED   |
                                        // |   # 0123   | # 0    |
.text.k:                                // |            |        |
        /*0000*/      LDC R1, c[0x0][0x28] ;   // |   3  ^     | 2      |
        /*0010*/      S2R R9, SR_CTAID.X ;     // |   4 :      | 2      |
        /*0020*/      HMMA R8, R4, R2, R8 ;    // |  16 ::     |        |
        /*0030*/      @!P6 BRA `(.L_x_1) ;     // |            | 1 v    |
"""


def test_ptx_loses_what_it_says_of_lines_and_each_instruction_knows_its_line() -> None:
    text, now_at = read_ptx(PTX_TEXT)
    assert not [line for line in text.lines if ".loc" in line or ".file" in line or "info_string" in line]
    assert text.lines[-1] == "}"
    places = dict(zip(map(str.strip, text.lines), text.chains, strict=True))
    assert places["mov.u32 \t%r1, %ctaid.x;"] == (("/home/a/kernel.py", 71),)
    assert places["ret;"] == (("lib/standard.py", 43), ("/home/a/kernel.py", 72))
    assert places["$L__BB0_1:"] == places[".reg .b32 \t%r<3>;"] == ()
    raw = PTX_TEXT.splitlines()
    for number, line in enumerate(now_at):
        assert not line or raw[number].rstrip() == text.lines[line - 1]
    assert sum(map(bool, now_at)) == len(text.lines)


def test_machine_code_knows_its_line_the_line_that_it_was_put_into_and_its_ptx() -> None:
    _, now_at = read_ptx(PTX_TEXT)
    text = read_sass(SASS_TEXT, REGISTERS, now_at)
    assert not [line for line in text.lines if "//##" in line]
    own, inlined = (("/home/a/kernel.py", 39),), (("/lib/standard.py", 43), ("/home/a/kernel.py", 72))
    assert list(text.chains) == [(), (), own, own, (), inlined, inlined, (), inlined]
    ptx = read_ptx(PTX_TEXT)[0].lines
    assert [ptx[number - 1].split()[0] if number else "" for number in text.ptx] == [
        *("", "", "mov.u32", "mov.u32", "", "mma.sync.aligned.m16n8k16", "@%p1", "", "@%p1"),
    ]
    assert list(text.registers) == [0, 0, 3, 4, 0, 16, 0, 0, 0]


def test_registers_of_other_code_are_left_out() -> None:
    other = REGISTERS.replace("/*0020*/", "/*0028*/")
    assert list(read_sass(SASS_TEXT, other).registers) == []
    assert list(read_sass(SASS_TEXT, REGISTERS.replace("GPR", "???")).registers) == []


def test_a_line_of_a_library_counts_as_the_line_that_called_it() -> None:
    text, now_at = read_ptx(PTX_TEXT)
    shown = linked([PaneText(SOURCE, "python", ["x"] * 80), text, read_sass(SASS_TEXT, "", now_at)])
    assert shown.is_linked
    panes = {pane.name: pane for pane in shown.panes}
    assert panes["SASS"].chains[2:4] == ((39,), (39,))
    assert panes["SASS"].source == (0, 0, 39, 39, 0, 72, 72, 0, 72)
    assert panes[SOURCE].source == tuple(range(1, 81))
    assert 72 in panes[PTX].source


def test_code_without_lines_is_not_linked() -> None:
    plain = "\n".join(line for line in SASS_TEXT.splitlines() if "//##" not in line)
    shown = linked([PaneText(SOURCE, "cuda", ["x"]), read_sass(plain)])
    assert not shown.is_linked
    assert shown.panes[1].ptx == ()


MLIR = """\
#blocked = #ttg.blocked<{order = [1, 0]}>
#loc = loc("k.py":39:1)
module {
  tt.func public @k(%a: !tt.ptr<bf16> loc("a"(#loc))) attributes {noinline = false} {
    %x = arith.addi %m, %c : i32 loc(#loc88)
    %acc = scf.for %i = %c0 to %c64 step %c1 iter_args(%s = %cst) -> (tensor<4xf32>)  : i32 {
      %y = tt.dot %p, %q, %s : tensor<4xf32> loc(#loc3)
      scf.yield %y : tensor<4xf32> loc(#loc4)
    } loc(#loc5)
    tt.return loc(#loc6)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/lib/standard.py":43:13)
#loc2 = loc("k.py":71:16)
#loc3 = loc("total"(#loc2))
#loc4 = loc(fused[#loc2, #loc1])
#loc5 = loc(fused<"a, b">[#loc2, #loc1])
#loc6 = loc(callsite(#loc6 at #loc6))
#loc88 = loc(callsite(#loc1 at #loc3))
"""


def test_mlir_is_read_through_its_aliases_and_a_circle_of_them_ends() -> None:
    text = read_mlir("TTGIR", MLIR)
    assert not [line for line in text.lines if "#loc" in line and "tt.func" not in line]
    places = {line.split()[0]: chain for line, chain in zip(text.lines, text.chains, strict=True)}
    assert places["%x"] == (("/lib/standard.py", 43), ("k.py", 71))
    assert places["%y"] == places["scf.yield"] == (("k.py", 71),)
    assert places["tt.return"] == ()
    assert main_loop("mlir", text.lines, kinds_of("mlir", text.lines)) == (5, 8)


LLVM = """\
; ModuleID = 'x'
source_filename = "x"
target triple = "nvptx64"
define ptx_kernel void @k(ptr %0) !dbg !6 {
  %2 = add i32 %0, 127, !dbg !12
  br label %3, !dbg !15
3:                                                ; preds = %3, %1
  %4 = tail call { float } asm "mma.sync.aligned.m16n8k16", "=r"(i32 %2), !dbg !15
  br i1 %5, label %3, label %6, !dbg !99
6:                                                ; preds = %3
  ret void, !dbg !98
}
!1 = !DIFile(filename: "k.py", directory: "/home/a")
!6 = distinct !DISubprogram(name: "k(", scope: !1, file: !1, line: 39)
!12 = !DILocation(line: 43, column: 13, scope: !13, inlinedAt: !15)
!13 = distinct !DILexicalBlockFile(scope: !6, file: !14, discriminator: 0)
!14 = !DIFile(filename: "standard.py", directory: "/lib")
!15 = !DILocation(line: 71, column: 16, scope: !16)
!16 = distinct !DILexicalBlock(scope: !6)
!98 = !DILocation(line: 1, column: 1, scope: !16, inlinedAt: !98)
!99 = !DILocation(line: 99999999999999999999, column: 1, scope: !16)
"""


def test_llvm_is_read_through_its_nodes_and_a_circle_of_them_ends() -> None:
    text = read_llvm(LLVM)
    assert not [line for line in text.lines if line.startswith(" ") and "!dbg" in line]
    assert text.chains[4] == (("/lib/standard.py", 43), ("/home/a/k.py", 71))
    assert text.chains[5] == (("/home/a/k.py", 71),)
    assert text.chains[8] == ()
    assert set(text.chains[10]) == {("/home/a/k.py", 1)}
    assert main_loop("llvm", text.lines, kinds_of("llvm", text.lines)) == (7, 9)


def test_the_loop_that_multiplies_is_found_inside_of_the_one_around_it() -> None:
    code = [
        ".L_x_1:",
        "        /*0000*/                   LDG.E R2, desc[UR4][R2.64] ;",
        ".L_x_2:",
        "        /*0010*/                   FFMA R8, R4, R2, R8 ;",
        "        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R2, R8 ;",
        "        /*0030*/              @!P6 BRA `(.L_x_2) ;",
        "        /*0040*/               @P1 BRA `(.L_x_1) ;",
        ".L_x_3:",
        "        /*0050*/                   STL [R1], R2 ;",
        '        /*0060*/                   LDL.LU R2, [R1+0x8]  (*"SpillRefill"*);',
        "        /*0070*/               @P1 BRA `(.L_x_3) ;",
    ]
    kinds = kinds_of("sass", code)
    assert kinds == ("", "global", "", "fma", "mma", "branch", "branch", "", "local", "spill", "branch")
    assert main_loop("sass", code, kinds) == (3, 6)
    assert main_loop("sass", code[7:], kinds[7:]) is None


def test_runs_of_declarations_fold_and_code_does_not() -> None:
    lines = ["#define A 1", "#define B 2", "", "#define C 3", "", "int f();", "#define D", "x"]
    assert folds_of("cuda", lines) == ((1, 4),)
    assert folds_of("text", lines) == ()
    assert folds_of("ptx", [".version 9.5", ".target sm_90", ".global .u8 X;"]) == ((1, 3),)


def test_hostile_texts_are_read_without_an_error() -> None:
    """And link no line to another."""
    digits = "9" * 5000
    for text in (f".loc {digits} {digits} 1\nx;", f'//## File "a", line {digits}\n', "\0\x1b[31m", "}" * 1000):
        for pane in (read_ptx(text)[0], read_sass(text, text, [1]), read_mlir("TTIR", text), read_llvm(text)):
            assert (len(pane.lines), {*pane.chains}) == (len(text.splitlines()), {()})
    assert read_mlir("TTIR", f'#loc1 = loc("f":{digits}:1)\n%x loc(#loc1)').chains == [()]


def test_each_function_starts_without_a_line_and_a_line_of_ptx_that_is_not_there_is_none() -> None:
    marked = SASS_TEXT.replace('ptx_txt", line 10', 'ptx_txt", line 999')
    other = ".text.other:\n        /*0000*/                   EXIT ;\n"
    text = read_sass(marked + other, "", read_ptx(PTX_TEXT)[1])
    assert text.chains[-1] == ()
    assert list(text.ptx[2:4]) == [0, 0]
    assert text.ptx[-1] == 0


def test_ptx_behind_debug_sections_is_read() -> None:
    text, _ = read_ptx(f"{PTX_TEXT}\t.section\t.debug_abbrev\n\t{{\n.b8 1\n\t}}\n.visible .entry other()\n")
    assert text.lines[-1] == ".visible .entry other()"
    assert not [line for line in text.lines if line.startswith(".b8")]


def test_the_kernels_own_file_is_the_outermost_however_much_comes_from_a_library() -> None:
    own, library = "/home/a/kernel.py", "/lib/standard.py"
    chains = [((library, 5), (own, 72)), ((library, 6), (own, 73)), ((own, 74),)]
    (pane,) = linked([PaneText(PTX, "ptx", ["a;", "b;", "c;"], chains)]).panes
    assert pane.source == (72, 73, 74)


def test_a_short_loop_that_hardly_multiplies_is_not_the_main_loop() -> None:
    multiply = "        /*0010*/                   HMMA.16816.F32.BF16 R8, R4, R2, R8 ;"
    jump = "        /*0030*/              @!P6 BRA `(.L_x_{}) ;"
    code = [".L_x_1:", *[multiply] * 8, jump.format(1), ".L_x_2:", multiply, jump.format(2)]
    assert main_loop("sass", code, kinds_of("sass", code)) == (1, 10)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_in_time(name: str) -> None:
    """It may be of a pack, or of a framework's cache; a page reads it, and nothing ends that."""
    text = HOSTILE[name] + "\n\tfma.rn.f32 %f1, %f2, %f3, %f4;\n"
    found = linked([read_mlir("TTIR", text), read_llvm(text), read_ptx(text)[0]]).panes
    assert all(len(pane.kinds) == len(pane.lines) > 0 for pane in found)


def test_of_a_text_beyond_all_measure_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST_CHARACTERS", 30)
    assert read_ptx("\tfma.rn.f32 %f1;\n" * 100)[0].lines == ["\tfma.rn.f32 %f1;", "\tfma.rn.f32 %"]


def test_a_place_without_a_file_has_no_name() -> None:
    assert read_llvm("  ret void, !dbg !7\n!7 = !DILocation(line: 3, scope: !4)").chains[0] == (("", 3),)


def test_a_long_line_has_its_location_and_its_class() -> None:
    """LLVM writes a product of warp groups as one call of some thousand characters."""
    call = f'  call void asm "wgmma.mma_async {", ".join(f"${n}" for n in range(2000))}"(), !dbg !7'
    nodes = '!7 = !DILocation(line: 3, scope: !4)\n!4 = !DISubprogram(file: !1)\n!1 = !DIFile(filename: "a")'
    text = read_llvm(f"{call}\n{nodes}")
    assert text.chains[0] == (("a", 3),)
    assert kinds_of("llvm", text.lines)[0] == "mma"
