"""Ctrl-C while DuckDB works."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from cache_engine.index import sync as sync_module
from cache_engine.index.sync import Index
from cache_engine.store.disk import DiskStore
from tests.helpers import fill


def _without_end(connection: Any) -> None:
    """Asks many short questions; Ctrl-C comes in one of them, or between two."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    while True:
        connection.execute("SELECT sum(a.range * b.range) FROM range(1000) a, range(1000) b").fetchall()


def _interrupted(*_: object) -> None:
    raise RuntimeError("Query interrupted")  # what DuckDB 2.0 makes of Ctrl-C


@pytest.mark.parametrize("question", [_without_end, _interrupted])
def test_ctrl_c_ends_a_query(store: DiskStore, question: Any) -> None:
    index = Index(store)
    index.sync()
    with pytest.raises(KeyboardInterrupt):
        index.query(question)
    assert index.query(lambda connection: connection.execute("SELECT count(*) FROM kernels").fetchone()) == (0,)


def test_ctrl_c_ends_a_sync_which_is_done_again_later(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    index = Index(store)
    with monkeypatch.context() as patch:
        patch.setattr(sync_module, "_sync", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.sync()
    assert index.sync().added == 3


def test_any_other_error_is_raised_as_it_is(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("some other trouble")

    monkeypatch.setattr(sync_module, "_sync", fail)
    with pytest.raises(RuntimeError, match="some other trouble"):
        Index(store).sync()
