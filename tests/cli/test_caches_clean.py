"""The verb that deletes from the caches of other frameworks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import UsageError
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import Place
from cache_engine.model.events import CLEAN_OTHER
from cache_engine.model.outcome import Failure
from cache_engine.store.journal import read_journal
from tests.cli.test_caches import Machine


@pytest.fixture
def machine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose only cache is Triton's, forty days old; nothing waits."""
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr("cache_engine.frameworks.deletion.time.sleep", lambda _: None)
    machine = Machine(home)
    for path in machine.cache.rglob("*"):
        os.utime(path, (time.time() - 40 * 86_400,) * 2)
    return machine


def test_without_delete_everything_is_listed_and_nothing_is_changed(machine: Machine, tmp_path: Path) -> None:
    before = sorted(machine.cache.rglob("*"))
    found = machine.json("clean", "--days", 30)
    assert {row["reason"] for row in found["entries"]} == {"unused for 40 days"}
    assert found["size_bytes"] == sum(path.stat().st_size for path in before if path.is_file())
    assert "4 entries to delete" in machine.run("clean", "--days", 30).stdout
    assert sorted(machine.cache.rglob("*")) == before
    assert not (tmp_path / "store").exists()
    assert machine.json("clean", "--days", 50)["entries"] == []


def test_what_is_deleted_is_what_was_listed_and_the_audit_has_it(machine: Machine, tmp_path: Path) -> None:
    listed = machine.json("clean", "--arch", "sm_80", "tile", "--all")
    assert listed["entries"] == []
    listed = machine.json("clean", "--arch", "sm_80")
    assert machine.json("clean", "--arch", "sm_80", "--yes") == listed
    (row,) = listed["entries"]
    assert not (machine.cache / row["id"]).exists()
    assert len(list(machine.cache.iterdir())) == 3
    assert audited(tmp_path / "store") == [
        (0, f"triton, {machine.cache}: 1 entry to delete"),
        (row["size_bytes"], f"triton, {machine.cache}: 1 entry"),
    ]


def audited(store: Path) -> list[tuple[int, str]]:
    """What the audit log has of deletions from these caches, each by a user."""
    with open_cache(store) as cache:
        events = [each for each in read_journal(cache.store.layout.journal).recent if each.kind == CLEAN_OTHER]
    assert all(event.by for event in events)
    return [(event.stored_bytes, event.detail) for event in sorted(events, key=lambda event: event.at)]


def test_what_is_to_be_deleted_is_in_the_audit_before_it_goes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        "cache_engine.frameworks.deletion.time.sleep", lambda _: seen.append(audited(tmp_path / "store"))
    )
    machine.run("clean", "--all", "--yes")
    assert seen == [[(0, f"triton, {machine.cache}: 4 entries to delete")]]


@pytest.mark.soak
def test_a_cleaning_that_is_killed_is_in_the_audit(machine: Machine, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cache_engine", "caches", "clean", "--all", "--yes"]
    with subprocess.Popen(command) as process:
        while list(machine.cache.glob("*/__grp__*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()  # it waits three seconds for readers
    assert audited(tmp_path / "store") == [(0, f"triton, {machine.cache}: 4 entries to delete")]


def test_nothing_is_deleted_where_no_audit_can_be_written(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "no")
    machine.run("clean", "--days", 30, "--yes", code=1)
    assert len(list(machine.cache.glob("*/__grp__*"))) == 4


def test_what_stays_is_said_with_the_reason_and_is_a_failure(machine: Machine) -> None:
    (machine.cache / next(machine.cache.iterdir()).name / "new").touch()
    assert "--yes does it." in machine.run("clean", "--kind", "triton").stdout
    done = machine.run("clean", "--kind", "triton", "--yes", code=1)
    assert "3 entries deleted" in done.stdout
    assert f"1 entry of triton in {machine.cache} not deleted: it was written less than 10 minutes ago" in done.stdout


def test_where_no_safe_way_is_known_only_offline_deletes_and_says_what_to_stop(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Triton, "plan_delete", lambda *_: Failure("nothing is known of its readers"))
    done = machine.run("clean", "--all", "--yes", code=1)
    assert "4 entries of triton" in done.stdout
    assert "nothing is known of its readers" in done.stdout
    assert "stop all of them" in done.stdout
    assert len(list(machine.cache.iterdir())) == 4
    done = machine.run("clean", "--all", "--offline", "--yes")
    assert "Warning: --offline deletes files at once." in done.stderr
    assert list(machine.cache.iterdir()) == []


def test_of_the_irs_alone_what_is_listed_is_deleted_and_the_kernels_stay(machine: Machine) -> None:
    for group in machine.cache.glob("*/__grp__*"):  # the directory was moved
        text = group.read_text().replace(str(machine.home / ".triton" / "triton"), str(machine.cache))
        group.write_text(text)
        for path in (group, group.parent):
            os.utime(path, (time.time() - 40 * 86_400,) * 2)
    irs = [path for path in machine.cache.rglob("*") if path.suffix in (".ttir", ".ttgir", ".llir")]
    listed = machine.json("clean", "--days", 30, "--part", "ir")
    assert listed["size_bytes"] == sum(path.stat().st_size for path in irs)
    assert len(listed["entries"]) == 4
    assert machine.json("clean", "--days", 30, "--part", "ir", "--yes") == listed
    assert not any(path.exists() for path in irs)
    assert len(machine.json("ls")["entries"]) == 4
    done = machine.run("clean", "--all", "--part", "ir", "--yes")
    assert "IRs of 0 entries deleted" in done.stdout


@pytest.mark.parametrize("other", [("--offline",), ("--max-bytes", "1GB")])
def test_the_irs_alone_go_in_no_other_way(machine: Machine, other: tuple[str, ...]) -> None:
    done = machine.run("clean", "--all", "--part", "ir", *other, code=1)
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (
            "--part",
            "ir",
        ),
        ("--yes",),
        ("--offline", "--yes"),
    ],
)
def test_no_rule_is_no_order_to_delete_everything(machine: Machine, arguments: tuple[str, ...]) -> None:
    done = machine.run("clean", *arguments, code=1)
    assert isinstance(done.exception, UsageError)
    assert "or --all" in str(done.exception)


def test_only_one_directory_is_cleaned_where_one_is_named(machine: Machine, tmp_path: Path) -> None:
    other = Place("triton", tmp_path / "other", "given")
    other.path.mkdir()
    found = machine.json("clean", "--in", other.path, "--cache", f"triton={other.path}")
    assert (found["entries"], found["findings"]) == ([], [])
    assert len(machine.json("clean", "--in", machine.cache)["entries"]) == 4


@pytest.fixture
def moved(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another directory of Triton's, which the environment names."""
    there = Path(shutil.copytree(machine.cache, tmp_path / "scratch"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(there))
    return there


def test_a_directory_that_is_not_in_use_is_cleaned_only_where_it_is_named(machine: Machine, moved: Path) -> None:
    """With TRITON_CACHE_DIR=/scratch, ``--kind triton --all --yes`` emptied ~/.triton/cache too."""
    listed = machine.json("clean", "--kind", "triton", "--all")
    assert {row["path"] for row in listed["entries"]} == {str(moved)}
    assert [tuple(row.values()) for row in listed["directories"]] == [
        ("triton", str(moved), 4, listed["size_bytes"], ""),
        ("triton", str(machine.cache), 0, 0, "TRITON_CACHE_DIR"),
    ]
    printed = machine.run("clean", "--kind", "triton", "--all", "--yes").stdout
    assert f"{machine.cache} is not in use here: TRITON_CACHE_DIR is set" in printed
    assert (len(list(machine.cache.iterdir())), list(moved.iterdir())) == (4, [])
    machine.run("clean", "--in", machine.cache, "--yes")
    assert list(machine.cache.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "kind"), [("TRITON_CACHE_DIR", "triton"), ("CUPY_CACHE_DIR", "cupy"), ("DG_JIT_CACHE_DIR", "deepgemm")]
)
def test_a_directory_within_one_in_use_is_cleaned_only_where_it_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, variable: str, kind: str
) -> None:
    """To the framework that uses the one above it is a folder without a meaning, whose files ``--offline`` deletes."""
    above = machine.cache.parent
    (above / "stray").touch()
    monkeypatch.setenv(variable, str(above))
    before = sorted(machine.cache.rglob("*"))
    done = machine.run("clean", "--kind", kind, "--all", "--offline", "--yes", code=1)
    assert "it is in a directory of another cache" in done.stdout
    assert not (above / "stray").exists()
    assert sorted(machine.cache.rglob("*")) == before
    machine.run("clean", "--in", machine.cache, "--offline", "--yes")
    assert list(machine.cache.iterdir()) == []


def test_a_directory_that_is_not_in_use_is_listed_apart_and_its_entries_only_where_it_is_named(
    machine: Machine, moved: Path
) -> None:
    rows = {row["path"]: row for row in machine.json()["directories"]}
    assert (rows[str(moved)]["replaced_by"], rows[str(machine.cache)]["replaced_by"]) == ("", "TRITON_CACHE_DIR")
    assert rows[str(machine.cache)]["entries"] == 4
    assert "Not in use here" in machine.run().stdout
    assert {row["path"] for row in machine.json("ls")["entries"]} == {str(moved)}
    assert machine.json("ls", "--cache", f"triton={machine.cache}")["total"] == 8
    (entry, *_) = machine.json("ls")["entries"]
    assert machine.json("show", entry["id"])["path"] == str(moved)
    assert machine.json("show", entry["id"], "--in", machine.cache)["path"] == str(machine.cache)
    assert machine.json("show", moved, machine.cache)["same"] == 4


def test_of_more_than_twenty_entries_twenty_are_listed_and_the_rest_counted(machine: Machine) -> None:
    first = min(machine.cache.iterdir())
    for number in range(18):
        shutil.copytree(first, machine.cache / f"{chr(65 + number) * 2}{first.name[2:]}")
    lines = machine.run("clean", "--all").stdout.splitlines()
    assert sum(line.startswith("triton ") and " in " not in line for line in lines) == 20
    assert "… and 2 more; --json has all" in lines
    assert len(machine.json("clean", "--all")["entries"]) == 22
