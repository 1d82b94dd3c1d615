"""What was written to a journal in the last seconds, without reading all of it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.model.events import REMOTE_DOWN, REMOTE_UP
from cache_engine.store.journal import Journal, recent_events

KINDS = (REMOTE_DOWN, REMOTE_UP)


def _write(folder: Path, **fields: object) -> None:
    with closing(Journal(folder, 3600.0)) as journal:
        journal.event(REMOTE_DOWN, remote="s3://a", **fields)


def test_the_last_of_a_long_file_are_found_and_nothing_far_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_engine.store.journal.snapshot._TAIL_BYTES", 1000)
    for number in range(20):
        _write(tmp_path, detail=f"{number}")
    found = [event.detail for event in recent_events(tmp_path, KINDS, time.time() - 60)]
    assert found == [f"{number}" for number in range(20 - len(found), 20)]
    assert 0 < len(found) < 20


def test_a_file_that_was_not_written_since_is_not_opened(tmp_path: Path) -> None:
    _write(tmp_path)
    (file,) = tmp_path.iterdir()
    now = time.time()
    os.utime(file, (now - 61, now - 61))
    assert list(recent_events(tmp_path, KINDS, now - 60)) == []
    os.utime(file, (now, now))
    assert len(list(recent_events(tmp_path, KINDS, now - 60))) == 1
    assert list(recent_events(tmp_path, [REMOTE_UP], now - 60)) == []
    _write(tmp_path, detail=REMOTE_UP)
    assert list(recent_events(tmp_path, [REMOTE_UP], now - 60)) == []


def test_without_a_journal_there_is_nothing(tmp_path: Path) -> None:
    assert list(recent_events(tmp_path / "none", KINDS, 0.0)) == []
