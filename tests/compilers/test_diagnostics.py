"""Diagnostics in a compiler log, and how a failed compile is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.compilers.diagnostics import Diagnostic, diagnostics, excerpt, first_error, report, warnings
from cache_engine.errors import CompileError, Level
from cache_engine.model.artifact import MAX_WARNINGS, Resources

NOTHING_SPILLED = Resources(registers=40, shared_bytes=0, stack_bytes=0, spill_bytes=0)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ('kernel.cu(3): error: identifier "x" is undefined', Diagnostic(Level.ERROR, 'identifier "x" is undefined', 3)),
        ('kernel.cu(2): error #20: "x" is undefined', Diagnostic(Level.ERROR, '"x" is undefined', 2)),
        ("kernel.cu(2): warning #177-D: never referenced", Diagnostic(Level.WARNING, "never referenced", 2)),
        ("kernel.cu(1): catastrophic error: cannot open", Diagnostic(Level.FATAL, "cannot open", 1)),
        ("kernel.cu:7:10: fatal error: a.h: No such file", Diagnostic(Level.FATAL, "a.h: No such file", 7)),
        ("kernel.cu:7: warning: unused", Diagnostic(Level.WARNING, "unused", 7)),
        ("nvcc fatal   : Unsupported gpu architecture", Diagnostic(Level.FATAL, "nvcc: Unsupported gpu architecture")),
        ("ptxas warning : Registers are spilled", Diagnostic(Level.WARNING, "ptxas: Registers are spilled")),
        ("ptxas kernel.ptx, line 20; error   : bad", Diagnostic(Level.ERROR, "ptxas: bad")),
        ("nvrtc: error: invalid value", Diagnostic(Level.ERROR, "nvrtc: invalid value")),
    ],
)  # fmt: skip
def test_each_form_of_a_diagnostic_is_read(log: str, expected: Diagnostic) -> None:
    assert diagnostics(f"one line\n{log}\nanother") == [expected]
    assert first_error(log) == (None if expected.level is Level.WARNING else log)


@pytest.mark.parametrize(
    "log", ["ptxas info    : 0 bytes gmem", "1 error detected in the compilation of kernel.cu.", ""]
)
def test_other_lines_of_a_log_are_not_diagnostics(log: str) -> None:
    assert diagnostics(log) == []


def test_warnings_are_unique_bounded_and_start_with_spills() -> None:
    spilled = Resources(registers=32, shared_bytes=0, stack_bytes=8, spill_bytes=132)
    log = "kernel.cu(2): warning #1-D: a\n" * 2 + "".join(f"kernel.cu({n}): warning #1-D: b\n" for n in range(9, 99))
    told = warnings(log, spilled)
    assert told[0].startswith("132 bytes of registers are spilled to local memory, with 32 registers per thread")
    assert told[1] == "line 2: a"
    assert len(told) == len(set(told)) == MAX_WARNINGS
    assert warnings("kernel.cu(1): error: a", NOTHING_SPILLED) == ()


def test_an_excerpt_shows_the_lines_around_each_error() -> None:
    source = "\n".join(f"text {number}" for number in range(1, 21))
    assert excerpt(source, [2, 12]).splitlines() == [
        "   1 | text 1", ">  2 | text 2", "   3 | text 3", "   4 | text 4", "   …",
        "  10 | text 10", "  11 | text 11", "> 12 | text 12", "  13 | text 13", "  14 | text 14",
    ]  # fmt: skip


@given(st.text(max_size=200), st.lists(st.integers(-5, 300), max_size=20))
def test_an_excerpt_accepts_any_text_and_any_lines(source: str, lines: list[int]) -> None:
    there = {line for line in lines if 1 <= line <= len(source.splitlines())}
    marked = [line for line in excerpt(source, lines).splitlines() if line.startswith(">")]
    assert len(marked) == min(len(there), 10)


def test_a_report_has_the_log_the_lines_the_flags_and_the_command() -> None:
    error = CompileError(
        "no", log="kernel.cu(1): error: a", source="wrong", flags=("-a", "b c"), command="gemm-cache …"
    )
    assert report(error) == (
        "kernel.cu(1): error: a\n\nsource:\n> 1 | wrong\n\nflags: -a 'b c'\n\nagain: gemm-cache …"
    )  # fmt: skip
