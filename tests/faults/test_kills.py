"""Writers killed at random moments lose nothing that was acknowledged, and no process is ever served anything wrong."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine.store.codec import FORMAT
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import read_journal
from cache_engine.upkeep import integrity
from tests.faults.counting import report
from tests.faults.soundness import leftovers, tidy
from tests.faults.writers import CODES, migrate_all, read_log
from tests.helpers import make_store

WRITERS, READERS = 8, 2
Line = tuple[int, str, str, int]


def _killed(folder: Path, kills: int, seed: int) -> tuple[DiskStore, dict[str, list[Line]]]:
    """A store on which so many writers were killed, and what everyone said."""
    store, logs = make_store(folder / "store"), folder / "logs"
    logs.mkdir()
    numbers = [str(number) for number in (WRITERS, READERS, kills, seed)]
    command = [sys.executable, "-m", "tests.faults.writers", str(store.layout.root), str(logs), *numbers]
    subprocess.run(command, check=True, timeout=600, cwd=Path(__file__).parents[2])
    return store, {path.name: read_log(path) for path in sorted(logs.iterdir())}


def _writers(said: dict[str, list[Line]]) -> Iterator[tuple[Line, int]]:
    """What writers said, each with the time by which it was over: the next line, by whichever writer, says so."""
    for name, lines in said.items():
        if name.startswith("writer"):
            ends = [line[0] for line in lines[1:]] + [sys.maxsize]
            yield from zip(lines, ends, strict=True)


def _check_acknowledged(store: DiskStore, said: dict[str, list[Line]]) -> int:
    """Every published entry that was not evicted is there, as last published. Returns how many."""
    published: dict[str, int] = defaultdict(int)
    evicted: dict[str, int] = defaultdict(int)
    for (at, what, key, _), over in _writers(said):
        if what == "published":
            published[key] = max(published[key], at)
        elif what in ("evicting", "cleaning"):
            for victim in key.split():
                evicted[victim] = max(evicted[victim], over)
    kept = 0
    for key, codes in CODES.items():
        # All of it is said under the key's lock. Who was publishing when, or after, it was last acknowledged?
        allowed: set[bytes | None] = {
            codes[size]
            for (_, what, whose, size), over in _writers(said)
            if what == "publishing" and whose == key and over >= published[key]
        }
        lasting = evicted[key] < published[key]
        kept += lasting
        loaded = store.get(key)
        assert (None if loaded is None else loaded.cubin) in (allowed if lasting else allowed | {None}), key
    return kept


def _check_hits(store: DiskStore, said: dict[str, list[Line]]) -> None:
    """Every hit that was written is counted, and none twice."""
    operations = [line[1] for line, _ in _writers(said)]
    totals = read_journal(store.layout.journal).totals
    counted = totals.hits.get("disk", 0)
    assert operations.count("hit") <= counted <= operations.count("hitting")
    assert totals.saved_us == 7 * counted


@pytest.mark.parametrize(
    ("kills", "seed"), [(50, 1), *(pytest.param(1000, seed, marks=pytest.mark.soak) for seed in range(2, 6))]
)
def test_kills_lose_nothing_and_no_wrong_bytes_are_served(tmp_path: Path, kills: int, seed: int) -> None:
    store, said = _killed(tmp_path, kills, seed)
    complaints = {
        f"{name}: {what} {key[:12]}"
        for name, lines in said.items()
        for _, what, key, _ in lines
        if what.startswith(("failed", "corrupt", "wrong"))
    }
    assert not complaints
    started = [line for line, _ in _writers(said) if line[1] == "started"]
    assert len(started) > kills // 2, "writers were killed before they had begun"
    reads = [lines[-1][3] for name, lines in said.items() if name.startswith("reader")]
    assert min(reads) > kills
    left = len(leftovers(store))
    kept = _check_acknowledged(store, said)
    _check_hits(store, said)
    tidy(store)
    assert leftovers(store) == []
    assert list(integrity.check(store)) == []
    assert _check_acknowledged(store, said) == kept
    _check_hits(store, said)
    older = migrate_all(store)
    assert set(map(store.format, store.keys())) == {FORMAT}
    assert list(integrity.check(store)) == []
    assert _check_acknowledged(store, said) == kept
    migrated = older + sum(line[3] for line, _ in _writers(said) if line[1] == "migrated")
    assert migrated > 0
    published = sum(line[1] == "published" for line, _ in _writers(said))
    report(
        {
            "kills": kills,
            "reads": sum(reads),
            "published": published,
            "migrated": migrated,
            "leftovers": left,
            "kept": kept,
            "wrong bytes": 0,
        }
    )
