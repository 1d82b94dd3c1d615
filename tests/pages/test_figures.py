"""What the figures of kernels show."""

from __future__ import annotations

from datetime import UTC

from app.components.comparison import compared_figure
from app.presenters.columns import rows_of
from app.presenters.kernel import instruction_figure, limit_columns
from cache_engine.compilers.disassembly import InstructionMix
from cache_engine.insight.comparison import Pair
from cache_engine.model.architecture import architecture, occupancy

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


def test_the_limit_that_binds_is_marked() -> None:
    resident = occupancy(architecture("sm_90"), threads=256, registers=234, shared_bytes=96 * 1024)
    table = rows_of(resident.block_limits.items(), limit_columns(resident), UTC)
    assert [row["Limit"] for row in table if row["Limiting"]] == ["registers"]
    assert [row["Blocks per SM"] for row in table] == [1, 2, 8, 32]


def test_compared_instructions_align_even_if_one_kernel_has_none() -> None:
    pairs = [Pair("HMMA", 64, None), Pair("FFMA", None, 256), Pair("other", 5, 6), Pair("total", 69, 262)]
    first, second = compared_figure(pairs, "1: <b>", "2: x").data
    assert (list(first.x), list(first.y), list(second.y)) == (["HMMA", "FFMA"], [64, 0], [0, 256])
    assert first.name == "1: &lt;b&gt;"
