"""The linked code of a kernel of another framework, from the texts and the binary that it left.

Triton keeps line tables and locations unless told not to, so its IRs, PTX and machine code are linked as they are.
Nothing is compiled, and no file is opened that a location names: it is only text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_engine.compilers.elf import read_cubin
from cache_engine.frameworks.values import Entry, Part, PartKind
from cache_engine.insight.linked.irs import TTGIR, TTIR, read_llvm, read_mlir, read_ptx
from cache_engine.insight.linked.kernel import disassembled, registers_of
from cache_engine.insight.linked.marks import PTX, SOURCE, Linked, Text, lines_of, linked
from cache_engine.model.outcome import Failure

Read = Callable[[Part], bytes | Failure]
"""The bytes of one part."""

_MLIR = {"ttir": TTIR, "ttgir": TTGIR}
# In the order in which they are made.
_ORDER = (PartKind.SOURCE, PartKind.IR, PartKind.PTX, PartKind.METADATA, PartKind.INDEX)
_IRS = ("ttir", "ttgir", "llir")
_MOST_PARTS = 30  # three times as many as any framework has


def linked_parts(entry: Entry, read: Read) -> Linked:
    """Source, IRs, PTX, machine code and the other texts of an entry; notes say what could not be read."""
    notes: list[str] = []
    code: list[Text] = []
    others: list[Text] = []
    ptx_lines: Sequence[int] = ()
    parts = [part for part in entry.parts if part.kind in _ORDER]
    if len(parts) > _MOST_PARTS:
        notes.append(f"It has {len(parts):,} texts; {_MOST_PARTS} are shown.")
    for part in sorted(parts, key=_place_in_order)[:_MOST_PARTS]:
        data = read(part)
        if isinstance(data, Failure):
            notes.append(f"{part.name} cannot be read: {data}")
            continue
        found, lines = _text(part, data.decode("utf-8", "replace"))
        if found.name in {each.name for each in code}:
            found = Text(part.name, found.language, found.lines)
        ptx_lines = ptx_lines or lines
        (others if part.kind in (PartKind.METADATA, PartKind.INDEX) else code).append(found)
    binary = entry.part(PartKind.BINARY)
    if binary is not None:
        machine_code = _machine_code(read(binary), ptx_lines)
        if isinstance(machine_code, Failure):
            notes.append(f"Machine code is not shown: {machine_code}")
        else:
            code.append(machine_code)
    return linked((*code, *others), notes)


def _place_in_order(part: Part) -> tuple[int, int]:
    suffix = _suffix(part)
    return _ORDER.index(part.kind), _IRS.index(suffix) if suffix in _IRS else len(_IRS)


def _text(part: Part, text: str) -> tuple[Text, Sequence[int]]:
    """One text, and of PTX its lines as ``read_ptx`` returns them."""
    suffix = _suffix(part)
    if suffix in _MLIR:
        return read_mlir(_MLIR[suffix], text), ()
    if suffix == "llir":
        return read_llvm(text), ()
    if part.kind == PartKind.PTX and suffix != "amdgcn":
        return read_ptx(text)
    if part.kind == PartKind.SOURCE:
        # What Triton calls source is the MLIR that it made of Python.
        return read_mlir("MLIR", text) if "tt.func" in text else Text(SOURCE, "cuda", lines_of(text)), ()
    return Text(PTX if part.kind == PartKind.PTX else part.name, "text", lines_of(text)), ()


def _machine_code(data: bytes | Failure, ptx_lines: Sequence[int]) -> Text | Failure:
    if isinstance(data, Failure):
        return data
    try:
        read_cubin(data)
    except ValueError as error:
        return Failure(f"the binary is no CUBIN: {error}.")
    return disassembled(data, ptx_lines, registers_of(data))


def _suffix(part: Part) -> str:
    """The ending of a part's name; some parts are named by that alone."""
    return part.name.rpartition(".")[2]
