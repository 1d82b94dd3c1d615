"""Reads machine code as nvdisasm prints it: its lines of source and PTX, its registers, and its stalls.

Source: NVIDIA's "CUDA Binary Utilities", "nvdisasm". ``-gi`` and ``-gp`` write each entry of the line tables before
the first instruction that the entry describes. ``-lrm narrow`` writes a table at the right, with a character for each
register: ``^`` is defined here, ``v`` used, ``x`` both, ``:`` holds a value. ``-hex`` writes the encoding in two lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cache_engine.insight.linked.marks import SASS, Chain, PaneText, Place, Value, lines_of

_MARK = re.compile(
    r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d{1,9})(?P<inlined> inlined at "[^"]*", line \d+)?\s*$'
)
_MARKED_PTX = ".nv_debug_ptx_txt"
_ADDRESS = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/")
_GAPS = re.compile(r"[ \t]{2,}")


def read_sass(text: str, registers: str = "", ptx_lines: Sequence[int] = ()) -> PaneText:
    """Reads disassembled machine code, the links of its lines to source and PTX, and what they do to registers.

    Args:
        text: the output of ``nvdisasm -c -gi -gp``. Without ``-gi -gp``, it has no links.
        registers: the output of ``nvdisasm -c -hex -lrm narrow`` for the same code.
        ptx_lines: for each line of the compiled PTX, the number of its shown line, as ``read_ptx`` returns it.
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
    found_ptx = ptx if any(ptx) else ()
    rows = _rows(registers)
    if not _placed(rows, kept):
        return PaneText(SASS, "sass", kept, chains, found_ptx)
    live, stalls = [0] * len(kept), [-1] * len(kept)
    for row in rows:
        if row.line:
            live[row.line - 1], stalls[row.line - 1] = row.live, row.high >> _STALL_AT & 15
    if not _KNOWN_TARGET.search(registers):
        stalls = []
    return PaneText(SASS, "sass", kept, chains, found_ptx, live if any(live) else (), stalls, _values(rows))


# ---- Stalls ----
#
# The upper half of an instruction says for how many cycles its warp waits before the next one. NVIDIA does not document
# it. Sources: Z. Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019; and Mesa's
# compiler NAK, which writes these bits for Turing to Blackwell (sm70_encode.rs, set_instr_deps: bits 105 to 108).
# A test checks them in machine code of each of these targets: a result is never used before it is there.

_STALL_AT = 105 - 64
_KNOWN_TARGET = re.compile(r"^[ \t]*\.target[ \t]+sm_(?:75|8[0-9]|90|100|103|110|120|121)[af]?\b", re.MULTILINE)


# ---- The table of registers ----

_FILES = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
_LABEL = re.compile(r"^(?P<label>[.$\w]+):")
_HIGH = re.compile(r"/\* 0x(?P<bits>[0-9a-f]{16}) \*/\s*$")
_UNITS = "0123456789" * 26


@dataclass(slots=True)
class _Row:
    """An instruction, or a label, and in each register file one character for each register.

    Attributes:
        address: empty for a label.
        live: the number of general registers that hold a value.
        high: the upper 64 bits of the encoding.
        line: its line in the shown text, counted from 1; 0 for a label.
    """

    address: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    live: int = 0
    high: int = 0
    line: int = 0


def _rows(printed: str) -> list[_Row]:
    """The rows of the tables of all functions; each table has its own head: functions may use other registers."""
    names: list[str] = []
    columns: list[tuple[int, str, int]] = []
    rows: list[_Row] = []
    for line in printed.splitlines():
        if names and (found := _LABEL.match(line)):  # some have no row in the table
            rows.append(_Row("", found["label"]))
        code, bar, table = line.rpartition("// |")
        cells = table.split("|") if bar else []
        if not code.strip():
            if "GPR" in table:
                names, columns = [cell.strip() for cell in cells], []
            elif "#" in table:
                columns = _columns(names, cells)
            continue
        if names and (found := _ADDRESS.match(code)):
            rows.append(_Row(found["address"], code[found.end() :].partition(";")[0].strip()))
        if rows and rows[-1].address:
            _fill(rows[-1], code, cells, columns)
    return rows


def _columns(names: Sequence[str], cells: Sequence[str]) -> list[tuple[int, str, int]]:
    """The number of each known register file's cell, its prefix, and where the cell's registers begin."""
    return [
        (number, _FILES[name], at + 2)
        for number, (name, cell) in enumerate(zip(names, cells, strict=False))
        if name in _FILES and (at := cell.find("#")) >= 0 and _UNITS.startswith(cell[at + 2 :].rstrip())
    ]


def _fill(row: _Row, code: str, cells: Sequence[str], columns: Sequence[tuple[int, str, int]]) -> None:
    # Of the two lines of an encoding, the second has the table's row and the upper half.
    if found := _HIGH.search(code):
        row.high = int(found["bits"], 16)
    for number, prefix, start in columns:
        if number < len(cells):
            count = cells[number][: start - 1].strip()
            row.marks[prefix] = cells[number][start:].rstrip()
            if prefix == "R":
                row.live = int(count) if count.isdecimal() else 0


def _placed(rows: Sequence[_Row], lines: Sequence[str]) -> bool:
    """Writes into each instruction its line in the shown text; false if one has none, as in a table of other code."""
    left = [row for row in reversed(rows) if row.address]
    is_any = bool(left)
    for number, line in enumerate(lines, 1):
        found = _ADDRESS.match(line)
        if found is not None and left and left[-1].address == found["address"]:
            left.pop().line = number
    return is_any and not left


# ---- Values: a definition in a register, and all that may use it ----

_JUMP = re.compile(r"^(?:@!?U?P\w+\s+)?(?:BRA|BRX|BRXU|JMP|JMX|CALL|RET|EXIT|KILL)\b")
_ENDS = re.compile(r"^(?:BRA\S*\s+`|(?:BRX|BRXU|JMP|JMX|RET|EXIT|KILL)\b)")
_TARGET = re.compile(r"\.L_?\w+|\$[\w$]+")
_MENTIONED = re.compile("[v^x]")
_DEFINED, _USED = range(2)
_MOST = 500_000
"""The most steps to follow values: ten times those of a large kernel. Beyond these steps, no values are known."""


class _Forest:
    """Values, which are joined when they turn out to be one: where two paths meet, each path may have defined it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.parents: list[int] = []
        self.places: list[tuple[list[int], list[int]]] = []
        self.size = 0

    def new(self, name: str) -> int:
        self.size += 1
        self.names.append(name)
        self.parents.append(len(self.parents))
        self.places.append(([], []))
        return len(self.parents) - 1

    def add(self, node: int, role: int, line: int) -> None:
        self.size += 1
        self.places[node][role].append(line)

    def root(self, node: int) -> int:
        while self.parents[node] != node:
            self.parents[node] = node = self.parents[self.parents[node]]
        return node

    def join(self, one: int, other: int) -> None:
        self.size += 1
        self.parents[self.root(other)] = self.root(one)

    def values(self) -> Iterator[Value]:
        for node, parent in enumerate(self.parents):
            if node != parent:
                for mine, all_of in zip(self.places[node], self.places[self.root(node)], strict=True):
                    all_of.extend(mine)
        for node, (defined, used) in enumerate(self.places):
            if self.parents[node] == node and (defined or used):
                yield Value(self.names[node], tuple(sorted({*defined})), tuple(sorted({*used})))


def _values(rows: Sequence[_Row]) -> tuple[Value, ...]:
    forest = _Forest()
    blocks = _blocks(rows)
    ends: list[tuple[dict[str, int], dict[str, int]]] = []
    for number, block in enumerate(blocks):
        if forest.size <= _MOST:
            ends.append(_followed(forest, block, blocks[number - 1][-1].marks if number else {}))
    starts = {block[0].text: number for number, block in enumerate(blocks) if not block[0].address}
    for number, block in enumerate(blocks):
        if forest.size > _MOST:
            return ()
        last = block[-1].text
        targets = _TARGET.findall(last) if _JUMP.match(last) else []
        following = [] if _ENDS.match(last) else [number + 1]
        for to in (*following, *(starts[target] for target in targets if target in starts)):
            for name, node in ends[to][0].items() if to < len(ends) else ():
                if name in ends[number][1]:
                    forest.join(ends[number][1][name], node)
    return tuple(forest.values())


def _blocks(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Parts of a function that are entered only at their first row and left only at their last."""
    blocks: list[list[_Row]] = []
    ended = True
    for row in rows:
        if ended or not row.address:
            blocks.append([])
        blocks[-1].append(row)
        ended = _JUMP.match(row.text) is not None and row.address != ""
    return blocks


def _followed(forest: _Forest, block: Sequence[_Row], before: dict[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """The values of registers at the start of a block, and at its end; ``before`` has the marks of the row above."""
    now: dict[str, int] = {}
    # A label has no marks, or those of the row above, from where it may not be reached.
    first = next((row for row in block if row.address), block[0])
    for prefix, marks in first.marks.items():
        above = before.get(prefix, "")
        for at, mark in enumerate(marks):
            if mark in ":vx" or (mark == "^" and first.text.startswith("@") and above[at : at + 1].strip()):
                now[f"{prefix}{at}"] = forest.new(f"{prefix}{at}")
    start = dict(now)
    for row in block:
        is_guarded = row.text.startswith("@")
        for prefix, marks in row.marks.items() if row.address else ():
            above = before.get(prefix, "")
            for mention in _MENTIONED.finditer(marks):
                at, mark = mention.start(), mention[0]
                name = f"{prefix}{at}"
                if mark != "^":
                    if name not in now:
                        now[name] = forest.new(name)
                    forest.add(now[name], _USED, row.line)
                # nvdisasm marks the guard of a copy, named once, as if the copy wrote it too.
                if mark == "^" or (mark == "x" and ("R" in prefix or row.text.count(name) > 1)):
                    # Under a guard the old value may stay: then both are one value from here on.
                    if not (is_guarded and name in now and above[at : at + 1].strip()):
                        now[name] = forest.new(name)
                    forest.add(now[name], _DEFINED, row.line)
        before = row.marks
    return start, now
