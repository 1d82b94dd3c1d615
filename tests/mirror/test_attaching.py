"""A mirror that is read often: quicker, and closed between two times of reading."""

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

from cache_engine.errors import MirrorError
from cache_engine.index import queries
from cache_engine.index.sync import Mirror
from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store

WRITES = """
import sys, duckdb
with duckdb.connect(sys.argv[1]) as connection:
    connection.execute("DELETE FROM kernels")
"""


@pytest.fixture
def mirror(store: DiskStore) -> Iterator[Mirror]:
    """Of a store with three kernels."""
    fill(store, 3)
    mirror = Mirror(store)
    mirror.reads_often = True
    mirror.sync()
    yield mirror
    assert not _is_open(mirror), "others could not write"


def _count(mirror: Mirror) -> int:
    return mirror.query(queries.count, queries.KernelFilter())


def _is_open(mirror: Mirror) -> bool:
    opened = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    return str(mirror.path) in opened


def test_another_process_writes_between_two_times_of_reading_and_is_seen(mirror: Mirror) -> None:
    assert _count(mirror) == 3
    subprocess.run([sys.executable, "-c", WRITES, str(mirror.path)], check=True)
    assert _count(mirror) == 0


def test_our_own_sync_is_seen(mirror: Mirror, store: DiskStore) -> None:
    assert _count(mirror) == 3
    fill(store, 5)
    mirror.sync()
    assert _count(mirror) == 5
    mirror.sync(rebuild=True)
    assert _count(mirror) == 5


def test_all_who_read_at_once_share_one_opening_until_the_last_leaves(mirror: Mirror) -> None:
    with ExitStack() as early:
        early.enter_context(mirror.read())
        with mirror.read() as late:
            early.close()
            assert _is_open(mirror)
            assert late.execute("SELECT count(*) FROM kernels").fetchone() == (3,)


def test_threads_read_at_once(mirror: Mirror) -> None:
    counted: list[int] = []
    threads = [threading.Thread(target=lambda: counted.extend(_count(mirror) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [3] * 40


def test_a_mirror_that_was_damaged_is_rebuilt(mirror: Mirror) -> None:
    assert _count(mirror) == 3
    mirror.path.write_bytes(b"no mirror" * 1000)
    assert _count(mirror) == 3


def test_a_wrong_question_harms_no_other(mirror: Mirror) -> None:
    with pytest.raises(MirrorError, match="cannot read the mirror"):
        mirror.query(lambda connection: connection.execute("SELECT no_such_column FROM kernels"))
    assert _count(mirror) == 3


def test_a_question_that_takes_too_long_is_stopped(mirror: Mirror) -> None:
    def without_end(connection: Any) -> None:
        connection.execute("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b").fetchall()

    mirror.query_limit_s = 0.1
    with pytest.raises(MirrorError, match="the query was stopped"):
        mirror.query(without_end)
    mirror.query_limit_s = None
    assert _count(mirror) == 3


def test_a_name_with_a_quote_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "it's")
    fill(store, 1)
    mirror = Mirror(store)
    mirror.reads_often = True
    mirror.sync()
    assert _count(mirror) == 1


def test_a_forked_child_reads_and_ends(mirror: Mirror) -> None:
    """The instance's threads are only in the parent."""
    assert _count(mirror) == 3
    parents = mirror._attaching._instance
    with mirror.read():
        child = os.fork()
        if not child:
            os._exit(_count(mirror) if mirror._attaching._instance is not parents else 99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert _count(mirror) == 3
