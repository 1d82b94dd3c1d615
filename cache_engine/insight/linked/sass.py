"""Reads machine code as nvdisasm prints it: with the lines that it comes from, and with the registers in use.

Source: NVIDIA's "CUDA Binary Utilities", "nvdisasm": ``-gi`` and ``-gp`` write what the line tables say before the
first instruction that it holds for; ``-lrm count`` writes how many registers hold a value at each instruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cache_engine.insight.linked.panes import SASS, Chain, Place, Text, lines_of

_MARK = re.compile(
    r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?P<inlined> inlined at "[^"]*", line \d+)?\s*$'
)
_MARKED_PTX = ".nv_debug_ptx_txt"
_ADDRESS = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/")
_GAPS = re.compile(r"[ \t]{2,}")
# Of the table at the right, the column of general registers.
_LIVE = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/.*//\s*+\|\s*+(?P<count>\d{1,4})?\s*+\|")
_HEAD = re.compile(r"//\s*\|\s*GPR\s*\|")


def read_sass(text: str, registers: str = "", ptx_lines: Sequence[int] = ()) -> Text:
    """Machine code with its links.

    Args:
        text: of ``nvdisasm -c -gi -gp``, or without the last two, which leaves out what it says of lines.
        registers: of ``nvdisasm -c -lrm count`` on the same code.
        ptx_lines: for each line of the compiled PTX the line shown of it, as ``read_ptx`` returns them.
    """
    kept: list[str] = []
    chains: list[Chain] = []
    ptx: list[int] = []
    chain: Chain = ()
    fresh: list[Place] = []
    ptx_line = 0
    for line in lines_of(text):
        if found := _MARK.match(line):
            number = int(found["line"])
            if found["file"] == _MARKED_PTX:
                ptx_line = ptx_lines[number - 1] if 0 < number <= len(ptx_lines) else 0
            else:
                fresh.append((found["file"], number))
            continue
        is_instruction = _ADDRESS.match(line) is not None
        if fresh:
            chain, fresh = tuple(place for place in fresh if place[1]), []
        elif not is_instruction and line.startswith(".text."):
            chain, ptx_line = (), 0  # the next function
        kept.append(_GAPS.sub("  ", line.rstrip()))
        chains.append(chain if is_instruction else ())
        ptx.append(ptx_line if is_instruction else 0)
    return Text(SASS, "sass", kept, chains, ptx if any(ptx) else (), _live(kept, registers))


def _live(lines: Sequence[str], printed: str) -> Sequence[int]:
    """The general registers that hold a value at each line; none where the two texts are not of the same code."""
    if not printed or _HEAD.search(printed) is None:
        return ()
    counts = [
        (found["address"], int(found["count"] or 0)) for line in printed.splitlines() if (found := _LIVE.match(line))
    ]
    counts.reverse()
    live = []
    for line in lines:
        found = _ADDRESS.match(line)
        is_next = found is not None and bool(counts) and counts[-1][0] == found["address"]
        live.append(counts.pop()[1] if is_next else 0)  # the NOPs at the end of a function are not counted
    return () if counts else live
