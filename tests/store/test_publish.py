"""Publishing a file: what fails is raised and leaves nothing, and what is durable is synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cache_engine.process import OwnFile
from cache_engine.store import publish
from cache_engine.store.publish import publish_file


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    (tmp_path / "temp").mkdir()
    return tmp_path / "temp"


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_synced_with_its_folder_and_a_new_folder_with_its_own(
    temp: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(publish, "sync_folder", synced.append)
    shard = temp.parent / "kernels" / "ab"
    for name in ("a", "b"):
        publish_file(temp, str(shard / name), name.encode(), durable=durable)
        assert (shard / name).read_bytes() == name.encode()
    assert synced == ([str(shard.parent), str(shard), str(shard)] if durable else [])
    assert list(temp.iterdir()) == []


def test_a_folder_that_another_process_has_just_made_is_used(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, target = os.rename, temp.parent / "ab" / "a"

    def late(source: str, destination: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        try:
            rename(source, destination)
        finally:
            target.parent.mkdir()

    monkeypatch.setattr(os, "rename", late)
    publish_file(temp, str(target), b"data", durable=False)
    assert target.read_bytes() == b"data"


def test_an_error_of_closing_is_raised(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may report only then that the disk is full."""
    close = os.close

    def full(descriptor: int) -> None:
        monkeypatch.setattr(os, "close", close)
        close(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "close", full)
    with pytest.raises(OSError, match="No space left"):
        publish_file(temp, str(temp.parent / "a"), b"data", durable=False)


def test_without_a_folder_for_temporaries_the_error_is_the_disks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish_file(tmp_path / "temp", str(tmp_path / "a"), b"data", durable=False)


def test_a_temporary_is_deleted_if_its_maker_is_interrupted_before_it_owns_the_file(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: str, flags: int) -> OwnFile:
        os.close(os.open(path, flags, 0o600))
        raise KeyboardInterrupt

    monkeypatch.setattr(OwnFile, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish_file(temp, str(temp.parent / "a"), b"data", durable=False)
    assert list(temp.parent.iterdir()) == [temp]
    assert list(temp.iterdir()) == []
