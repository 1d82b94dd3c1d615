"""Linked code of what other frameworks left."""

from __future__ import annotations

from pathlib import Path

from cache_engine.frameworks.base import CacheReader
from cache_engine.frameworks.readers.programs import CuPy
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import Entry, Part, PartKind, Place
from cache_engine.insight.linked.kernel import linked_parts
from cache_engine.insight.linked.marks import Linked
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack


def _linked(source: CacheReader, folder: Path, name: str) -> Linked:
    place = Place(source.kind, unpack(source.kind, folder), "given")
    entry = next(seen for seen in source.scan(place, {}) if isinstance(seen, Entry) and seen.name == name)
    return linked_parts(entry, lambda part: source.read(place, entry, part))


def test_a_kernel_of_triton_is_linked_through_all_its_irs(tmp_path: Path) -> None:
    shown = _linked(Triton(), tmp_path, "tile")
    assert (shown.notes, shown.is_linked) == ((), True)
    panes = {pane.name: pane for pane in shown.panes}
    assert [*panes][:6] == ["MLIR", "TTIR", "TTGIR", "LLIR", "PTX", "SASS"]
    dots = {}
    for name in ("MLIR", "TTIR", "TTGIR", "LLIR", "PTX", "SASS"):
        pane = panes[name]
        dots[name] = {pane.source[number] for number, kind in enumerate(pane.kinds) if kind == "mma"} - {0}
    assert len(set.intersection(*dots.values())) == 1, dots
    sass = panes["SASS"]
    found = [number for number, kind in enumerate(sass.kinds) if kind == "mma"]
    assert any("mma" in panes["PTX"].lines[sass.ptx[number] - 1] for number in found)
    assert max(sass.registers) > 30
    assert '"name"' in "".join(panes["json"].lines)


def test_of_very_many_texts_and_lines_the_first_are_read() -> None:
    entry = Entry("k", "", tuple(Part(f"{number}.cu", PartKind.SOURCE, 0) for number in range(100)))
    shown = linked_parts(entry, lambda part: b"\n" * 300_000 if part.name == "0.cu" else b"")
    assert "It has 100 texts; 30 are shown." in shown.notes
    assert len(shown.panes) == 30
    assert len(shown.panes[0].lines) == 200_000


def test_a_kernel_of_cupy_has_its_source_and_its_machine_code(tmp_path: Path) -> None:
    shown = _linked(CuPy(), tmp_path, "scale")
    assert [pane.name for pane in shown.panes] == ["Source", "SASS"]
    assert not shown.is_linked
    assert "global" in shown.panes[1].kinds


def test_what_cannot_be_read_is_said_and_the_rest_is_shown() -> None:
    names = {"a.ptx": PartKind.PTX, "a.cubin": PartKind.BINARY, "a.llir": PartKind.IR, "b.cu": PartKind.SOURCE}
    names |= {"c.cu": PartKind.SOURCE, "d.amdgcn": PartKind.PTX}
    entry = Entry("x", "", tuple(Part(name, kind, 1) for name, kind in names.items()))
    read: dict[str, bytes | Failure] = {
        "a.ptx": b"\xff\x00",
        "a.cubin": b"\x7fELF",
        "a.llir": Failure("it is gone"),
        "b.cu": b"<b>",
        "c.cu": b"",
    }
    shown = linked_parts(entry, lambda part: read.get(part.name, b"v_add"))
    assert [pane.name for pane in shown.panes] == ["Source", "c.cu", "PTX", "d.amdgcn"]
    assert shown.panes[0].lines == ("<b>",)
    assert shown.notes[0] == "a.llir cannot be read: it is gone"
    assert shown.notes[1].startswith("Machine code is not shown: the binary is no CUBIN")


def test_an_entry_without_code_has_no_panes() -> None:
    shown = linked_parts(Entry("x", "", ()), lambda part: b"")
    assert (shown.panes, shown.is_linked) == ((), False)
