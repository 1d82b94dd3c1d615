"""Marks in a kernel's text of code: classes of instructions, the main loop, and declarations that can be folded.

Sources: for machine code NVIDIA's "CUDA Binary Utilities", tables "Instruction Set Reference"; for PTX its "PTX ISA",
chapter "Instruction Set"; for Triton's IRs the operations of its dialects ``tt``, ``ttg`` and ``ttng``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MMA, FMA, COPY, GLOBAL, SHARED, SPILL, LOCAL, BARRIER, BRANCH = KINDS = (
    *("mma", "fma", "copy", "global", "shared", "spill", "local", "barrier", "branch"),
)
"""Classes of instructions: tensor-core and other multiplications; asynchronous copies; accesses to global and shared
memory; spills, as nvdisasm marks them, and other accesses to local memory; barriers and waits; jumps.
"""

_ADDRESS = r"^\s*+/\*[0-9a-f]{4,}+\*/\s++\{?\s*+(?:@!?U?P(?:\d++|T)\s++)?"
_PTX_START = r"^\s*(?:@!?%\w+\s+)?"

# In each language the pattern of a line for each class; the first that fits is the line's.
_PATTERNS: dict[str, tuple[tuple[str, str], ...]] = {
    "sass": (
        (MMA, rf"{_ADDRESS}(?:[HIQODB]MMA|[HIQ]GMMA|UTC[HIQO]MMA)\b"),
        (FMA, rf"{_ADDRESS}(?:FFMA2?|DFMA|IDP)\b"),
        (COPY, rf"{_ADDRESS}(?:LDGSTS|UTMALDG|UTMASTG|UBLKCP)\b"),
        (GLOBAL, rf"{_ADDRESS}(?:LDG|STG|RED|ATOMG?|REDG)\b"),
        (SHARED, rf"{_ADDRESS}(?:LDS|STS|LDSM|STSM|ATOMS|LDTM|STTM)\b"),
        (SPILL, rf'{_ADDRESS}(?:LDL|STL)\b.*\(\*"Spill'),
        (LOCAL, rf"{_ADDRESS}(?:LDL|STL)\b"),
        (BARRIER, rf"{_ADDRESS}(?:BAR|SYNCS|DEPBAR|LDGDEPBAR|WARPGROUP|WARPSYNC|MEMBAR|FENCE|UTMACMDFLUSH|ARRIVES)\b"),
        (BRANCH, rf"{_ADDRESS}(?:BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK)\b"),
    ),
    "ptx": (
        (MMA, rf"{_PTX_START}(?:wmma\.mma|mma\.|wgmma\.mma|tcgen05\.mma)"),
        (FMA, rf"{_PTX_START}(?:fma\.|dp4a\.|dp2a\.)"),
        (COPY, rf"{_PTX_START}cp\.(?:async|reduce)(?!\.(?:wait|commit|bulk\.(?:wait|commit)))"),
        (GLOBAL, rf"{_PTX_START}(?:ld|st|red|atom)\.(?:volatile\.|relaxed\.\w+\.|weak\.)?global"),
        (SHARED, rf"{_PTX_START}(?:(?:ld|st|red|atom)\.(?:volatile\.)?shared|ldmatrix|stmatrix|tcgen05\.(?:ld|st))"),
        (LOCAL, rf"{_PTX_START}(?:ld|st)\.local"),
        (BARRIER, rf"{_PTX_START}(?:bar|barrier|mbarrier|fence|membar|wgmma|cp\.async\S*\.(?:wait|commit)\w*)\."),
        (BRANCH, rf"{_PTX_START}(?:bra|brx|call|ret|exit)\b"),
    ),
    "mlir": (
        (MMA, r"\b(?:tt\.dot(?:_scaled)?|ttng\.(?:warp_group_dot|tc_gen5_mma)\w*)\b(?!_wait)"),
        (COPY, r"\b(?:ttg\.async_copy\w*|ttng\.async_tma\w*)\b"),
        (GLOBAL, r"\btt\.(?:load|store|atomic\w*|descriptor_\w+)\b"),
        (SHARED, r"\bttg\.(?:local_\w+|memdesc_\w+)\b"),
        (BARRIER, r"\b(?:gpu\.barrier|ttg\.(?:barrier|async_wait|async_commit_group)|ttng\.\w*(?:barrier|wait)\w*)\b"),
        (BRANCH, r"\b(?:scf\.(?:for|while|if|yield)|cf\.\w+|tt\.return)\b"),
    ),
    "llvm": (
        (MMA, r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma|@llvm\.nvvm\.(?:mma|wgmma\.mma|tcgen05\.mma))"),
        (FMA, r"@llvm\.fma\b|@llvm\.nvvm\.fma"),
        (COPY, r"cp\.async\.(?:ca|cg|bulk\.tensor)"),
        (BARRIER, r"@llvm\.nvvm\.barrier|bar\.sync|mbarrier\.|cp\.async\.(?:wait|commit)"),
        (GLOBAL, r"(?:ld|st)\.global|\b(?:load|store) [^@]{0,300}?addrspace\(1\)"),
        (SHARED, r"ldmatrix|stmatrix|(?:ld|st)\.shared|\b(?:load|store) [^@]{0,300}?addrspace\(3\)"),
        (BRANCH, r"^\s+(?:br|ret|switch)\b"),
    ),
}
_COMPILED = {
    language: [(kind, re.compile(pattern)) for kind, pattern in patterns] for language, patterns in _PATTERNS.items()
}

# A label, and a jump to one.
_LABELS = {
    "sass": (
        re.compile(r"^(?P<at>\.L_x?_?\d+):"),
        re.compile(r"\bBRA\S{0,40}+\s[^;`]{0,200}+`\((?P<to>\.L_x?_?\d+)\)"),
    ),
    "ptx": (re.compile(r"^\s*(?P<at>\$[\w$]+):"), re.compile(r"\bbra\S{0,40}+\s+(?P<to>\$[\w$]+)\s*;")),
    "llvm": (
        re.compile(r"^(?P<at>[\w.$]+):"),
        re.compile(r"^\s+br\b.*?label %(?P<to>[\w.$]+)(?:, label %(?P<or>[\w.$]+))?"),
    ),
}
_MLIR_LOOP = re.compile(r"^(?P<indent>\s*)(?:%\S+ = )?scf\.(?:for|while)\b")

# Lines of declarations; runs of them, blank lines included, fold.
_DECLARATIONS = {
    "cuda": re.compile(r"^\s*(?:#\s*(?:define|include|pragma|undef)\b|using\b|typedef\b)"),
    "python": re.compile(r"^(?:import|from)\b|^CONSTANTS\b|^    '|^}"),
    "ptx": re.compile(r"^\s*(?:\.(?:version|target|address_size|global|const|extern|reg|param|local|shared)\b|//)"),
    "sass": re.compile(r"^\s*(?:\.(?!L)|//|\S+:$)|^\s*/\*[0-9a-f]{4,}\*/\s+NOP\b"),
    "mlir": re.compile(r"^(?:#\w+ = |//)"),
    "llvm": re.compile(r"^(?:;|source_filename|target |declare |attributes |!|@)"),
}
_LEAST_FOLDED = 3
_LOOKED_AT = 2_000
"""The number of a line's characters in which to look for an instruction. The search time can grow with their square."""


def kinds_of(language: str, lines: Sequence[str]) -> tuple[str, ...]:
    """The class of each line's instruction; empty for a line without one. For source code, the result is empty."""
    patterns = _COMPILED.get(language)
    if patterns is None:
        return ()
    return tuple(
        next((kind for kind, pattern in patterns if pattern.search(line, 0, _LOOKED_AT)), "") for line in lines
    )


def main_loop(language: str, lines: Sequence[str], kinds: Sequence[str]) -> tuple[int, int] | None:
    """The first and last line, counted from 1, of the loop that multiplies; ``None`` if there is none.

    It is the smallest loop with at least half as many multiplications as the loop with the most.
    """
    wanted = MMA if MMA in kinds else FMA
    sums = [0]
    for kind in kinds:
        sums.append(sums[-1] + (kind == wanted))
    loops = [(first, last) for first, last in _loops(language, lines) if sums[last] > sums[first - 1]]
    if not loops:
        return None
    most = max(sums[last] - sums[first - 1] for first, last in loops)
    heavy = [(first, last) for first, last in loops if 2 * (sums[last] - sums[first - 1]) >= most]
    return min(heavy, key=lambda loop: loop[1] - loop[0])


def cycles_of(
    kinds: Sequence[str], stalls: Sequence[int], loop: tuple[int, int] | None
) -> tuple[tuple[str, int, int], ...]:
    """For each class of instruction in a loop: name, number of instructions, and sum of their stalls in cycles.

    The last item is for instructions without a class; its name is empty. All stalls together estimate how long one warp
    takes for a round if it never waits for memory, a barrier, or a busy unit, and if it skips nothing.
    """
    if loop is None or not stalls:
        return ()
    lines = range(loop[0] - 1, loop[1])
    found = {kind: [stalls[at] for at in lines if kinds[at] == kind and stalls[at] >= 0] for kind in (*KINDS, "")}
    return tuple((kind, len(own), sum(own)) for kind, own in found.items() if own)


def _loops(language: str, lines: Sequence[str]) -> list[tuple[int, int]]:
    """The first and last line of each loop of a text: from a label to a jump back to the label."""
    if language == "mlir":
        return _regions(lines)
    if language not in _LABELS:
        return []
    label, jump = _LABELS[language]
    labels: dict[str, int] = {}
    loops: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if found := label.match(line):
            labels[found["at"]] = number
        if found := jump.search(line, 0, _LOOKED_AT):
            for to in found.groups():
                if to in labels:
                    loops[labels[to]] = number
    return list(loops.items())


def _regions(lines: Sequence[str]) -> list[tuple[int, int]]:
    """The first and last line of each loop of MLIR: from ``scf.for`` to the brace at the same indent."""
    found = []
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(lines, 1):
        if opened and line.startswith(f"{opened[-1][0]}}}") and " do {" not in line:
            found.append((opened.pop()[1], number))
        if match := _MLIR_LOOP.match(line):
            opened.append((match["indent"], number))
    return found


def folds_of(language: str, lines: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The first and last line, counted from 1, of each block of declarations that is at least three lines long."""
    pattern = _DECLARATIONS.get(language)
    if pattern is None:
        return ()
    folds = []
    first = last = 0
    for number, line in enumerate((*lines, "end"), 1):
        if number <= len(lines) and pattern.match(line):
            first, last = first or number, number
        elif first and (line.strip() or number > len(lines)):
            if last - first + 1 >= _LEAST_FOLDED:
                folds.append((first, last))
            first = 0
    return tuple(folds)


# ---- A view of linked code: a pane for each text, and for each of its lines its origin ----

SOURCE, PTX, SASS = "Source", "PTX", "SASS"
MOST_CHARACTERS, MOST_LINES = 8_000_000, 200_000
"""The most characters and lines of one text; the rest is not read. Kernels have a hundredth of that, but a forged text
may be large.
"""

Place = tuple[str, int]
"""A file and a line in it, counted from 1."""

Chain = tuple[Place, ...]
"""The source of an instruction: its source line, then the line into which the compiler inlined that one, and so on
outwards.

Empty if nothing is known.
"""


def lines_of(text: str) -> list[str]:
    """The lines of a text, up to ``MOST_CHARACTERS`` and ``MOST_LINES``."""
    return text[:MOST_CHARACTERS].splitlines()[:MOST_LINES]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a register: the lines that define it, and the lines that use it, counted from 1.

    More than one line defines it where paths of the program meet, or where an instruction under a guard may not write.
    """

    register: str
    defined: tuple[int, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaneText:
    """A text as read by the reader of its language.

    Attributes:
        name: the name of the text's pane, such as ``"PTX"``.
        language: ``cuda``, ``python``, ``ptx``, ``sass``, ``mlir``, ``llvm``.
        chains: for each line, its place in the source, and the places into which it was inlined; empty if the text has
            no line information.
        ptx: for each line of machine code, the PTX line that it was made from, counted from 1; 0 if unknown.
        registers: the number of general registers that hold a value at each line; 0 for a line without an instruction.
        stalls: for each line, the cycles that a warp waits before its next instruction, as the compiler wrote them; -1
            for a line without an instruction. Empty if the encoding of the target is not known.
        values: the values in registers; empty if they are not known.
    """

    name: str
    language: str
    lines: Sequence[str]
    chains: Sequence[Chain] = ()
    ptx: Sequence[int] = ()
    registers: Sequence[int] = ()
    stalls: Sequence[int] = ()
    values: Sequence[Value] = ()


@dataclass(frozen=True, slots=True)
class Pane:
    """One text of a view, for display.

    Attributes:
        chains: for each line, its lines of the source, counted from 1: the line that it was made from, then the lines
            into which that one was inlined.
        ptx: as in ``PaneText``.
        registers, stalls, values: as in ``PaneText``.
        cycles: of the main loop, as ``cycles_of`` returns them.
        kinds: the class of each line's instruction, one of ``marks.KINDS``, or empty.
        loop: the first and last line of the main loop, counted from 1.
        folds: the first and last line of each block of declarations, counted from 1.
    """

    name: str
    language: str
    lines: tuple[str, ...]
    chains: tuple[tuple[int, ...], ...] = ()
    ptx: tuple[int, ...] = ()
    registers: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    loop: tuple[int, int] | None = None
    folds: tuple[tuple[int, int], ...] = ()
    stalls: tuple[int, ...] = ()
    values: tuple[Value, ...] = ()
    cycles: tuple[tuple[str, int, int], ...] = ()

    @property
    def source(self) -> tuple[int, ...]:
        """For each line, the source line that it was made from, counted from 1; 0 if unknown."""
        return tuple(chain[0] if chain else 0 for chain in self.chains)


@dataclass(frozen=True, slots=True)
class Linked:
    """The panes of a kernel. ``notes`` says in words which links or texts are missing, and how to get them."""

    panes: tuple[Pane, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def is_linked(self) -> bool:
        """Whether any line is known to come from a line of the source."""
        return any(any(pane.chains) for pane in self.panes if pane.name != SOURCE)


def linked(texts: Iterable[PaneText], notes: Iterable[str] = ()) -> Linked:
    """Makes a view of ``texts``; a line from another file than the kernel's own is linked to the line that calls it."""
    texts = list(texts)
    own = _own_file(texts)
    return Linked(tuple(_pane(text, own) for text in texts), tuple(notes))


def _own_file(texts: Sequence[PaneText]) -> str:
    """The kernel's own source file: the one that is outermost in most chains."""
    outermost = Counter(chain[-1][0] for text in texts for chain in text.chains if chain)
    return outermost.most_common(1)[0][0] if outermost else ""


def _pane(text: PaneText, own: str) -> Pane:
    if text.name == SOURCE:
        chains: tuple[tuple[int, ...], ...] = tuple((number,) for number in range(1, len(text.lines) + 1))
    else:
        chains = tuple(tuple(line for file, line in chain if file == own) for chain in text.chains)
    kinds = kinds_of(text.language, text.lines)
    loop = main_loop(text.language, text.lines, kinds)
    return Pane(
        text.name,
        text.language,
        tuple(text.lines),
        chains,
        tuple(text.ptx),
        tuple(text.registers),
        kinds,
        loop,
        folds_of(text.language, text.lines),
        tuple(text.stalls),
        tuple(text.values),
        cycles_of(kinds, text.stalls, loop),
    )
