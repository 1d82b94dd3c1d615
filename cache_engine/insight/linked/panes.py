"""What a view of linked code shows: a pane for each text, and for each of its lines where that comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cache_engine.insight.linked.marks import folds_of, kinds_of, main_loop

SOURCE, PTX, SASS = "Source", "PTX", "SASS"
MOST_CHARACTERS, MOST_LINES = 8_000_000, 200_000
"""Of one text; what is behind is not read. Kernels have a hundredth of that, but a forged text may be large."""

Place = tuple[str, int]
"""A file and a line of it, from 1."""

Chain = tuple[Place, ...]
"""Where an instruction comes from: the line itself, then the line that the compiler put it into, and so on outwards.

Empty where nothing is known."""


def lines_of(text: str) -> list[str]:
    """The lines of a text that are read."""
    return text[:MOST_CHARACTERS].splitlines()[:MOST_LINES]


@dataclass(frozen=True, slots=True)
class Text:
    """A text as a reader of one language found it.

    Attributes:
        name: such as ``"PTX"``; the name of its pane.
        language: ``cuda``, ``python``, ``ptx``, ``sass``, ``mlir``, ``llvm``.
        chains: of each line; none at all where the text says nothing of lines.
        ptx: of each line of machine code the line of PTX that it is made of, from 1; 0 where none is known.
        registers: the general registers that hold a value at each line; 0 where there is no instruction.
    """

    name: str
    language: str
    lines: Sequence[str]
    chains: Sequence[Chain] = ()
    ptx: Sequence[int] = ()
    registers: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Pane:
    """One text of a view.

    Attributes:
        chains: of each line the lines of the source, from 1: the one it is made of, and those that this was put into.
        ptx: as of ``Text``.
        registers: as of ``Text``.
        kinds: of each line the class of its instruction, one of ``marks.KINDS``, or nothing.
        loop: the first and last line of the main loop, from 1.
        folds: the first and last line of each run of declarations, from 1.
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

    @property
    def source(self) -> tuple[int, ...]:
        """Of each line the line of the source that it is made of, from 1; 0 where none is known."""
        return tuple(chain[0] if chain else 0 for chain in self.chains)


@dataclass(frozen=True, slots=True)
class Linked:
    """The panes of a kernel; ``notes`` says in words what is missing, and how to get it."""

    panes: tuple[Pane, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def is_linked(self) -> bool:
        """Whether any line is known to come from a line of the source."""
        return any(any(pane.chains) for pane in self.panes if pane.name != SOURCE)


def linked(texts: Iterable[Text], notes: Iterable[str] = ()) -> Linked:
    """A view of these texts. Lines of files other than the kernel's own are taken where they were called from."""
    texts = list(texts)
    own = _own_file(texts)
    return Linked(tuple(_pane(text, own) for text in texts), tuple(notes))


def _own_file(texts: Sequence[Text]) -> str:
    """The kernel's own file: outermost in most chains."""
    outermost = Counter(chain[-1][0] for text in texts for chain in text.chains if chain)
    return outermost.most_common(1)[0][0] if outermost else ""


def _pane(text: Text, own: str) -> Pane:
    if text.name == SOURCE:
        chains: tuple[tuple[int, ...], ...] = tuple((number,) for number in range(1, len(text.lines) + 1))
    else:
        chains = tuple(tuple(line for file, line in chain if file == own) for chain in text.chains)
    kinds = kinds_of(text.language, text.lines)
    return Pane(
        text.name,
        text.language,
        tuple(text.lines),
        chains,
        tuple(text.ptx),
        tuple(text.registers),
        kinds,
        main_loop(text.language, text.lines, kinds),
        folds_of(text.language, text.lines),
    )
