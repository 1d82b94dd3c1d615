"""The page Caches: what it shows of Triton's cache, of one with trouble, of hostile names, and of none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.foreign.doctor import read_mounts
from cache_engine.foreign.remembered import Remembered
from tests.foreign.fixtures import unpack
from tests.pages.opening import Open, sound

MOVED = ("TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any cache."""
    for name in MOVED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "home"


@pytest.fixture
def cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's, in a directory that the settings name."""
    found = unpack("triton", home)
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"triton={found}")
    return found


def _tiles(app: AppTest) -> dict[str, str]:
    return {tile.label: tile.value for tile in app.metric}


def _table(app: AppTest, *columns: str) -> list[tuple[object, ...]]:
    (frame, *_) = [one.value for one in app.dataframe if set(columns) <= set(one.value.columns)]
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_it_shows_directories_entries_and_that_nothing_is_wrong(open_page: Open, cache: Path, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "caches"))
    tiles = _tiles(app)
    assert (tiles["Entries"], tiles["Findings"], tiles["Duplicates"]) == ("4", "0", "0")
    assert _table(app, "Framework", "Directory", "Entries", "Targets") == [
        ("Triton", str(cache), 4, "sm_90a (3), sm_80 (1)")
    ]
    assert sorted(_table(app, "Name", "Target", "State")) == [
        ("scale", "sm_80", "complete"),
        ("scale", "sm_90a", "complete"),
        ("scale", "sm_90a", "complete"),
        ("tile", "sm_90a", "complete"),
    ]
    assert "Nothing is wrong." in [one.value for one in app.caption]


def test_a_search_is_part_of_the_address(open_page: Open, cache: Path, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "caches", q="scale num_warps=8"))
    assert len(_table(app, "Name", "Target", "State")) == 1
    app = sound(open_page(tmp_path / "store", "caches", q="no such kernel"))
    assert "No entry of any cache matches." in [one.value for one in app.caption]


def test_what_is_wrong_is_said_with_what_to_do_and_equal_binaries_are_counted(
    open_page: Open, cache: Path, tmp_path: Path
) -> None:
    tile = next(cache.glob("*/tile.ptx")).parent
    (tile / "tile.ptx").write_bytes(b"")
    copy = shutil.copytree(tile, cache / ("A" * 52))
    app = sound(open_page(tmp_path / "store", "caches"))
    assert _tiles(app)["Duplicates"] == "1"
    found = {(row[0], row[1]) for row in _table(app, "Finding", "Where", "What to do")}
    assert found == {
        ("empty file", str(tile)),
        ("empty file", str(copy)),
        ("points elsewhere", str(copy)),
    }
    assert all(len(str(row[2])) > 20 for row in _table(app, "Finding", "Where", "What to do"))


def test_a_hostile_name_is_only_ever_text(open_page: Open, cache: Path, tmp_path: Path) -> None:
    (cache / "<script>alert(1)<").mkdir()
    os.symlink("/etc", cache / "**bold** :red[x]\n")
    app = sound(open_page(tmp_path / "store", "caches"))
    assert not [one for one in app.markdown if "script" in one.value or "bold" in one.value]
    assert any("%0A" in str(row[0]) for row in _table(app, "Where", "Finding"))


def test_without_any_cache_it_says_how_to_name_one(open_page: Open, home: Path, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "caches"))
    assert "The setting caches names directories elsewhere" in app.info[0].value
    assert not app.dataframe


def test_what_has_not_changed_is_not_read_again_and_what_has_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not by the doctor."""
    known, given = Remembered(), [f"triton={cache}"]

    def wrong() -> list[str]:
        seen = known.look(given)
        assert sum(map(len, seen.places.values())) == 4
        return [each.detail for each in known.examine(seen, runs_here=None, mounts=read_mounts())]

    assert wrong() == []
    reads: list[object] = []
    really = os.read

    def counted(*given: int) -> bytes:
        reads.append(given)
        return really(*given)

    monkeypatch.setattr(os, "read", counted)
    assert wrong() == []
    assert reads == []
    tile = next(cache.glob("*/tile.ptx"))
    tile.unlink()
    tile.write_bytes(b"")
    assert wrong() == [f"{tile.parent.name}/tile.ptx"]
    assert reads
    assert wrong() == [f"{tile.parent.name}/tile.ptx"]
