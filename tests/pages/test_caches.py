"""The page Caches: what it shows of Triton's cache, of one with trouble, of hostile names, and of none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC
from pathlib import Path
from threading import Event
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from app.caches import scan
from app.presenters.caches import GROWTH, directory_columns
from app.presenters.columns import rows_of
from cache_engine.errors import IndexUnavailable
from cache_engine.frameworks import registry
from cache_engine.frameworks.registry import Sources
from cache_engine.frameworks.values import Place
from cache_engine.index import framework_caches
from cache_engine.index.sync import Index
from tests.frameworks.fixtures import unpack
from tests.pages.opening import Open, frames, listed, sound

Shown = Callable[..., AppTest]


@pytest.fixture
def cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's, in a directory that the settings name."""
    found = unpack("triton", home)
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"triton={found}")
    return found


@pytest.fixture
def shown(open_page: Open, tmp_path: Path) -> Shown:
    """Opens the page, and draws it again when the scan behind it has ended, as a browser does."""

    def opened(**parameters: str) -> AppTest:
        app = open_page(tmp_path / "store", "caches", **parameters)
        scan.scanner().look(60)
        return sound(app.run())

    return opened


def _tiles(app: AppTest) -> dict[str, str]:
    return {tile.label: tile.value for tile in app.metric}


def _table(app: AppTest, *columns: str) -> list[tuple[object, ...]]:
    (frame, *_) = [one for one in frames(app) if set(columns) <= set(one.columns)]
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_it_shows_directories_entries_and_that_nothing_is_wrong(shown: Shown, cache: Path) -> None:
    app = shown()
    tiles = _tiles(app)
    assert (tiles["Entries"], tiles["Findings"], tiles["Duplicates"]) == ("4", "0", "0")
    assert _table(app, "Framework", "Directory", "Entries", "Targets") == [
        ("Triton", str(cache), 4, "sm_90a (3), sm_80 (1)")
    ]
    app = shown(part="Entries")
    assert sorted((row["Name"], row["Target"], row["State"]) for row in listed(app)) == [
        ("scale", "sm_80", "complete"),
        ("scale", "sm_90a", "complete"),
        ("scale", "sm_90a", "complete"),
        ("tile", "sm_90a", "complete"),
    ]
    app = shown(part="Findings")
    assert "Nothing is wrong." in [one.value for one in app.caption]


def test_what_another_version_than_the_installed_one_made_is_stale(shown: Shown, cache: Path) -> None:
    """By the package's metadata: Triton is not imported."""
    metadata = next(cache.glob("*/tile.json"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"triton_version": "3.2.0"}))
    shutil.copytree(metadata.parent, cache / ("A" * 52))  # whose stamp is new
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(registry, "version", {"triton": "3.9.0+git1"}.__getitem__)
        app = shown()
    assert _tiles(app)["Stale"] == "2"
    assert sorted(_table(app, "Version", "Installed here", "Stale", "Entries")) == [
        ("3.2.0", "3.9.0+git1", True, 2),
        ("3.9.0", "3.9.0+git1", False, 3),
    ]


def test_equal_binaries_are_listed(shown: Shown, cache: Path) -> None:
    tile = next(cache.glob("*/tile.cubin"))
    shutil.copytree(tile.parent, cache / ("A" * 52))
    (row,) = _table(shown(), "Name", "Framework", "Entries", "Directories", "More than once")
    assert row == ("tile", "Triton", 2, 1, tile.stat().st_size)


def test_growth_is_what_there_is_by_the_day_on_which_it_was_made() -> None:
    rows = [{"kind": "triton", "day": 20_000 * 86_400, "entries": 2, "size_bytes": 1 << 20}]
    (row,) = rows_of(rows, GROWTH, UTC)
    assert row == {"Made on": "2024-10-04", "Entries": 2, "On disk": 1 << 20}


def test_while_a_scan_runs_the_page_says_how_far_it_is_and_shows_what_is_known(
    open_page: Open, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, really = Event(), framework_caches.scan

    def slow(index: Index, sources: Sources, places: Iterable[Place], progress: framework_caches.Progress) -> object:
        progress(1500, "/a/place")
        assert goes_on.wait(60)
        return really(index, sources, places, progress)

    monkeypatch.setattr(framework_caches, "scan", slow)
    app = sound(open_page(tmp_path / "store", "caches"))
    assert "Reading the caches: 1,500 entries so far. Now in /a/place" in [one.value for one in app.text]
    assert not app.info
    goes_on.set()
    scan.scanner().look(60)
    assert _tiles(sound(app.run()))["Entries"] == "4"
    assert "Scanned just now." in [one.value for one in app.text]


@pytest.mark.parametrize(("asked", "key", "value"), [
    ({"part": "Cleaning", "kind": "triton", "rule": "All that match"}, "c_kind", ["triton"]),
    ({"part": "Cleaning", "arch": "sm_80", "rule": "All that match"}, "c_arch", ["sm_80"]),
    ({"part": "Cleaning", "rule": "Made by versions", "versions": "3.9.0"}, "versions", ["3.9.0"]),
    ({"view": "Triton"}, "view", "Triton"),
])  # fmt: skip
def test_a_link_opened_during_the_first_scan_keeps_its_choices(
    open_page: Open, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str], key: str, value: object,
) -> None:  # fmt: skip
    """When only one directory is in the index, and what the link names is in the other."""
    other, is_partly_done, goes_on, really = unpack("cutile", tmp_path), Event(), Event(), framework_caches.scan
    monkeypatch.setenv("GEMM_CACHE_CACHES", f"cutile={other}:triton={cache}")

    def slow(index: Index, sources: Sources, places: Iterable[Place], progress: framework_caches.Progress) -> object:
        both = list(places)
        really(index, sources, [one for one in both if one.kind == "cutile"])
        is_partly_done.set()
        assert goes_on.wait(60)
        return really(index, sources, both, progress)

    with monkeypatch.context() as patch:
        patch.setattr(framework_caches, "scan", slow)
        app = open_page(tmp_path / "store", "kernels" if key == "view" else "caches", **asked)
        assert is_partly_done.wait(60)
        app = sound(app.run())
    assert app.session_state[key] == value
    goes_on.set()
    scan.scanner().look(60)
    app = sound(app.run())
    assert app.session_state[key] == value
    assert not [one.value for one in app.warning]


def test_why_a_scan_failed_is_said_and_the_next_look_scans_again(
    shown: Shown, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise IndexUnavailable("the disk refuses")

    with monkeypatch.context() as broken:
        broken.setattr(framework_caches, "scan", failing)
        with pytest.raises(AssertionError, match="The caches could not be scanned"):
            shown()
    assert not scan.scanner().runs
    scan.scanner().look(60)  # as the next drawing of the page does, at once
    assert not scan.scanner().trouble


def test_the_switch_names_each_framework_that_was_found(shown: Shown, cache: Path) -> None:
    views = ["This store", "Other frameworks", "By target", "SQL"]
    app = shown(part="Entries")
    assert app.button_group(key="view").options == [views[0], "Triton", *views[1:]]
    everything = listed(app)
    app.button_group(key="view").set_value("Triton").run()
    assert listed(sound(app)) == everything
    assert "kind" not in {one.key for one in app.multiselect}
    app.text_input(key="words").set_value("scale").run()
    app.button_group(key="view").set_value("This store").run()
    assert sound(app).text_input(key="q").value == "scale"


def test_a_search_is_part_of_the_address(shown: Shown, cache: Path) -> None:
    app = shown(q="scale num_warps=8")
    assert len(listed(app)) == 1
    app = shown(q="no such kernel")
    assert "No entry of any cache matches." in [one.value for one in app.caption]


def test_the_search_of_the_header_finds_entries_and_reads_no_cache(
    shown: Shown, open_page: Open, cache: Path, tmp_path: Path
) -> None:
    """By name, under a separate heading, from the index alone."""
    shown()
    entries = sorted(path.parent.name for path in cache.glob("*/scale.json"))
    shutil.rmtree(cache)
    app = open_page(tmp_path / "store", "overview")
    app.session_state["search-text"] = "scale"
    sound(app.button(key="search-button").click().run())
    assert "Caches of other frameworks" in [one.value for one in app.subheader]
    links = [link.proto for link in app.get("page_link") if link.proto.label.startswith("**scale** triton")]
    assert {link.page for link in links} == {"kernel"}
    asked = [parse_qs(link.query_string) for link in links]
    assert sorted(each["entry"][0] for each in asked) == entries
    assert {each["cache"][0] for each in asked} == {f"triton={cache}"}


def test_what_is_wrong_is_said_with_what_to_do_and_equal_binaries_are_counted(shown: Shown, cache: Path) -> None:
    tile = next(cache.glob("*/tile.ptx")).parent
    (tile / "tile.ptx").write_bytes(b"")
    copy = shutil.copytree(tile, cache / ("A" * 52))
    assert _tiles(shown())["Duplicates"] == "1"
    app = shown(part="Findings")
    found = {(row[0], row[1]) for row in _table(app, "Finding", "Where", "What to do")}
    assert found == {
        ("empty file", str(tile)),
        ("empty file", str(copy)),
        ("points elsewhere", str(copy)),
    }
    assert all(len(str(row[2])) > 20 for row in _table(app, "Finding", "Where", "What to do"))


def test_a_hostile_name_is_only_ever_text(shown: Shown, cache: Path) -> None:
    (cache / "<script>alert(1)<").mkdir()
    os.symlink("/etc", cache / "**bold** :red[x]\n")
    app = shown(part="Findings")
    assert not [one for one in app.markdown if "script" in one.value or "bold" in one.value]
    assert any("%0A" in str(row[0]) for row in _table(app, "Where", "Finding"))


def test_without_any_cache_it_says_how_to_name_one(shown: Shown, home: Path) -> None:
    app = shown()
    assert "The setting caches names directories elsewhere" in app.info[0].value
    assert not frames(app)


def test_targets_that_have_no_room_are_counted() -> None:
    place = {
        "kind": "cuda_core",
        "path": "/a",
        "origin": "given",
        "entries": 7,
        "size_bytes": 7,
        "partial": 0,
        "unread": 0,
    }
    archs = [{"kind": "cuda_core", "path": "/a", "value": f"sm_{number}", "entries": 1} for number in range(7)]
    times = dict.fromkeys(("oldest", "newest", "last_used_at"), 0.0)
    (row,) = rows_of([place | times], directory_columns([place | times], archs, [], {}), UTC)
    assert row["Targets"] == "sm_0 (1), sm_1 (1), sm_2 (1), sm_3 (1) and 3 more"
