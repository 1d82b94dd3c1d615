"""Deleting the IRs of Triton's entries: in which order, what stays, and what another process may do meanwhile."""

from __future__ import annotations

import errno
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import DELETED, Deleted, delete
from cache_engine.frameworks.readers.triton import READ_WITHIN_S, Triton
from cache_engine.frameworks.values import DeletePlan, Entry, PartKind, Place, State
from tests.frameworks.fixtures import unpack
from tests.frameworks.test_deleting import while_waiting

IRS = (".ttir", ".ttgir", ".llir")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that Triton 3.9.0 made: four entries, an hour old."""
    place = Place("triton", unpack("triton", tmp_path), "given")
    _age(place.path)
    return place


@pytest.fixture
def tile(place: Place) -> Path:
    """One of the entries."""
    (file,) = place.path.glob("*/tile.ptx")
    return file.parent


def _age(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - 3600,) * 2)


def _entries(place: Place) -> list[Entry]:
    return [seen for seen in Triton().scan(place, {}) if isinstance(seen, Entry)]


def _plan(place: Place) -> DeletePlan:
    plan = Triton().plan_thinning(place, _entries(place))
    assert isinstance(plan, DeletePlan)
    return plan


def _irs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in IRS]


def test_a_group_file_without_the_irs_comes_first_and_the_irs_go_after_a_wait(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    irs = _irs(place.path)
    size = sum(path.stat().st_size for path in irs)
    others = {
        path: path.read_bytes() for path in place.path.rglob("*.*") if path not in irs and "__grp__" not in path.name
    }
    before = {entry.id: entry for entry in _entries(place)}

    def look() -> None:
        assert _irs(place.path) == irs
        for group in place.path.rglob("__grp__*"):
            named = json.loads(group.read_text())["child_paths"]
            assert {path.rpartition(".")[2] for path in named} == {"source", "ptx", "cubin", "json"}
            assert all(Path(path).is_file() for path in named.values())

    assert while_waiting(monkeypatch, look) == []
    done = delete(place, _plan(place), Deleted())
    assert (len(done.ids), done.size_bytes, done.left) == (4, size, {})
    assert _irs(place.path) == []
    assert {path: path.read_bytes() for path in others} == others
    for entry in _entries(place):
        assert entry.state == State.COMPLETE
        assert entry.part(PartKind.IR) is None
        assert (entry.name, entry.config, entry.created_at) == (
            before[entry.id].name, before[entry.id].config, before[entry.id].created_at
        )  # fmt: skip


def test_processes_that_have_read_the_old_group_file_have_time_to_read_the_irs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = while_waiting(monkeypatch, lambda: None)
    delete(place, _plan(place), Deleted())
    assert waits == [READ_WITHIN_S]


def _started(folder: Path) -> None:
    (folder / "tmp.pid_7_x").mkdir()


def _rebuilt(folder: Path) -> None:
    """As Triton does: an IR, then the group file that names it."""
    for name in ("tile.llir", "__grp__tile.json"):
        (folder / "new").write_bytes((folder / name).read_bytes())
        os.replace(folder / "new", folder / name)


@pytest.mark.parametrize("act", [_started, _rebuilt])
def test_an_entry_that_is_written_while_others_wait_keeps_its_irs(
    place: Place, tile: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    while_waiting(monkeypatch, lambda: act(tile))
    done = delete(place, _plan(place), Deleted())
    assert done.left == {tile.name: "it was written meanwhile: a process uses it"}
    assert len(_irs(tile)) == len(IRS)


def test_an_entry_that_is_written_between_the_plan_and_the_deletion_is_not_touched(
    place: Place, tile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_waiting(monkeypatch, lambda: None)
    plan = _plan(place)
    _started(tile)
    group = (tile / "__grp__tile.json").read_bytes()
    assert list(delete(place, plan, Deleted()).left) == [tile.name]
    assert (tile / "__grp__tile.json").read_bytes() == group


def test_an_ir_that_a_writer_replaces_just_before_it_would_go_stays(
    place: Place, tile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_waiting(monkeypatch, lambda: None)
    unlink = os.unlink

    def late(name: str, **where: int) -> None:
        (tile / "new").write_text("newer")
        os.replace(tile / "new", tile / "tile.ttir")
        unlink(name, **where)

    plan = _plan(place)
    (deletion,) = [each for each in plan.deletions if each.id == tile.name]
    monkeypatch.setattr(os, "unlink", late)
    done = delete(place, DeletePlan((deletion,), plan.wait_s), Deleted())
    assert list(done.left) == [tile.name]
    assert (tile / "tile.ttir").read_text() == "newer"


def test_what_a_run_left_that_was_killed_goes_with_the_next(
    place: Place, tile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the wait: no group names the IRs; killed as it wrote the group file: the new one has another name."""

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    while_waiting(monkeypatch, kill)
    with pytest.raises(Killed):
        delete(place, _plan(place), Deleted())
    assert len(_irs(tile)) == len(IRS)
    (tile / f"{DELETED}x").write_text("{")
    _age(place.path)
    while_waiting(monkeypatch, lambda: None)
    assert len(delete(place, _plan(place), Deleted()).ids) == 4
    assert {path.name for path in tile.iterdir()} == {
        "__grp__tile.json", "tile.cubin", "tile.json", "tile.ptx", "tile.source"
    }  # fmt: skip


def _recent(tile: Path) -> None:
    (tile / "tile.llir").touch()


def _of_another_version(tile: Path) -> None:
    document = json.loads((tile / "tile.json").read_text()) | {"triton_version": "4.0.0"}
    (tile / "tile.json").write_text(json.dumps(document))
    _age(tile)


def _partial(tile: Path) -> None:
    (tile / "tile.ptx").unlink()
    _age(tile)


def _without_group(tile: Path) -> None:
    (tile / "__grp__tile.json").unlink()
    _age(tile)


def _elsewhere(tile: Path) -> None:
    group = tile / "__grp__tile.json"
    group.write_text(group.read_text().replace(str(tile), "/elsewhere"))
    _age(tile)


def _hostile(tile: Path) -> None:
    (tile / "__grp__tile.json").write_text('{"child_paths": [["tile.json"]]}')
    _age(tile)


def _without_binary(tile: Path) -> None:
    group = tile / "__grp__tile.json"
    document = json.loads(group.read_text())
    del document["child_paths"]["tile.cubin"]
    group.write_text(json.dumps(document))
    _age(tile)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_recent, "less than 10 minutes"),
        (_of_another_version, "whether Triton 4.0.0 uses it"),
        (_partial, "partial"),
        (_without_group, "no group file"),
        (_elsewhere, "another directory"),
        (_hostile, "partial"),
        (_without_binary, "no binary"),
    ],
)
def test_an_entry_that_triton_may_not_use_without_irs_is_left_as_it_is(
    place: Place, tile: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], why: str
) -> None:
    change(tile)
    before = {path: path.read_bytes() for path in tile.iterdir()}
    while_waiting(monkeypatch, lambda: None)
    done = delete(place, _plan(place), Deleted())
    assert list(done.left) == [tile.name]
    assert why in done.left[tile.name]
    assert {path: path.read_bytes() for path in tile.iterdir()} == before


def test_a_disk_that_refuses_the_group_file_leaves_the_entry_as_old_as_it_was(place: Place) -> None:
    """Else nothing could be deleted for ten minutes, as what was written lately may be in the making."""
    plan, limit = _plan(place), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        done = delete(place, plan, Deleted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (done.ids, set(done.left.values())) == ([], {"File too large"})
    whole = Triton().plan_delete(place, _entries(place))
    assert isinstance(whole, DeletePlan)
    assert (len(whole.deletions), whole.left) == (4, {})


def test_where_even_the_old_group_file_makes_no_room_the_others_are_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a snapshot of the file system holds it: the first entry is a miss then, and no other."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("cache_engine.frameworks.deletion.os.fchmod", full)
    done = delete(place, _plan(place), Deleted())
    assert (done.ids, set(done.left.values())) == ([], {"full"})
    assert len(list(place.path.glob("*/__grp__*"))) == 3
    assert len(_irs(place.path)) == 12
    assert not list(place.path.glob(f"*/{DELETED}*"))
