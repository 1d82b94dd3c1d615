"""Kernels of a cache of Triton's own are imported, each checked; what is no kernel stays, what is wrong is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.bundles import read_group
from cache_engine.index import queries
from cache_engine.store.disk import DiskStore
from cache_engine.upkeep.integrity import check
from tests.adapters.made import TILE, triton_groups
from tests.cli.test_cli import document, run
from tests.frameworks.fixtures import unpack


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A cache that Triton made."""
    return unpack("triton", tmp_path / "theirs")


def test_every_kernel_is_taken_as_it_is_and_once(store: DiskStore, theirs: Path, tmp_path: Path) -> None:
    place = store.layout.root
    planned = document("pack", "import", theirs, "--dry-run", store=place)
    assert (planned["taken"], planned["present"], planned["refused"], planned["left"]) == (4, 0, [], [])
    assert not list(store.layout.groups.glob("*"))
    with open_cache(place) as cache:
        assert cache.query(queries.acts) == []
    done = document("pack", "import", theirs, store=place)
    assert (done["taken"], done["taken_bytes"]) == (4, planned["taken_bytes"])
    assert done["taken_bytes"] == sum(path.stat().st_size for path in store.layout.groups.iterdir())
    for expected in triton_groups(tmp_path / "expected").values():
        found = read_group(store.layout, expected.key)
        assert found is not None
        assert (found.name, found.index, found.files) == (expected.name, expected.index, expected.files)
        assert found.made_at == (theirs / found.name / f"__grp__{found.index}").stat().st_mtime
        assert found.compile_ms is None
    again = document("pack", "import", theirs, store=place)
    assert (again["taken"], again["present"]) == (0, 4)
    assert list(check(store)) == []
    with open_cache(place) as cache:
        (act,) = cache.query(queries.acts)
    assert (act["kind"], act["stored_bytes"]) == ("import", done["taken_bytes"])
    assert act["detail"] == f"4 kernels of Triton from {theirs}"


def test_a_moved_cache_is_imported_by_its_own_files(store: DiskStore, theirs: Path) -> None:
    moved = theirs.rename(theirs.with_name("moved"))
    assert document("pack", "import", moved, store=store.layout.root)["taken"] == 4


def test_a_damaged_kernel_of_ours_is_replaced(store: DiskStore, theirs: Path) -> None:
    document("pack", "import", theirs, store=store.layout.root)
    path = next(store.layout.groups.iterdir())
    path.write_bytes(b"damaged")
    done = document("pack", "import", theirs, store=store.layout.root)
    assert (done["taken"], done["present"]) == (1, 3)
    assert list(check(store)) == []


def _unfinished(folder: Path) -> None:
    (folder / "__grp__tile.json").unlink()


def _without_part(folder: Path) -> None:
    (folder / "tile.ptx").unlink()


def _library(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "launch.so").write_bytes(b"\x7fELF")


def _tuned(folder: Path) -> None:
    _library(folder)
    (folder / "launch.so").rename(folder / "tile.autotune.json")


def _with_library(folder: Path) -> None:
    (folder / "tile.so").write_bytes(b"\x7fELF")
    _name_too(folder, "tile.so")


def _strange_name(folder: Path) -> None:
    folder.rename(folder.with_name("stranger\x1b[31m"))


def _name_too(folder: Path, name: str, path: str = "") -> None:
    group = json.loads((folder / "__grp__tile.json").read_text())
    group["child_paths"][name] = path or str(folder / name)
    (folder / "__grp__tile.json").write_text(json.dumps(group))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_unfinished, "it has no group file"),
        (_without_part, "a file that its group file names is missing"),
        (_library, "a library for the host"),
        (_tuned, "results of tuning"),
        (_with_library, "a library for the host"),
        (_strange_name, "not named as Triton names a key"),
    ],
)
def test_what_is_no_kernel_is_left_with_the_reason(
    store: DiskStore, theirs: Path, change: Callable[[Path], None], why: str
) -> None:
    change(theirs / TILE)
    done = document("pack", "import", theirs, store=store.layout.root)
    assert (done["taken"], done["refused"]) == (3, [])
    (left,) = done["left"]
    assert why in left["cause"]
    assert "\x1b" not in run("pack", "import", theirs, store=store.layout.root).stderr


def _link(folder: Path) -> None:
    (folder / "tile.ptx").rename(folder.parent / "elsewhere")
    (folder / "tile.ptx").symlink_to(folder.parent / "elsewhere")
    os.unlink(folder.parent / "elsewhere")
    (folder / "tile.ptx").unlink()
    (folder / "tile.ptx").symlink_to("/etc/passwd")


def _traversal(folder: Path) -> None:
    _name_too(folder, "../../secret", "/a/../../secret")


def _other_name(folder: Path) -> None:
    _name_too(folder, "tile.llir", "/etc/passwd")


def _cut_code(folder: Path) -> None:
    (folder / "tile.cubin").write_bytes((folder / "tile.cubin").read_bytes()[:300])


def _no_code(folder: Path) -> None:
    (folder / "tile.cubin").write_bytes(b"#!/bin/sh")


def _other_target(folder: Path) -> None:
    text = (folder / "tile.json").read_text()
    (folder / "tile.json").write_text(text.replace('"arch": 90', '"arch": 80'))


def _other_function(folder: Path) -> None:
    text = (folder / "tile.json").read_text()
    (folder / "tile.json").write_text(text.replace('"name": "tile"', '"name": "other"'))


def _other_key(folder: Path) -> None:
    folder.rename(folder.with_name("A" * 52))


def _no_json(folder: Path) -> None:
    (folder / "tile.json").write_text("[" * 10_000)


def _no_group(folder: Path) -> None:
    (folder / "__grp__tile.json").write_text('{"child_paths": ["tile.json"]}')


def _huge(folder: Path) -> None:
    with (folder / "tile.llir").open("r+b") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_link, "link"),
        (_traversal, "which is no file of it"),
        (_other_name, "which is no file of it"),
        (_cut_code, ""),
        (_no_code, ""),
        (_other_target, "its CUBIN is for sm_90a, its metadata say sm_80"),
        (_other_function, "no function of the name"),
        (_other_key, "of another key"),
        (_no_json, "not JSON"),
        (_no_group, "does not name its metadata"),
        (_huge, ""),
    ],
)
def test_what_is_damaged_or_forged_is_refused_and_the_rest_is_taken(
    store: DiskStore, theirs: Path, change: Callable[[Path], None], why: str
) -> None:
    change(theirs / TILE)
    done = document("pack", "import", theirs, store=store.layout.root, code=1)
    assert (done["taken"], done["left"]) == (3, [])
    (refused,) = done["refused"]
    assert why in refused["cause"]
    assert list(check(store)) == []


def test_a_directory_that_is_not_there_or_empty_is_said(store: DiskStore, tmp_path: Path) -> None:
    assert run("pack", "import", tmp_path / "nowhere", store=store.layout.root).returncode == 2
    (tmp_path / "empty").mkdir()
    done = document("pack", "import", tmp_path / "empty", store=store.layout.root)
    assert (done["taken"], done["present"], done["left"]) == (0, 0, [])
