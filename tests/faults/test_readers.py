"""Readers while others evict and publish: what they get is right, or nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.upkeep import integrity
from tests.faults.counting import report
from tests.helpers import make_store

_PROGRAM = """
import json, random, sys, time
from pathlib import Path
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.errors import LockTimeout
from cache_engine.upkeep.plan import Limits
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from tests.helpers import make_entry, make_store
role, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
store, generator = make_store(folder), random.Random(role)
journal = Journal(store.layout.journal, 1.0)
entries = [make_entry(seed) for seed in range(8)]
counts = {"right": 0, "missing": 0, "evicted": 0, "published": 0}
mine = {"reader": ("right", "missing"), "evictor": ("evicted",), "publisher": ("published",)}[role.split()[0]]
end = time.time() + seconds
while not folder.with_name("stop").exists():
    if end and time.time() > end and all(counts[name] >= 50 for name in mine):
        print("enough", flush=True)  # the others may need what this one does
        end = 0
    key, artifact, describe = generator.choice(entries)
    if role.startswith("reader"):
        loaded = store.get(key)  # CorruptEntry ends the program, and the test
        assert loaded is None or loaded.cubin == artifact.cubin
        counts["missing" if loaded is None else "right"] += 1
    elif role.startswith("evictor"):
        plan = housekeeping.plan_cleaning(store, Limits(everything=True))
        counts["evicted"] += housekeeping.apply(store, journal, plan).evicted
    else:
        with file_lock(store.layout.key_lock(key), 600):
            store.publish(key, artifact, describe)
        counts["published"] += 1
journal.close()
print(json.dumps(counts))
"""


@pytest.mark.parametrize(("seconds", "readers", "others"), [(0, 3, 1), pytest.param(120, 8, 2, marks=pytest.mark.soak)])
def test_readers_during_eviction_get_a_correct_entry_or_a_miss(
    tmp_path: Path, seconds: float, readers: int, others: int
) -> None:
    folder = tmp_path / "store"
    make_store(folder)
    counts = {"reader": readers, "evictor": others, "publisher": others}
    roles = [f"{role} {number}" for role, count in counts.items() for number in range(count)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, role, str(folder), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    # However busy the machine is, each sees all that there is to see.
    assert [process.stdout and process.stdout.readline() for process in running] == ["enough\n"] * len(running)
    folder.with_name("stop").touch()
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    sums = {name: sum(json.loads(line)[name] for line in printed) for name in json.loads(printed[0])}
    assert all(sums.values()), sums
    report({"readers": readers, "evictors": others, "publishers": others, "seconds": seconds, **sums, "wrong": 0})
    assert list(integrity.check(make_store(folder))) == []
