"""The caches of other frameworks in the index: what changed is read again, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.frameworks import doctor
from cache_engine.frameworks.registry import EntryFilter, Sources, load_sources, sums, survey
from cache_engine.frameworks.values import Entry, Place, Seen
from cache_engine.index import framework_caches, framework_queries
from cache_engine.index.framework_caches import Scanned, scan
from cache_engine.index.sync import Index
from tests.frameworks.fixtures import unpack
from tests.helpers import make_store

KINDS = ("triton", "cupy", "cutile", "tilelang", "cuda_core")


class Machine:
    """An index, and caches that their frameworks made."""

    def __init__(self, folder: Path) -> None:
        self.index = Index(make_store(folder / "store"))
        self.places = [Place(kind, unpack(kind, folder), "given") for kind in KINDS]
        self.sources: Sources = load_sources()

    def scan(self) -> Scanned:
        """Brings the index up to date."""
        return scan(self.index, self.sources, self.places)

    def indexed(self) -> dict[tuple[Path, str], Entry]:
        """Every entry as the index has it, by its place and id."""
        found = {}
        with self.index.read() as connection:
            for row in framework_queries.entries(connection, EntryFilter(), limit=1000):
                place = Place(row["kind"], Path(row["path"]), "given")
                entry = framework_queries.entry(connection, place, row["id"])
                assert entry is not None
                found[place.path, entry.id] = entry
        return found

    def real(self) -> dict[tuple[Path, str], Entry]:
        """Every entry as it is, likewise."""
        return {
            (place.path, seen.id): seen for place, seen in survey(self.sources, self.places) if isinstance(seen, Entry)
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With an empty index."""
    return Machine(tmp_path)


def test_every_entry_is_mirrored_as_it_is(machine: Machine) -> None:
    scanned = machine.scan()
    assert (scanned.read, scanned.unchanged, scanned.gone, scanned.findings, scanned.places) == (15, 0, 0, 0, 5)
    assert machine.indexed() == machine.real()


def test_what_is_unchanged_is_not_read_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.scan()
    generation = machine.index.generation()
    really, opened = os.open, []

    def opening(path: str, *rest: int, **named: int) -> int:
        opened.append(str(path))
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    scanned = machine.scan()
    assert (scanned.read, scanned.unchanged) == (0, 15)
    assert not [path for path in opened if path.endswith((".json", ".cubin", ".cu"))]
    assert machine.index.generation() == generation  # so every answer to a question is still the same
    shutil.rmtree(next(machine.places[0].path.iterdir()))
    machine.scan()
    assert machine.index.generation() != generation
    assert machine.index.sync().generation == machine.index.generation()


def test_the_index_has_what_the_doctor_finds_also_with_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said of an entry that has changed, or is gone, it says no more."""
    triton = machine.places[0].path
    first, second, third, _ = sorted(triton.iterdir())
    next(first.glob("__grp__*")).unlink()
    next(second.glob("*.ptx")).write_bytes(b"")
    (third / "tmp.pid_1_x").mkdir()
    (third / "tmp.pid_1_x" / "tile.ptx").write_bytes(b"x")
    (triton / "link").symlink_to("/etc")
    os.chmod(triton, 0o777)

    def found() -> set[tuple[str, str]]:
        machine.scan()
        return {(each.id, each.ailment.value) for each in machine.index.query(framework_queries.diagnoses)}

    expected = {
        (first.name, "partial entry"), (second.name, "empty file"), ("link", "unread"), ("", "others may write"),
    }  # fmt: skip
    assert found() == expected
    monkeypatch.setattr(doctor, "LEFT_AFTER_S", -1.0)
    assert found() == expected | {(third.name, "leftover")}
    shutil.rmtree(first)
    os.chmod(triton, 0o700)
    (triton / "link").unlink()
    assert found() == {(second.name, "empty file"), (third.name, "leftover")}


def test_what_changed_is_replaced_and_what_is_gone_is_deleted(machine: Machine) -> None:
    machine.scan()
    triton, cupy = machine.places[0].path, machine.places[1].path
    first, second, *_ = sorted(triton.iterdir())
    shutil.rmtree(first)
    (group,) = second.glob("__grp__*")
    group.unlink()
    next(cupy.glob("*.cubin")).unlink()
    scanned = machine.scan()
    assert (scanned.read, scanned.gone) == (2, 2)  # of CuPy's program the source is left, an entry of its own
    assert machine.indexed() == machine.real()


def test_a_directory_that_is_not_given_any_more_leaves_the_mirror(machine: Machine) -> None:
    machine.scan()
    machine.places = machine.places[:1]
    machine.scan()
    assert machine.indexed() == machine.real()
    assert machine.index.query(framework_queries.count, EntryFilter()) == 4
    assert [row["kind"] for row in machine.index.query(framework_queries.places)] == ["triton"]


def test_findings_are_those_of_the_last_scan(machine: Machine) -> None:
    link = machine.places[0].path / "a\nb"
    link.symlink_to("/etc")
    assert machine.scan().findings == 1
    (row,) = machine.index.query(framework_queries.findings)
    assert (row["kind"], row["id"], row["fault"]) == ("triton", "a%0Ab", "not a regular file")
    link.unlink()
    machine.scan()
    assert machine.index.query(framework_queries.findings) == []


def test_an_entry_that_fits_no_column_is_a_finding_and_the_others_are_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose code says that it uses more registers than a number can count."""
    hostile = next(machine.places[0].path.glob("*/tile.ptx")).parent.name

    def forged(*given: object) -> Iterator[tuple[Place, Seen]]:
        for place, seen in survey(*given):  # type: ignore[arg-type]
            is_it = isinstance(seen, Entry) and seen.id == hostile
            yield place, replace(seen, registers=2**40) if is_it and isinstance(seen, Entry) else seen

    monkeypatch.setattr(framework_caches, "survey", forged)
    assert machine.scan().findings == 1
    (row,) = machine.index.query(framework_queries.findings)
    assert (row["id"], row["fault"]) == (hostile, "damaged")
    assert len(machine.indexed()) == 14


def test_a_scan_in_many_parts_is_the_same(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_caches, "_BATCH", 2)
    monkeypatch.setattr(framework_caches, "_STEP", 2)
    told: list[int] = []
    scan(machine.index, machine.sources, machine.places, lambda count, _: told.append(count))
    assert machine.indexed() == machine.real()
    assert told == sorted(told)
    assert len(told) > 3


def test_the_sums_of_the_queries_are_those_of_the_files(machine: Machine) -> None:
    (machine.places[0].path / "left").write_bytes(b"no part of a kernel")
    machine.scan()
    sums_of = sums(machine.places, survey(machine.sources, machine.places))
    parts = {(row["kind"], row["name"]): row["size_bytes"] for row in machine.index.query(framework_queries.parts)}
    assert parts == {
        (place.kind, str(name)): size for place, each in sums_of.items() for name, size in each.part_bytes.items()
    }
    assert ("cutile", "cubin") in parts
    rows = {row["kind"]: row for row in machine.index.query(framework_queries.places)}
    assert set(rows) == set(KINDS)
    for place in machine.places[:2]:
        files = [path for path in place.path.rglob("*") if path.is_file()]
        assert rows[place.kind]["size_bytes"] == sum(path.stat().st_size for path in files)
    triton = machine.places[0].path
    assert parts["triton", "llir"] == sum(path.stat().st_size for path in triton.rglob("*.llir"))
    assert rows["triton"]["ir_bytes"] == sum(parts["triton", name] for name in ("llir", "ttir", "ttgir"))
    counted = machine.index.query(framework_queries.counted, "arch")
    assert {row["value"]: row["entries"] for row in counted if row["kind"] == "triton"} == {"sm_90a": 3, "sm_80": 1}
    assert sum(row["entries"] for row in machine.index.query(framework_queries.growth)) == 16


def test_equal_binaries_are_found_wherever_they_are(machine: Machine, tmp_path: Path) -> None:
    machine.scan()
    assert machine.index.query(framework_queries.duplicates) == []
    machine.places.append(Place("triton", unpack("triton", tmp_path / "other"), "given"))
    machine.scan()
    rows = machine.index.query(framework_queries.duplicates)
    assert [row["entries"] for row in rows] == [2, 2, 2, 2]


@pytest.mark.parametrize("sort", list(framework_queries.SORTS))
def test_a_list_is_searched_sorted_and_paged(machine: Machine, sort: str) -> None:
    machine.scan()
    chosen = EntryFilter("scale sm_90a")
    every = machine.index.query(framework_queries.entries, chosen, sort=sort, limit=100)
    assert {row["kind"] for row in every} == {"triton", "cuda_core", "cutile"}
    assert len(every) == machine.index.query(framework_queries.count, chosen)
    second = machine.index.query(framework_queries.entries, chosen, sort=sort, limit=2, offset=2)
    assert [row["id"] for row in second] == [row["id"] for row in every[2:4]]


def test_the_cache_scans_what_there_is_and_what_is_named(home: Path, tmp_path: Path) -> None:
    """With a count that grows while it goes on."""
    (home / ".triton").mkdir()
    unpack("triton", home / ".triton").rename(home / ".triton" / "cache")
    named, in_settings = unpack("cupy", tmp_path), unpack("cutile", tmp_path)
    with open_cache(tmp_path / "store", caches=f"cutile={in_settings}") as cache:
        scanned = cache.scan_caches([f"cupy={named}"])
        assert (scanned.read, scanned.places) == (11, 3)
        rows = cache.query(framework_queries.places)
    assert {(row["kind"], row["origin"]) for row in rows} == {
        ("triton", "default"),
        ("cupy", "given"),
        ("cutile", "given"),
    }
