"""Aligns the machine code of two kernels, loop by loop, on opcodes; the choice of registers is ignored. Pure.

A compiler that chooses other registers, or schedules independent instructions in another order, changes most lines of a
kernel but not its work. So two lines that differ only in registers are called the same, and a line that the other
kernel has elsewhere in the same part is called moved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from cache_engine.compilers.disassembly import comparable_lines
from cache_engine.units import counted

SAME, MOVED, OPERANDS, CHANGED = "same", "moved", "operands", "changed"
"""Kinds of a pair of lines.

Same: equal except for registers. Moved: equal, at another place. Operands: the same opcode with other constants,
addresses or labels. Changed: in one kernel only.
"""

_REGISTER = re.compile(r"\b(U?R|U?P|SB|B)\d+\b(?:\.reuse\b)?")
_TARGET = re.compile(r"\.L_x?_?\d+")
_GUARD = re.compile(r"^\{?\s*(?:@!?U?P(?:\d+|T)?\s+)?")
_BRANCH = re.compile(r"\bBRA\b[^`]{0,200}+`\((\.L_x?_?\d+)\)")
_MANY_LINES = 1_500  # of one part: from here on frequent lines do not anchor the alignment, which keeps it fast


@dataclass(frozen=True, slots=True)
class LinePair:
    """A line of the first kernel and the matching line of the second; ``None`` for a kernel without such a line."""

    kind: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of both kernels: a loop, or the lines before, between or after the loops."""

    name: str
    pairs: tuple[LinePair, ...]

    def counts(self) -> Counter[str]:
        """The number of line pairs of each kind, such as ``SAME``."""
        return Counter(pair.kind for pair in self.pairs)


def aligned(first_sass: str, first_name: str, second_sass: str, second_name: str) -> list[Part]:
    """Aligns two disassembled kernels; returns the loops and the lines between them in order, without empty parts."""
    first = comparable_lines(first_sass, first_name)
    second = comparable_lines(second_sass, second_name)
    loops = _paired_loops(first, second)
    found, at, other = [], 0, 0
    for number, (one, two) in enumerate(loops, 1):
        between = "before the loops" if number == 1 else f"between loops {number - 1} and {number}"
        found.append(Part(between, _pairs(first[at : one.start], second[other : two.start])))
        name = f"loop {number}" if len(loops) > 1 else "loop"
        found.append(Part(name, _pairs(first[one.start : one.stop], second[two.start : two.stop])))
        at, other = one.stop, two.stop
    found.append(Part("after the loops" if loops else "code", _pairs(first[at:], second[other:])))
    return [part for part in found if part.pairs]


def changed_share(parts: Sequence[Part]) -> float:
    """The share of the first kernel's lines that differ in more than registers and place; 0 if there are no lines."""
    lines = [pair for part in parts for pair in part.pairs if pair.first is not None]
    return sum(pair.kind in (OPERANDS, CHANGED) for pair in lines) / len(lines) if lines else 0.0


def part_words(part: Part) -> str:
    """A sentence: the number of a part's lines that differ, and of those that have moved."""
    counts = part.counts()
    differ = counts[OPERANDS] + counts[CHANGED]
    lines = counted(len(part.pairs), "line")
    words = f"{differ:,} of {lines} differ" if differ else f"{lines}, the same but for registers and place"
    return words + (f", {counts[MOVED]:,} moved" if counts[MOVED] else "")


def as_diff(part: Part, context: int = 3) -> Iterator[str]:
    """A part as lines of a diff; ``<`` and ``>`` mark lines that have moved."""
    yield f"@@ {part.name}: {part_words(part)} @@"
    for is_near, pairs in runs(part, context):
        if not is_near:
            yield f"@@ {counted(len(pairs), 'same line')} @@"
            continue
        for pair in pairs:
            if pair.kind == SAME:
                yield f" {pair.first}"
                continue
            removed, added = ("<", ">") if pair.kind == MOVED else ("-", "+")
            if pair.first is not None:
                yield f"{removed}{pair.first}"
            if pair.second is not None:
                yield f"{added}{pair.second}"


def runs(part: Part, context: int) -> Iterator[tuple[bool, tuple[LinePair, ...]]]:
    """The line pairs of a part in order, in groups; each group with ``True`` if it is near a difference and so shown.

    Args:
        context: the number of equal line pairs to show before and after a difference.
    """
    differs = [at for at, pair in enumerate(part.pairs) if pair.kind != SAME]
    shown = {near for at in differs for near in range(at - context, at + context + 1)}
    start = 0
    for at in range(1, len(part.pairs) + 1):
        if at == len(part.pairs) or (at in shown) != (start in shown):
            yield start in shown, part.pairs[start:at]
            start = at


def _shape(line: str) -> str:
    """A line of machine code as it is compared: without the numbers of registers and labels."""
    return _TARGET.sub(".L", _REGISTER.sub(r"\1", line))


def _opcode(line: str) -> str:
    return _GUARD.sub("", line).partition(" ")[0]


def _loops(lines: Sequence[str]) -> list[range]:
    """The outermost loops, in order: from a label to the last branch back to it."""
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    found: list[range] = []
    for at, line in enumerate(lines):
        target = _BRANCH.search(line)
        start = labels.get(target[1], at) if target else at
        if start < at - 1:  # one instruction that jumps to itself is the trap at the end
            while found and found[-1].start >= start:
                found.pop()
            if found and start < found[-1].stop:
                found[-1] = range(found[-1].start, at + 1)
            else:
                found.append(range(start, at + 1))
    return found


def _paired_loops(first: Sequence[str], second: Sequence[str]) -> list[tuple[range, range]]:
    """Pairs of loops, one of each kernel, in order, chosen so that the loops of a pair share the most opcodes."""
    ones, twos = _loops(first), _loops(second)
    best: list[list[tuple[int, list[tuple[range, range]]]]] = [
        [(0, [])] * (len(twos) + 1) for _ in range(len(ones) + 1)
    ]
    for i, one in enumerate(ones):
        opcodes = Counter(_opcode(line) for line in first[one.start : one.stop])
        for j, two in enumerate(twos):
            common = (opcodes & Counter(_opcode(line) for line in second[two.start : two.stop])).total()
            score, pairs = best[i][j]
            both = (score + common, [*pairs, (one, two)])
            best[i + 1][j + 1] = max(both, best[i][j + 1], best[i + 1][j], key=lambda each: each[0])
    return best[-1][-1][1]


def _pairs(first: Sequence[str], second: Sequence[str]) -> tuple[LinePair, ...]:
    found: list[LinePair] = []
    for is_same, i, i_end, j, j_end in _blocks([*map(_shape, first)], [*map(_shape, second)]):
        if is_same:
            found += (LinePair(SAME, *both) for both in zip(first[i:i_end], second[j:j_end], strict=True))
            continue
        ones, twos = first[i:i_end], second[j:j_end]
        for is_alike, a, a_end, b, b_end in _blocks([*map(_opcode, ones)], [*map(_opcode, twos)]):
            if is_alike:
                found += (LinePair(OPERANDS, *both) for both in zip(ones[a:a_end], twos[b:b_end], strict=True))
            else:
                found += (LinePair(CHANGED, line, None) for line in ones[a:a_end])
                found += (LinePair(CHANGED, None, line) for line in twos[b:b_end])
    return tuple(_with_moves(found))


def _blocks(first: list[str], second: list[str]) -> Iterator[tuple[bool, int, int, int, int]]:
    matcher = SequenceMatcher(None, first, second, autojunk=max(len(first), len(second)) > _MANY_LINES)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        yield tag == "equal", i, i_end, j, j_end


def _with_moves(pairs: Sequence[LinePair]) -> Iterator[LinePair]:
    """The same line pairs; a line without a partner that the other text has at another place becomes "moved"."""
    alone = [pair for pair in pairs if pair.kind == CHANGED]
    gone = Counter(_shape(pair.first) for pair in alone if pair.first is not None)
    come = Counter(_shape(pair.second) for pair in alone if pair.second is not None)
    moved = gone & come
    left = {True: Counter(moved), False: Counter(moved)}
    for pair in pairs:
        line = pair.first if pair.second is None else pair.second if pair.first is None else None
        remaining = left[pair.second is None]
        if line is not None and remaining[_shape(line)] > 0:
            remaining[_shape(line)] -= 1
            yield replace(pair, kind=MOVED)
        else:
            yield pair
