"""A folder of others is read within bounds, and never left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.frameworks import folder as module
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.values import Fault, id_of, name_of


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder with a file and a folder, and links to a folder next to it."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "below").mkdir(parents=True)
    (inside / "below" / "file").write_text("content")
    (inside / "link").symlink_to(outside)
    (inside / "below" / "link").symlink_to(outside / "secret")
    return inside


def test_a_file_below_is_read_by_its_path(top: Path) -> None:
    with Folder(top) as folder:
        assert folder.read("below/file", 7) == b"content"
        with folder.enter("below") as below:
            assert below.read("file", 100) == b"content"
            assert list(below.list().files) == ["file"]
        assert list(folder.list().folders) == ["below"]


@pytest.mark.parametrize(
    "path", ["link/secret", "below/link", "below/../below/file", "../outside/secret", "", "/etc/passwd"]
)
def test_no_path_and_no_link_leads_out(top: Path, path: str) -> None:
    with Folder(top) as folder, pytest.raises(Unread) as refused:
        folder.read(path, 100)
    assert refused.value.fault == Fault.NOT_A_FILE


def test_a_folder_that_is_a_link_is_not_entered(top: Path) -> None:
    with Folder(top) as folder, pytest.raises(Unread) as refused:
        folder.enter("link")
    assert refused.value.fault == Fault.NOT_A_FILE


def test_the_top_may_be_a_link_because_the_user_names_it(top: Path) -> None:
    with Folder(top / "link") as folder:
        assert folder.read("secret", 100) == b"secret"


def test_what_is_larger_than_the_bound_is_refused_not_cut(top: Path) -> None:
    with Folder(top) as folder, pytest.raises(Unread, match="it has 7 bytes; at most 6 are read") as refused:
        folder.read("below/file", 6)
    assert refused.value.fault == Fault.TOO_LARGE


def test_a_pipe_does_not_keep_the_reader_waiting(top: Path) -> None:
    os.mkfifo(top / "pipe")
    with Folder(top) as folder, pytest.raises(Unread) as refused:
        folder.read("pipe", 100)
    assert refused.value.fault == Fault.NOT_A_FILE


def test_a_folder_of_very_many_files_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    for number in range(4):
        (top / "below" / str(number)).touch()
    with Folder(top) as folder, folder.enter("below") as below, pytest.raises(Unread) as refused:
        below.list()
    assert refused.value.fault == Fault.TOO_MANY


def test_what_has_vanished_is_said_to_be_missing(top: Path) -> None:
    with Folder(top) as folder:
        for missing in ("none", "below/none", "none/file"):
            with pytest.raises(FileNotFoundError):
                folder.read(missing, 100)


def test_a_folder_that_is_moved_away_is_still_read(top: Path) -> None:
    """What is opened stays what it is, whatever stands at its path now."""
    with Folder(top) as folder:
        top.rename(top.with_name("moved"))
        top.symlink_to(top.with_name("outside"))
        assert folder.read("below/file", 100) == b"content"


def test_a_folder_is_listed_within_a_listing_of_it(top: Path) -> None:
    """Descriptors that are copies of each other share their position: the outer listing would never end."""
    for number in range(2_000):  # more than one system call returns
        (top / str(number)).touch()
    with Folder(top) as folder:
        names = []
        for item in folder:
            names.append(item.name)
            if len(names) in (1, 1_500):
                assert len(folder.list().files) == 2_000
            assert len(names) < 3_000
    assert len(names) == len(set(names)) == 2_002


def test_no_descriptor_is_left_open(top: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("below/file", "below/link", "link/secret", "none", "below"):
        with Folder(top) as folder:
            try:
                folder.read(path, 3)
            except (Unread, FileNotFoundError):
                continue
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "name", [b"plain/name-1.json", b"a\nb", b"100%", b"%41", b"\xff\xfe", "größe".encode(), b"\x1b[31m"]
)
def test_every_name_has_a_text_and_every_text_its_name(name: bytes) -> None:
    text = id_of(os.fsdecode(name))
    text.encode()  # DuckDB and JSON take no surrogates
    assert text.isprintable()
    assert os.fsencode(name_of(text)) == name
