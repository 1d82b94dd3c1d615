"""Processes look up and store in cuTile's database while rows of it are deleted: none fails, and the database stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.cutile import CuTile
from cache_engine.frameworks.values import DeletePlan, Entry, Place
from tests.frameworks.fixtures import unpack

_USE = """
import json, pathlib, sqlite3, sys, time

place, stop, step = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])

def use(key, blob):
    # As cuTile 1.7.0: a connection for each, which waits five seconds at most.
    database = sqlite3.connect(place / "cache.db", timeout=5.0)
    try:
        database.execute("CREATE INDEX IF NOT EXISTS idx_cache_atime_key on cache(atime, key)")
        row = database.execute("SELECT blob FROM cache WHERE key = ?", (key,)).fetchone()
        if row is not None:
            database.execute("UPDATE cache SET atime = ? WHERE key = ?", (time.time(), key))
        else:
            database.execute(
                "INSERT OR IGNORE INTO cache (key, blob, blob_size, atime) VALUES (?, ?, ?, ?)",
                (key, blob, len(blob), time.time()),
            )
        database.commit()
        return row and row[0]
    finally:
        database.close()

hits, misses, number = 0, 0, step
while not stop.exists():
    time.sleep(0.02)  # two that never rest keep each other waiting for seconds, without us
    number = (number + step) % 97
    blob = bytes([number]) * 40_000
    found = use(f"key-{number}", blob)
    assert found is None or found == blob, "the wrong bytes"
    hits, misses = hits + (found is not None), misses + (found is None)
    if hits + misses == 97:
        print("warm", flush=True)
print(json.dumps([hits, misses]))
"""
"""It fails on any error of SQLite, where cuTile would delete the database or compile again."""


def test_processes_that_use_the_database_while_rows_go_do_not_fail(tmp_path: Path) -> None:
    place, stop = Place("cutile", unpack("cutile", tmp_path), "given"), tmp_path / "stop"
    inode = (place.path / "cache.db").stat().st_ino
    command = [sys.executable, "-c", _USE, str(place.path), str(stop)]
    processes = [
        subprocess.Popen([*command, step], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for step in ("1", "5")
    ]
    deleted = 0
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        while deleted <= 300:
            found = [seen for seen in CuTile().scan(place, {}) if isinstance(seen, Entry)]
            plan = CuTile().plan_delete(place, found)
            assert isinstance(plan, DeletePlan)
            deleted += len(delete(place, plan, Deleted()).ids)
    finally:
        stop.touch()
        ends = [(*process.communicate(timeout=60), process.returncode) for process in processes]
    hits = misses = 0
    for output, error, code in ends:
        assert code == 0, error
        counts = json.loads(output.splitlines()[-1])
        hits, misses = hits + counts[0], misses + counts[1]
    assert hits
    assert misses > 200  # what was deleted is stored again
    assert (place.path / "cache.db").stat().st_ino == inode  # it is the same database
