"""Deleting from other frameworks' caches on the page: previewed, confirmed, audited, only where a safe way is known."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from app import context
from app.caches import scan
from cache_engine.frameworks.readers import triton
from cache_engine.frameworks.values import Place
from cache_engine.index import framework_caches
from cache_engine.model.events import CLEAN_OTHER
from cache_engine.store.journal import read_journal
from cache_engine.upkeep.admission import Request
from tests.cli.test_cli import document
from tests.frameworks.fixtures import unpack
from tests.pages.opening import Open, Reader, frames, sound

DAY_S = 86_400


class Machine:
    """Caches of Triton, cuTile and CuPy, all old, and the page."""

    def __init__(self, folder: Path, open_page: Open) -> None:
        self.store = folder / "store"
        self.places = {kind: unpack(kind, folder) for kind in ("triton", "cutile", "cupy")}
        for place in self.places.values():
            self.age(place, 40)
        self._open = open_page

    def age(self, place: Path, days: float) -> None:
        """Makes all files of a folder so old."""
        at = place.stat().st_mtime - days * DAY_S
        for path in [*place.rglob("*"), place]:
            os.utime(path, (at, at))

    def keys(self) -> set[str]:
        """The folders of Triton's cache."""
        return {path.name for path in self.places["triton"].iterdir()}

    def open(self, part: str = "Cleaning", **parameters: str) -> AppTest:
        """A part of the page."""
        app = self._open(self.store, "caches", part=part, **parameters)
        scan.scanner().look(60)
        return sound(app.run())

    def preview(self, **parameters: str) -> AppTest:
        """The same, with a preview."""
        return sound(_button(self.open(**parameters), "Preview").click().run())


def _button(app: AppTest, label: str) -> Button:
    (found,) = [one for one in app.button if one.label.startswith(label)]
    return found


def _confirm(app: AppTest, count: int) -> AppTest:
    (field,) = [one for one in app.text_input if one.label.startswith("Type ")]
    return sound(field.input(str(count)).run())


def _table(app: AppTest, *columns: str) -> list[tuple[object, ...]]:
    (frame, *_) = [one for one in frames(app) if set(columns) <= set(one.columns)]
    return list(frame[list(columns)].itertuples(index=False, name=None))


@pytest.fixture
def machine(open_page: Open, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with nothing but these. Nobody compiles, so a cleaning need not wait."""
    monkeypatch.setattr(triton, "READ_WITHIN_S", 0.0)
    found = Machine(tmp_path, open_page)
    monkeypatch.setenv("GEMM_CACHE_CACHES", ":".join(f"{kind}={path}" for kind, path in found.places.items()))
    return found


def test_what_is_previewed_is_deleted_and_the_audit_says_by_whom(machine: Machine) -> None:
    keys = machine.keys()
    app = machine.preview(kind="triton", arch="sm_90a", days="30")
    rows = _table(app, "Framework", "Name", "Target", "Why")
    assert sorted(str(row[1]) for row in rows) == ["scale", "scale", "tile"]
    assert {row[0] for row in rows} == {"Triton"}
    assert {row[2] for row in rows} == {"sm_90a"}
    assert all(str(row[3]).startswith("unused for ") for row in rows)
    assert machine.keys() == keys
    assert _button(app, "Delete").disabled
    app = _confirm(app, 3)
    app = sound(_button(app, "Delete 3 entries").click().run())
    assert app.success[0].value.startswith("Deleted 3 entries, ")
    assert len(machine.keys()) == 1
    context.cache().journal.flush()
    journal = read_journal(context.cache().layout.journal)
    events = [each for each in journal.recent if each.kind == CLEAN_OTHER]
    assert {event.detail for event in events} == {
        f"triton, {machine.places['triton']}: 3 entries{rest}" for rest in (" to delete", "")
    }
    assert all(event.by for event in events)


def test_what_has_changed_since_the_preview_stays_and_is_said(machine: Machine) -> None:
    app = _confirm(machine.preview(kind="triton", days="30"), 4)
    used = next(machine.places["triton"].glob("*/tile.ptx")).parent

    def building(*_: object) -> None:
        (used / "tile.new").write_bytes(b"a process builds it")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("cache_engine.frameworks.deletion.time.sleep", building)
        app = sound(_button(app, "Delete 4 entries").click().run())
    assert app.success[0].value.startswith("Deleted 3 entries, ")
    assert app.success[0].value.endswith("1 entry stayed: used or changed since the preview.")
    assert machine.keys() == {used.name}


def test_where_no_safe_way_is_known_the_reason_is_given_and_the_command(machine: Machine) -> None:
    files = set(machine.places["cupy"].rglob("*"))
    app = machine.preview(kind="cupy", days="30")
    ((count, framework, where, why),) = _table(app, "Entries", "Framework", "Directory", "Why")
    assert (framework, where) == ("CuPy", str(machine.places["cupy"]))
    assert count
    assert "CuPy" in str(why)
    assert any(one.value.endswith("caches clean --kind cupy --days 30 --offline") for one in app.code)
    assert not [one for one in app.button if one.label.startswith("Delete ")]
    assert set(machine.places["cupy"].rglob("*")) == files


def test_rows_of_a_database_go_by_sql(machine: Machine) -> None:
    app = _confirm(machine.preview(kind="cutile", rule="All that match", arch="sm_90a"), 2)
    sound(_button(app, "Delete 2 entries").click().run())
    with sqlite3.connect(machine.places["cutile"] / "cache.db") as database:
        assert database.execute("SELECT count(*) FROM cache").fetchone() == (2,)


def test_only_the_irs_go_and_the_kernels_stay(machine: Machine) -> None:
    app = _confirm(machine.preview(kind="triton", days="30", irs="true"), 4)
    app = sound(_button(app, "Delete the IRs of 4 entries").click().run())
    assert app.success[0].value.startswith("Deleted the IRs of 4 entries, ")
    assert len(machine.keys()) == 4
    assert not list(machine.places["triton"].rglob("*.llir"))
    assert len(list(machine.places["triton"].rglob("*.cubin"))) == 4


def test_a_directory_that_is_not_in_use_is_listed_apart_and_never_cleaned(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where another process has read it into the index."""
    unused = Path(shutil.copytree(machine.places["cutile"], tmp_path / "home" / ".cache" / "cutile-python"))
    monkeypatch.setenv("CUDA_TILE_CACHE_DIR", str(machine.places["cutile"]))
    monkeypatch.delenv("GEMM_CACHE_CACHES")
    app = machine.open(part="Overview")
    assert _table(app, "Directory", "Another is named by") == [(str(unused), "CUDA_TILE_CACHE_DIR")]
    assert [row[0] for row in _table(app, "Directory", "Found by")] == [str(machine.places["cutile"])]
    place = Place("cutile", unused, "given")
    framework_caches.scan(context.cache().index, scan.sources(), [place], others_stay=True)
    app = sound(_button(machine.preview(rule="All that match"), "Preview").click().run())
    assert {row[0] for row in _table(app, "Directory", "Frees")} == {str(machine.places["cutile"])}
    assert _button(app, "Delete 4 entries")


def test_a_preview_by_other_rules_is_not_confirmed(machine: Machine) -> None:
    app = machine.preview(kind="triton", days="30")
    (days,) = [one for one in app.number_input if one.label == "Days"]
    app = sound(days.set_value(10_000).run())
    assert not [one for one in app.button if one.label.startswith("Delete ")]


@pytest.mark.parametrize(("rule", "more", "count"), [
    ("Unused for days", {"days": "10000"}, 0),
    ("Made by versions", {}, 0),
    ("Made by versions", {"versions": "3.9.0"}, 4),
    ("Down to a size", {"size": "0"}, 4),
    ("Down to a size", {"size": "1GiB"}, 0),
    ("All that match", {"q": "tile"}, 1),
])  # fmt: skip
def test_each_rule_chooses_what_it_says(machine: Machine, rule: str, more: dict[str, str], count: int) -> None:
    app = machine.preview(kind="triton", rule=rule, **more)
    assert [one.label for one in app.button if one.label.startswith("Delete ")] == (
        [f"Delete {count} {'entry' if count == 1 else 'entries'}"] if count else []
    )


@pytest.mark.parametrize("asked", [
    {"rule": "expired", "days": "30"},
    {"rule": "versions", "versions": "3.9.0"},
    {"rule": "bytes", "size": "100kB"},
    {"rule": "all", "kind": "triton", "words": "scale"},
    {"rule": "all", "irs": "true"},
], ids=str)  # fmt: skip
def test_the_command_of_a_rule_deletes_what_the_page_previews(machine: Machine, asked: dict[str, str]) -> None:
    app = machine.preview(**asked)
    shown = [row[0] for row in _table(app, "Id")] if any("Id" in one for one in frames(app)) else []
    command = next(
        shlex.split(one.value) for one in app.code if " caches clean " in one.value and "--off" not in one.value
    )
    plan = document(*command[3:], store=machine.store)
    assert command[1:3] == ["--store", str(machine.store)]
    assert len(plan["entries"]) == len(shown) > 0
    assert [each["id"].rpartition("/")[2][:12] for each in plan["entries"]] == [str(one)[:12] for one in shown]


def test_a_size_that_is_none_is_said(machine: Machine) -> None:
    app = machine._open(machine.store, "caches", part="Cleaning", rule="Down to a size", size="much")
    scan.scanner().look(60)
    app.run()
    assert not app.exception
    assert app.error[0].value == "Could not build the preview."


def test_a_reader_from_elsewhere_sees_the_preview_and_deletes_nothing(machine: Machine, reader: Reader) -> None:
    reader.request = Request("10.0.0.1", "", {"host": "10.0.0.1:8501", "origin": "http://10.0.0.1:8501"})
    app = machine.preview(kind="triton", days="30")
    (field,) = [one for one in app.text_input if one.label.startswith("Type ")]
    assert field.disabled
    assert _button(app, "Delete").disabled
    assert len(machine.keys()) == 4


def test_two_directories_say_why_one_misses_and_what_was_built_differently(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another compiler option, and with other bytes under the same key."""
    first = machine.places["triton"]
    second = Path(shutil.copytree(first, tmp_path / "second"))
    for group in second.rglob("__grp__*"):
        group.write_text(group.read_text().replace(str(first), str(second)))
    shutil.rmtree(next(second.glob("*/tile.ptx")).parent)
    warps = {path.parent.name: '"num_warps": 8' in path.read_text() for path in second.glob("*/scale.json")}
    (eight,) = [name for name, is_so in warps.items() if is_so]
    shutil.rmtree(second / eight)
    changed = next(second.glob("*/scale.ptx"))
    changed.write_text(changed.read_text() + "\n// tuned otherwise\n")
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"triton={first}:triton={second}")
    app = machine._open(machine.store, "caches", part="Comparison", a=f"triton={first}", b=f"triton={second}")
    scan.scanner().look(60)
    app = sound(app.run())
    tiles = {tile.label: tile.value for tile in app.metric}
    assert tiles["In both, same bytes"] == "1"
    assert tiles["In both, other bytes"] == "1"
    assert (tiles["Only in the first"], tiles["Only in the second"]) == ("2", "0")
    assert ("num_warps", "option", "8", "4") in _table(
        app, "Input", "From", "In the first, for example", "In the second"
    )
    ((parts, link),) = _table(app, "Parts", "Compare →")
    assert parts == "scale.ptx"
    assert _compared(link) == [(f"triton={first}", changed.parent.name), (f"triton={second}", changed.parent.name)]
    (link,) = (row[1] for row in _table(app, "Differs in", "Compare →") if row[0] == "num_warps")
    one, other = _compared(link)
    assert one == (f"triton={first}", eight)
    assert other[0] == f"triton={second}"
    assert other[1] in warps


def _compared(link: object) -> list[tuple[str, str]]:
    """The directories and entries that a link compares."""
    page, _, parameters = str(link).partition("?")
    asked = parse_qs(parameters)
    assert page == "compare"
    return [(asked[f"cache_{side}"][0], asked[f"entry_{side}"][0]) for side in "ab"]


def test_a_choice_made_while_the_one_before_was_stored_halfway_stays(machine: Machine) -> None:
    """As where a quick reader's next choice ends the drawing of a page."""
    app = machine.open()
    app.session_state["rule in the address"] = "versions"  # stored, but the address was not
    (rule,) = [one for one in app.radio if one.label == "Delete"]
    app = sound(rule.set_value("bytes").run())
    assert app.radio(key="rule").value == "bytes"
    assert "bytes" in app.query_params["rule"]
