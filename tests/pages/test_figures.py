"""Instructions of kernels, as their page counts them."""

from __future__ import annotations

from app.presenters.kernel import instruction_rows
from cache_engine.compilers.disassembly import InstructionMix

MIX = InstructionMix({"IMAD": 90, "HMMA": 64, **{f"OP{n}": 10 - n for n in range(8)}, "LDSM": 1})


def test_every_instruction_is_counted_once() -> None:
    """Those of a class, then the most frequent of the others, then the rest together."""
    counts = {name: count for name, count, _ in instruction_rows(MIX)}
    assert list(counts) == ["HMMA", "LDSM", "IMAD", "OP0", "OP1", "OP2", "OP3", "OP4", "other"]
    assert counts["other"] == 5 + 4 + 3
    assert sum(counts.values()) == MIX.total
    assert [kind for *_, kind in instruction_rows(MIX)] == ["of GEMM", "of GEMM", *[""] * 7]
    assert instruction_rows(InstructionMix({})) == []
