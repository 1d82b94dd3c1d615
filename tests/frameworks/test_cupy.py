"""What is read of CuPy's cache, and of cuda.core's."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.compilers.disassembly import resources
from cache_engine.frameworks.doctor import Ailment, examine_entry
from cache_engine.frameworks.readers.programs import CudaCore, CuPy
from cache_engine.frameworks.values import Entry, PartKind, Place, Seen, State
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that CuPy 14.2.0 made: a program for two targets, and one with instances of a template."""
    return Place("cupy", unpack("cupy", tmp_path), "given")


@pytest.fixture
def programs(tmp_path: Path) -> Place:
    """A cache that cuda.core 1.2.2 made: a program for two targets."""
    return Place("cuda_core", unpack("cuda_core", tmp_path), "given")


def _entries(found: list[Seen]) -> list[Entry]:
    return [seen for seen in found if isinstance(seen, Entry)]


def test_the_programs_of_cupy_are_named_by_their_kernels(place: Place) -> None:
    found = {(entry.name, entry.arch): entry for entry in _entries([*CuPy().scan(place, {})])}
    assert set(found) == {("scale", "sm_80"), ("scale", "sm_90"), ("_Z4fillIdEvPT_S0_", "sm_90")}
    template = found["_Z4fillIdEvPT_S0_", "sm_90"]
    assert [part.name for part in template.parts] == ["cubin", "source"]
    source = CuPy().read(place, template, template.parts[1])
    assert isinstance(source, bytes)
    assert b"template <typename T>" in source
    for entry in found.values():
        image = CuPy().read(place, entry, entry.parts[0])
        assert isinstance(image, bytes)
        if entry is not template:  # cuobjdump's report has the first of several kernels
            assert entry.registers == resources(image, b"", 0).registers


def test_a_program_whose_digest_is_wrong_is_one_that_cupy_compiles_again(place: Place) -> None:
    file = next(place.path.glob("*.cubin"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (entry,) = [each for each in _entries([*CuPy().scan(place, {})]) if each.id == file.name]
    assert (entry.state, entry.registers) == (State.PARTIAL, None)
    assert "compiles this program again" in entry.unread["registers"]


def test_a_source_without_its_program_is_listed_alone(place: Place) -> None:
    file = next(place.path.glob("*.cubin"))
    file.unlink()
    (entry,) = [each for each in _entries([*CuPy().scan(place, {})]) if each.id.startswith(file.name)]
    assert (entry.id, entry.state) == (f"{file.name}.cu", State.UNREAD)


def test_the_programs_of_cuda_core_are_told_by_their_first_bytes(programs: Place) -> None:
    found = {(entry.name, entry.arch) for entry in _entries([*CudaCore().scan(programs, {})])}
    assert found == {("scale", "sm_80"), ("scale", "sm_90a")}
    folder = programs.path / "entries" / "00"
    folder.mkdir()
    ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n\n.visible .entry other(\n)\n{\n}\n"
    (folder / ("1" * 62)).write_text(ptx)
    (folder / ("2" * 62)).write_bytes(b"")
    (folder / ("3" * 62)).write_bytes(b"LTO-IR, or what else there may be")
    (programs.path / "tmp" / "left").write_bytes(b"half")
    entries = {entry.id.rpartition("/")[2][:4]: entry for entry in _entries([*CudaCore().scan(programs, {})])}
    assert (entries["1111"].name, entries["1111"].arch, entries["1111"].parts[0].kind) == (
        "other",
        "sm_90a",
        PartKind.PTX,
    )
    # cuda.core 1.2 returns an empty one: it is not compiled again.
    empty = entries["2222"]
    assert (empty.state, empty.unread["registers"]) == (
        State.COMPLETE, "it is empty: cuda.core takes it for a hit of 0 bytes",
    )  # fmt: skip
    assert [each.ailment for each in examine_entry(programs, empty, None, "")] == [Ailment.EMPTY]
    assert entries["3333"].unread["name"] == "it is neither a CUBIN nor PTX"
    assert entries["left"].state == State.UNREAD
