"""Lines of files that processes append to are read whole or not at all, and written whole or with an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.model.decision import MISS, Decision
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal.decisions import DecisionReader, append_decisions
from cache_engine.store.journal.lines import OPEN, append, read_new


def test_a_line_of_the_journal_is_read_once_when_it_is_whole(tmp_path: Path) -> None:
    file, positions = tmp_path / f"a{OPEN}", dict[str, int]()
    file.write_bytes(b"first\nsec")
    assert list(read_new(tmp_path, set(), positions)) == [("a", b"first\n")]
    file.write_bytes(b"first\nsecond\n")
    assert list(read_new(tmp_path, set(), positions)) == [("a", b"second\n")]


def test_a_decision_that_is_being_written_is_read_once_when_it_is_whole(store: DiskStore) -> None:
    layout = store.layout
    append_decisions(layout, [Decision(kind=MISS, at=float(number), detail=str(number)) for number in (1, 2)])
    whole = layout.decisions_log.read_bytes()
    layout.decisions_log.write_bytes(whole[:-20])
    reader = DecisionReader(layout)
    assert [one.detail for one in reader.new()] == ["1"]
    layout.decisions_log.write_bytes(whole)
    assert [one.detail for one in reader.new()] == ["2"]
    assert reader.damaged == 0


def test_what_is_written_in_part_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _, data: len(data) - 1)
    with pytest.raises(OSError, match="only a part"):
        append(7, b"line\n")
