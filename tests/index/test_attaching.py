"""An index that is read often: quicker, and closed between two times of reading."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import IndexUnavailable
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store

WRITES = """
import sys, duckdb
with duckdb.connect(sys.argv[1]) as connection:
    connection.execute("DELETE FROM kernels")
"""


@pytest.fixture
def index(store: DiskStore) -> Iterator[Index]:
    """Of a store with three kernels."""
    fill(store, 3)
    index = Index(store)
    index.reads_often = True
    index.sync()
    yield index
    assert not _is_open(index), "others could not write"


def _count(index: Index) -> int:
    return index.query(queries.count, queries.KernelFilter())


def _is_open(index: Index) -> bool:
    opened = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    return str(index.path) in opened


def test_another_process_writes_between_two_times_of_reading_and_is_seen(index: Index) -> None:
    assert _count(index) == 3
    subprocess.run([sys.executable, "-c", WRITES, str(index.path)], check=True)
    assert _count(index) == 0


def test_our_own_sync_is_seen(index: Index, store: DiskStore) -> None:
    assert _count(index) == 3
    fill(store, 5)
    index.sync()
    assert _count(index) == 5
    index.sync(rebuild=True)
    assert _count(index) == 5


def test_all_who_read_at_once_share_one_opening_until_the_last_leaves(index: Index) -> None:
    with ExitStack() as early:
        early.enter_context(index.read())
        with index.read() as late:
            early.close()
            assert _is_open(index)
            assert late.execute("SELECT count(*) FROM kernels").fetchone() == (3,)


def test_threads_read_at_once(index: Index) -> None:
    counted: list[int] = []
    threads = [threading.Thread(target=lambda: counted.extend(_count(index) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [3] * 40


def test_a_mirror_that_was_damaged_is_rebuilt(index: Index) -> None:
    assert _count(index) == 3
    index.path.write_bytes(b"no mirror" * 1000)
    assert _count(index) == 3


def test_a_wrong_question_harms_no_other(index: Index) -> None:
    with pytest.raises(IndexUnavailable, match="cannot read the index"):
        index.query(lambda connection: connection.execute("SELECT no_such_column FROM kernels"))
    assert _count(index) == 3


def test_a_question_that_takes_too_long_is_stopped(index: Index) -> None:
    def without_end(connection: Any) -> None:
        connection.execute("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b").fetchall()

    index.query_limit_s = 0.1
    with pytest.raises(IndexUnavailable, match="the query was stopped"):
        index.query(without_end)
    index.query_limit_s = None
    assert _count(index) == 3


def test_a_name_with_a_quote_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "it's")
    fill(store, 1)
    index = Index(store)
    index.reads_often = True
    index.sync()
    assert _count(index) == 1


def test_a_forked_child_reads_and_ends(index: Index) -> None:
    """The instance's threads are only in the parent."""
    assert _count(index) == 3
    parents = index._attaching._instance
    with index.read():
        child = os.fork()
        if not child:
            os._exit(_count(index) if index._attaching._instance is not parents else 99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert _count(index) == 3
