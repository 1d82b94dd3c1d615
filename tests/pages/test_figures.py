"""What the figures of kernels show."""

from __future__ import annotations

from app.presenters.kernel import instruction_figure
from cache_engine.compilers.disassembly import InstructionMix

MIX = InstructionMix({"IMAD": 90, "HMMA": 64, **{f"OP{n}": 10 - n for n in range(8)}, "LDSM": 1})


def test_every_instruction_is_in_one_bar() -> None:
    """Those of a class, then the most frequent of the others, then the rest together."""
    (bars,) = instruction_figure(MIX).data
    counts = dict(zip(bars.y, bars.x, strict=True))
    assert list(counts) == ["HMMA", "LDSM", "IMAD", "OP0", "OP1", "OP2", "OP3", "OP4", "other"]
    assert counts["other"] == 5 + 4 + 3
    assert sum(counts.values()) == MIX.total
    assert len(set(bars.marker.color[:2])) == len(set(bars.marker.color[2:])) == 1


def test_code_without_instructions_has_no_bar() -> None:
    (bars,) = instruction_figure(InstructionMix({})).data
    assert list(bars.x) == []
