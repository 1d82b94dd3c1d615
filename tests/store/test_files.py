"""Reading files of a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.store import files
from cache_engine.store.files import read_file


@pytest.mark.parametrize("at_once", [1, 3, 10, 11, 2**26])
@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11, 100])
def test_a_file_is_read_to_its_end_or_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, limit: int
) -> None:
    monkeypatch.setattr(files, "_AT_ONCE", at_once)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_file(path, limit) == b"0123456789"[:limit]
    assert read_file(tmp_path / "none", limit) is None


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"01234")
    status = path.stat()
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(os, "fstat", lambda _: status)
    assert read_file(path, 100) == b"0123456789"
