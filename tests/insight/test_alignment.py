"""Machine code of two kernels side by side."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.components.comparison import difference_html
from cache_engine.insight.alignment import (
    CHANGED,
    MOVED,
    OPERANDS,
    SAME,
    LinePair,
    Part,
    aligned,
    as_diff,
    changed_share,
    runs,
)

LOOP = (
    "MOV R1, c[0x0][0x28]", ".L_x_1:", "LDS R4, [R2+0x10]", "HMMA.16816.F32 R8, R4, R6, R8", "IADD3 R2, R2, 0x20, RZ",
    "@P0 BRA `(.L_x_1)", "STG.E desc[UR4][R2.64], R8", "EXIT",
)  # fmt: skip
LINES = st.lists(st.sampled_from([*LOOP, "NOP", "@!P1 FFMA R1, R2, R3, R4", ".L_x_2:", "BRA `(.L_x_2)"]), max_size=30)


def _sass(lines: Sequence[str]) -> str:
    numbered = (line if line.endswith(":") else f"        /*{at:04x}*/   {line} ;" for at, line in enumerate(lines))
    return "".join(f"{line}\n" for line in numbered)


def _aligned(first: Sequence[str], second: Sequence[str]) -> list[Part]:
    return aligned(_sass(first), "", _sass(second), "")


def _kinds(part: Part) -> list[str]:
    return [pair.kind for pair in part.pairs]


def test_other_registers_and_labels_are_no_difference() -> None:
    renamed = [
        "MOV R9, c[0x0][0x28]", ".L_x_7:", "LDS R14, [R12+0x10]", "HMMA.16816.F32 R18, R14.reuse, R16, R18",
        "IADD3 R12, R12, 0x20, RZ", "@P3 BRA `(.L_x_7)", "STG.E desc[UR6][R12.64], R18", "EXIT",
    ]  # fmt: skip
    parts = _aligned(LOOP, renamed)
    assert [part.name for part in parts] == ["before the loops", "loop", "after the loops"]
    assert changed_share(parts) == 0
    assert {kind for part in parts for kind in _kinds(part)} == {SAME}


def test_a_loop_is_compared_with_a_loop() -> None:
    """Although the code before it has become longer than the loop."""
    parts = _aligned(LOOP, ["LDS R4, [R2+0x10]"] * 9 + list(LOOP))
    assert [(part.name, len(part.pairs)) for part in parts] == [
        ("before the loops", 10), ("loop", 5), ("after the loops", 2),
    ]  # fmt: skip
    assert _kinds(parts[0]) == [*[CHANGED] * 9, SAME]
    assert _kinds(parts[1]) == [SAME] * 5


def test_lines_that_moved_do_not_count_as_changed() -> None:
    """Each only as often as both have it."""
    (part,) = _aligned(["LDS R1, [R2]", "EXIT", "BAR"], ["EXIT", "BAR", "LDS R5, [R6]", "LDS R7, [R8]"])
    assert [(pair.kind, pair.first, pair.second) for pair in part.pairs if pair.kind != SAME] == [
        (MOVED, "LDS R1, [R2]", None), (MOVED, None, "LDS R5, [R6]"), (CHANGED, None, "LDS R7, [R8]"),
    ]  # fmt: skip
    assert changed_share([part]) == 0
    assert list(as_diff(part)) == [
        "@@ code: 1 of 5 lines differ, 2 moved @@", "<LDS R1, [R2]", " EXIT", " BAR", ">LDS R5, [R6]", "+LDS R7, [R8]",
    ]  # fmt: skip


def test_an_opcode_with_another_constant_stands_next_to_its_like() -> None:
    (part,) = _aligned(["IADD3 R2, R2, 0x20, RZ", "EXIT"], ["IADD3 R2, R2, 0x40, RZ", "EXIT"])
    assert part.pairs[0] == LinePair(OPERANDS, "IADD3 R2, R2, 0x20, RZ", "IADD3 R2, R2, 0x40, RZ")
    assert changed_share([part]) == 0.5


def test_the_trap_at_the_end_is_no_loop() -> None:
    (part,) = _aligned(["EXIT", ".L_x_1:", "BRA `(.L_x_1)"], ["EXIT"])
    assert part.name == "code"


def test_one_instruction_and_its_branch_are_a_loop() -> None:
    short = [".L_x_1:", "IADD3 R2, R2, 0x20, RZ", "@P0 BRA `(.L_x_1)", "EXIT"]
    assert [(part.name, len(part.pairs)) for part in _aligned(short, short)] == [("loop", 3), ("after the loops", 1)]


def test_loops_that_overlap_are_one_and_end_where_the_later_does() -> None:
    both = [
        ".L_x_1:", "LDS R4, [R2]", ".L_x_2:", "IADD3 R2, R2, 0x20, RZ", "@P0 BRA `(.L_x_1)", "LDS R6, [R2]",
        "@P1 BRA `(.L_x_2)", "STG.E [R2], R4", "EXIT",
    ]  # fmt: skip
    assert [(part.name, len(part.pairs)) for part in _aligned(both, both)] == [("loop", 7), ("after the loops", 2)]


def test_far_from_a_difference_lines_are_left_out() -> None:
    part = Part("loop", (*[LinePair(SAME, "A", "A")] * 9, LinePair(CHANGED, "B", None), LinePair(SAME, "C", "C")))
    assert [(near, len(pairs)) for near, pairs in runs(part, 2)] == [(False, 7), (True, 4)]


@given(LINES, LINES)
def test_every_line_of_both_is_there_once_and_in_order(first: list[str], second: list[str]) -> None:
    parts = _aligned(first, second)
    pairs = [pair for part in parts for pair in part.pairs]
    assert [pair.first for pair in pairs if pair.first is not None] == [line for line in first if line != "NOP"]
    assert [pair.second for pair in pairs if pair.second is not None] == [line for line in second if line != "NOP"]
    assert [pair for part in parts for _, group in runs(part, 3) for pair in group] == pairs


def test_names_of_symbols_become_no_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    shown = difference_html([Part("code", (LinePair(CHANGED, hostile, None),))], hostile, "b", whole=True)
    assert "<img" not in shown
    assert shown.count("&lt;img") == 2
