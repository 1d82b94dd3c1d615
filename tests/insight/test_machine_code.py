"""What nvdisasm says of registers and of the encoding, on short texts and on code that is really compiled."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.disassembly import register_table, sass
from cache_engine.insight.linked.kernel import linked_code
from cache_engine.insight.linked.machine_code import read_sass
from cache_engine.insight.linked.marks import PaneText, Value, cycles_of, linked
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import DType

Lines = tuple[tuple[str, str | None, str | None], ...]

# Each line: its text, and what it does to R0 to R3 and P0.
_LINES: Lines = (
    ("/*0000*/ S2R R0, SR_TID.X ;", "^", ""),
    ("/*0010*/ MOV R1, RZ ;", ":^", ""),
    (".L_x_0:", None, None),
    ("/*0020*/ FFMA R2, R1, R0, R0 ;", "vv^", ""),
    ("/*0030*/ IADD3 R1, R1, 0x1, RZ ;", ":x:", ""),
    ("/*0040*/ ISETP.NE.AND P0, PT, R1, R0, PT ;", "vv:", "^"),
    ("/*0050*/ LDGSTS.E [R1], desc[UR4][R0.64], !P0 ;", "vv:", "x"),
    ("/*0060*/ @P0 MOV R2, R3 ;", "::^", "v"),
    ("/*0070*/ @P0 BRA `(.L_x_0) ;", ":::", "v"),
    ("/*0080*/ STG.E desc[UR4][R0.64], R2 ;", "v v", ""),
    ("/*0090*/ MOV R0, RZ ;", "^", ""),
    ("/*00a0*/ EXIT ;", "", ""),
)


# Two paths that never meet.
_PATHS: Lines = (
    ("/*0000*/ MOV R1, 0x1 ;", " ^", ":"),
    ("/*0010*/ @P0 BRA `(.L_x_1) ;", " :", "v"),
    ("/*0020*/ MOV R1, 0x2 ;", " ^", ""),
    ("/*0030*/ BRA `(.L_x_2) ;", " :", ""),
    (".L_x_1:", None, None),
    ("/*0040*/ STS [UR4], R1 ;", " v", ""),
    ("/*0050*/ EXIT ;", "", ""),
    (".L_x_2:", None, None),
    ("/*0060*/ STS [UR4], R1 ;", " v", ""),
    ("/*0070*/ EXIT ;", "", ""),
)


def _printed(target: str = "sm_90", stall: int = 5, lines: Lines = _LINES) -> str:
    rows = [f"\t.target\t{target}", f"{'':90}// | GPR     | PRED |", f"{'':90}// |   # 0123 | # 0 |"]
    for text, registers, guards in lines:
        if registers is None:
            rows.append(text)
            continue
        rows.append(f"        {text:60} /* 0x{0x0:016x} */ // |          |      |")
        rows.append(f"{'':70}/* 0x{1 << 60 | stall << 41:016x} */ // |   4 {registers:4} | 1 {guards} |")
    return "\n".join(rows)


def _text(lines: Lines) -> str:
    return "\n".join(text if registers is None else f"        {text}" for text, registers, _ in lines)


TEXT = _text(_LINES)


def test_the_values_of_a_loop_join_where_its_paths_meet_and_end_where_they_are_written_anew() -> None:
    values = {(value.register, *value.defined): value.used for value in read_sass(TEXT, _printed()).values}
    assert values == {
        ("R0", 1): (4, 6, 7, 10),
        ("R0", 11): (),
        ("R1", 2, 5): (4, 5, 6, 7),  # the old value enters the loop and comes back from its end
        ("R2", 4, 8): (10,),  # under a guard, the old value may stay
        ("P0", 6): (7, 8, 9),  # nvdisasm marks the guard of LDGSTS as written
    }


def test_values_of_paths_that_do_not_meet_stay_apart() -> None:
    values = read_sass(_text(_PATHS), _printed(lines=_PATHS)).values
    assert [value for value in values if value.register == "R1"] == [Value("R1", (1,), (6,)), Value("R1", (3,), (9,))]


def test_stalls_are_read_of_known_targets_only() -> None:
    assert list(read_sass(TEXT, _printed(stall=11)).stalls) == [11, 11, -1, *[11] * 9]
    future = read_sass(TEXT, _printed("sm_140"))
    assert (list(future.stalls), future.registers[0], len(future.values)) == ([], 4, 5)


def test_a_table_of_other_code_or_of_another_form_is_left_out() -> None:
    for printed in ("", "x", _printed().replace("/*0020*/", "/*0028*/"), _printed() + "\n  /*00b0*/ NOP ; // | |"):
        text = read_sass(TEXT, printed)
        assert (text.registers, text.stalls, text.values) == ((), (), ())
    skips = read_sass(TEXT, _printed().replace("# 0123", "# 0124"))
    assert ({value.register for value in skips.values}, list(skips.registers)) == ({"P0"}, [])


def test_the_cycles_of_the_loop_are_the_sums_of_its_stalls_by_class() -> None:
    kinds, stalls = ("mma", "", "mma", "branch", "mma"), (2, 3, -1, 5, 7)
    assert cycles_of(kinds, stalls, (1, 4)) == (("mma", 1, 2), ("branch", 1, 5), ("", 1, 3))
    assert cycles_of(kinds, stalls, None) == cycles_of(kinds, (), (1, 4)) == ()


@pytest.mark.parametrize("name", ["labels", "columns", "marks", "forged heads"])
def test_a_hostile_table_is_read_in_time(name: str) -> None:
    many = 20_000
    head = f"// | GPR |\n// |    # {'0123456789' * 25} |\n"
    live = f"// |  250 {'x' * 250} |\n"
    printed = {
        "labels": head + "".join(f".L_{at}:\n/*{at:04x}*/ BRA `(.L_0) ; {live}" for at in range(many)),
        "columns": "// | GPR " + "| # 0 " * many + "\n" + "// |" + " # 0 |" * many,
        "marks": head + "/*0000*/ X ; // | 1 " + "^v" * many + "|\n",
        "forged heads": head * many,
    }[name]
    text = "\n".join(f"  /*{at:04x}*/ X ;" for at in range(many))
    (pane,) = linked([read_sass(text, printed)]).panes
    assert len(pane.lines) == many
    assert name != "labels" or (pane.values == () and pane.registers[0] == 250)


# ---- Code that is really compiled ----

_REGISTER = re.compile(r"\b(?:UR|R|UP|P)\d+\b")
_CODE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?P<text>(?:@\S+ )?(?P<opcode>\w+)[^;]*)")
# These take four cycles or more on every target; the upper half of a pair is read a cycle later.
_FIXED = {"FFMA", "IMAD", "IADD3", "IADD", "LOP3", "LEA", "SHF", "MOV", "SEL", "VIADD", "ISETP"}
_SMALL = """
extern "C" __global__ void k(float* p, const int* q, int n) {
  float x = p[threadIdx.x]; int y = q[threadIdx.x];
  for (int i = 0; i < n; i++) { x = x * x + 0.5f; x = x * p[i] + x; y = (y * 3 + i) ^ (y >> 2); if (y > n) x += y; }
  p[threadIdx.x] = x + y;
}
"""


def _read(cubin: bytes) -> PaneText:
    return read_sass(sass(cubin), register_table(cubin))


def _targets() -> list[Any]:
    """Daily, one target of each major version; in the long run all but those whose encoding nobody describes."""
    known = {
        name: target.major for name, target in ARCHITECTURES.items() if name[3:6].rstrip("af") not in {"70", "107"}
    }
    daily = {major: name for name, major in known.items()}
    return [name if name in daily.values() else pytest.param(name, marks=pytest.mark.soak) for name in known]


@pytest.mark.parametrize("arch", _targets())
def test_no_result_is_used_before_it_is_there(arch: str) -> None:
    """So the bits that we take for the stall are the stall, on this target too."""
    text = _read(COMPILERS["nvrtc"].compile(_SMALL, arch).cubin)
    found = [_CODE.match(line) for line in text.lines]
    at = [0, *accumulate(max(stall, 0) for stall in text.stalls)]
    waits = [
        at[used - 1] - at[defined - 1]
        for value in text.values
        for defined in value.defined
        for used in value.used
        if used > defined and (code := found[defined - 1]) is not None and code["opcode"] in _FIXED
    ]
    assert len(waits) > 20
    assert min(waits) in (3, 4, 5)
    assert max(text.stalls) <= 15
    assert sum(row[2] for row in linked([text]).panes[0].cycles) > 10


def test_each_register_that_an_instruction_names_is_part_of_a_value_with_a_definition(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        record = next(record for record in cache.records() if record.problem.dtype == DType.BF16)
        pane = next(pane for pane in linked_code(cache, record).panes if pane.name == "SASS")
    named = {(line, value.register) for value in pane.values for line in (*value.defined, *value.used)}
    for number, line in enumerate(pane.lines, 1):
        if found := _CODE.match(line):
            assert {(number, register) for register in _REGISTER.findall(found["text"])} <= named, line
    assert not [value for value in pane.values if not value.defined]
    # A sum of the main loop: made zero before it, added to in it, and used behind it.
    assert pane.loop is not None
    first = next(number for number in range(*pane.loop) if pane.kinds[number - 1] == "mma")
    sums = re.findall(r"\bR\d+", pane.lines[first - 1])[-1]
    value: Value = next(each for each in pane.values if each.register == sums and first in each.used)
    assert value.defined[0] < pane.loop[0] <= value.defined[-1] <= pane.loop[1] < value.used[-1]
    assert [row[:2] for row in pane.cycles if row[0] == "mma"] == [
        ("mma", pane.kinds[pane.loop[0] - 1 : pane.loop[1]].count("mma"))
    ]
