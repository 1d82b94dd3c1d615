"""What is deleted from a cache that other processes use, in which order, and what stays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import (
    DELETED,
    REPLACED,
    Chosen,
    CleaningRules,
    Deleted,
    choose,
    delete,
    plan_cleaning,
    plan_offline,
)
from cache_engine.frameworks.readers.triton import BUILT_WITHIN_S, READ_WITHIN_S, Triton
from cache_engine.frameworks.registry import EntryFilter, load_sources
from cache_engine.frameworks.values import DeletePlan, Entry, Part, PartKind, Place
from tests.frameworks.fixtures import unpack

_DAY_S = 86_400


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that Triton 3.9.0 made: four entries, an hour old."""
    place = Place("triton", unpack("triton", tmp_path), "given")
    _age(place.path, 3600)
    return place


def _age(folder: Path, seconds: float) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - seconds,) * 2)


def _entries(place: Place) -> list[Entry]:
    return [seen for seen in Triton().scan(place, {}) if isinstance(seen, Entry)]


def _plan(place: Place) -> DeletePlan:
    plan = Triton().plan_delete(place, _entries(place))
    assert isinstance(plan, DeletePlan)
    return plan


def while_waiting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[float]:
    """Does something in place of the wait; returns how long that would have been."""
    waits: list[float] = []

    def acts(seconds: float) -> None:
        waits.append(seconds)
        act()

    monkeypatch.setattr("cache_engine.frameworks.deletion.time.sleep", acts)
    return waits


def test_the_group_files_go_first_then_after_a_wait_all_the_rest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path for path in place.path.rglob("*") if path.is_file()}
    groups = {path for path in files if path.name.startswith("__grp__")}
    sizes = sum(path.stat().st_size for path in files)

    def look() -> None:
        assert {path for path in place.path.rglob("*") if path.is_file()} == files - groups

    waits = while_waiting(monkeypatch, look)
    done = delete(place, _plan(place), Deleted())
    assert waits == [READ_WITHIN_S]
    assert list(place.path.iterdir()) == []
    assert (len(done.ids), done.size_bytes, done.left) == (4, sizes, {})


def _rebuilt(folder: Path) -> None:
    (folder / "__grp__tile.json").write_text("{}")


def _started(folder: Path) -> None:
    (folder / "tmp.pid_7_x").mkdir()


def _replaced(folder: Path) -> None:
    """As ``os.replace`` does, with no temporary folder left, and within the resolution of the folder's time."""
    before, file = folder.stat(), (folder / "tile.ttir").stat()
    (folder / "new").write_bytes((folder / "tile.ttir").read_bytes())
    os.utime(folder / "new", ns=(file.st_atime_ns, file.st_mtime_ns))
    os.replace(folder / "new", folder / "tile.ttir")
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def _written(folder: Path) -> None:
    """In place, with as many bytes."""
    (folder / "tile.ttir").write_bytes((folder / "tile.ttir").read_bytes())


@pytest.mark.parametrize("act", [_rebuilt, _started, _replaced, _written])
def test_an_entry_that_is_written_while_others_wait_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    (folder,) = [path.parent for path in place.path.glob("*/tile.ptx")]
    while_waiting(monkeypatch, lambda: act(folder))
    rename = os.rename
    renamed: list[str] = []

    def noted(source: str, target: str, **where: int) -> None:
        renamed.append(source)
        rename(source, target, **where)

    monkeypatch.setattr(os, "rename", noted)
    done = delete(place, _plan(place), Deleted())
    assert done.left == {folder.name: "it was written meanwhile: a process uses it"}
    assert [path.name for path in place.path.iterdir()] == [folder.name]
    assert (folder / "tile.cubin").exists()
    assert folder.name not in renamed  # not even for a moment


def test_a_writer_that_comes_between_the_look_and_the_rename_gets_its_folder_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_waiting(monkeypatch, lambda: None)
    rename = os.rename
    late: list[str] = []

    def slow(source: str, target: str, **where: int) -> None:
        if not source.startswith(DELETED) and not late:
            late.append(source)
            _started(place.path / source)
        rename(source, target, **where)

    monkeypatch.setattr(os, "rename", slow)
    done = delete(place, _plan(place), Deleted())
    assert list(done.left) == late
    assert [path.name for path in place.path.iterdir()] == late
    assert (place.path / late[0] / "tmp.pid_7_x").is_dir()


def test_what_was_written_lately_stays_because_it_may_be_in_the_making(place: Place) -> None:
    """Also a partial entry: its compiler writes the group file last."""
    lately, partial, *_ = sorted(path for path in place.path.iterdir())
    for file in partial.glob("__grp__*"):
        file.unlink()
    for path in (lately, partial / "new"):
        path.touch()
    plan = _plan(place)
    assert plan.left.keys() == {lately.name, partial.name}
    assert all("less than 10 minutes ago" in reason for reason in plan.left.values())
    _age(place.path, BUILT_WITHIN_S + 1)
    assert _plan(place).left == {}


def test_libraries_and_what_is_unknown_stay(place: Place) -> None:
    """Triton opens a library by its path, whenever that may be."""
    for name, file in (("A" * 52, "cuda_utils.so"), ("B" * 52, "tile.autotune.json"), ("notes", "a.txt")):
        (place.path / name).mkdir()
        (place.path / name / file).write_text("")
    (place.path / "file").write_text("")
    _age(place.path, 3600)
    assert _plan(place).left.keys() == {"A" * 52, "B" * 52, "notes", "file"}


def test_what_a_killed_cleaning_left_is_deleted_by_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    while_waiting(monkeypatch, lambda: None)
    first = min(place.path.iterdir())
    first.rename(first.with_name(f"{DELETED}x"))
    assert len(delete(place, _plan(place), Deleted()).ids) == 4
    assert list(place.path.iterdir()) == []


def test_a_link_in_place_of_an_entry_is_never_followed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(place)
    secret = tmp_path / "secret"
    first = min(place.path.iterdir())
    first.rename(secret)
    first.symlink_to(secret)
    before = sorted(secret.iterdir())
    while_waiting(monkeypatch, lambda: None)
    done = delete(place, plan, Deleted())
    assert list(done.left) == [first.name]
    assert sorted(secret.iterdir()) == before


@pytest.mark.parametrize("offline", [True, False])
def test_of_two_that_delete_the_same_at_once_one_reports_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    plans = [plan_offline(_entries(place)) if offline else _plan(place) for _ in range(2)]
    second = Deleted()
    turns = iter([lambda: delete(place, plans[1], second)])
    while_waiting(monkeypatch, lambda: next(turns, lambda: None)())
    first = delete(place, plans[0], Deleted())
    if offline:
        delete(place, plans[1], second)
    assert sorted([*first.ids, *second.ids]) == sorted(each.id for each in plans[0].deletions)
    assert {*first.left.values(), *second.left.values()} == {"it is gone"}


def test_of_two_that_delete_the_same_irs_at_once_one_reports_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    while_waiting(monkeypatch, lambda: None)
    for group in place.path.glob("*/__grp__*"):  # of no use to any process, so that no index is written
        children = json.loads(group.read_text())["child_paths"]
        kept = {name: path for name, path in children.items() if not name.endswith(("ttir", "ttgir", "llir"))}
        group.write_text(json.dumps({"child_paths": kept}))
    _age(place.path, 3600)
    plan, second, unlink = Triton().plan_thinning(place, _entries(place)), Deleted(), os.unlink
    assert isinstance(plan, DeletePlan)

    def both(name: str, dir_fd: int) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        delete(place, plan, second)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", both)
    first = delete(place, plan, Deleted())
    assert (first.ids, len(second.ids)) == ([], 4)
    assert "it is gone" in first.left.values()


def test_an_entry_without_a_file_is_no_trouble(place: Place) -> None:
    assert delete(place, plan_offline([Entry("empty", "", ())]), Deleted()).ids == ["empty"]


@pytest.mark.parametrize("kind", ["triton", "cutile"])
def test_a_directory_that_took_the_place_of_the_planned_one_is_left(kind: str, tmp_path: Path) -> None:
    """Between the preview and the confirmation: a link to another directory with the same entries."""
    sources = load_sources().by_kind
    place, other = Place(kind, unpack(kind, tmp_path), "given"), unpack(kind, tmp_path / "other")
    _age(place.path, 3600)
    found = [Chosen(place, seen, "") for seen in sources[kind].scan(place, {}) if isinstance(seen, Entry)]
    plan = plan_cleaning(sources, found)[place]
    assert isinstance(plan, DeletePlan)
    before = sorted(path.stat().st_mtime_ns for path in other.rglob("*"))
    place.path.rename(tmp_path / "moved")
    place.path.symlink_to(other)
    done = delete(place, plan, Deleted())
    assert (done.ids, set(done.left.values())) == ([], {REPLACED})
    assert len(done.left) == len(found)
    assert sorted(path.stat().st_mtime_ns for path in other.rglob("*")) == before


def test_an_entry_that_is_gone_is_said_to_be_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(place)
    while_waiting(monkeypatch, lambda: None)
    delete(place, plan, Deleted())
    assert set(delete(place, plan, Deleted()).left.values()) == {"it is gone"}


def test_offline_the_files_go_at_once_with_the_folders_that_they_leave_empty(place: Place) -> None:
    entries = _entries(place)
    (place.path / entries[0].id / "unknown").write_text("")
    done = delete(place, plan_offline(entries), Deleted())
    assert set(done.ids) == {entry.id for entry in entries}
    assert [path.name for path in place.path.iterdir()] == [entries[0].id]
    assert [path.name for path in (place.path / entries[0].id).iterdir()] == ["unknown"]


def test_a_row_of_a_file_is_not_deleted_as_a_file() -> None:
    entry = Entry("row", "", (Part("cubin", PartKind.BINARY, 10),))
    plan = plan_offline([entry])
    assert (plan.deletions, list(plan.left)) == ((), ["row"])


NOW = 100 * _DAY_S
OTHERS = Place("triton", Path("/a"), "given")


def _entry(name: str, days: float, version: str = "3.9.0", used: float | None = None) -> tuple[Place, Entry]:
    used_at = None if used is None else NOW - used * _DAY_S
    part = Part("cubin", PartKind.BINARY, 100, name)
    return OTHERS, Entry(
        name, "", (part,), version=version, created_at=NOW - days * _DAY_S, last_used_at=used_at, arch="sm_90"
    )


@pytest.mark.parametrize(
    ("rules", "ids"),
    [
        (CleaningRules(), ["old", "used", "other", "new"]),
        (CleaningRules(unused_days=10), ["old", "other"]),
        (CleaningRules(versions=("3.2.0",)), ["other"]),
        (CleaningRules(max_bytes=250), ["old", "other"]),
        (CleaningRules(max_bytes=250, versions=("3.2.0",)), ["old", "other"]),
        (CleaningRules(max_bytes=1000), []),
        (CleaningRules(EntryFilter(archs=("sm_80",)), unused_days=1), []),
        (CleaningRules(EntryFilter(text="old")), ["old"]),
    ],
)
def test_what_is_chosen_is_what_the_rules_say(rules: CleaningRules, ids: list[str]) -> None:
    found = [_entry("new", 1), _entry("old", 60), _entry("used", 70, used=2), _entry("other", 20, version="3.2.0")]
    assert sorted(each.entry.id for each in choose(found, rules, NOW)) == sorted(ids)


def test_the_longest_unused_go_first_and_each_says_why() -> None:
    found = [_entry("new", 1), _entry("used", 70, used=2), _entry("old", 60)]
    chosen = choose(found, CleaningRules(unused_days=10, max_bytes=100), NOW)
    assert [(each.entry.id, each.reason) for each in chosen] == [
        ("old", "unused for 60 days"),
        ("used", "over the size"),
    ]
