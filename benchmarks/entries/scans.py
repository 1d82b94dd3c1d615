"""Scanning a cache of another framework: what an entry costs that is read, and one that is unchanged."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from functools import partial
from pathlib import Path

from benchmarks.entries.subjects import PROBLEM
from benchmarks.results import Report, Result
from benchmarks.timing import medians
from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.values import Entry, Place

_READ_GOAL_S, _UNCHANGED_GOAL_S = 0.3e-3, 20e-6
_MOST = 2_000  # entries; their files are of the size of real ones, and mostly holes
_SAMPLES = 5
# Of a matmul of Triton 3.9; a scan looks at the size of these parts only.
_UNREAD = {"llir": 183_000, "ptx": 44_000, "source": 8_700, "ttgir": 5_600, "ttir": 4_300}


def scanning(report: Report, place: Path, entries: int) -> None:
    """Scans a directory in Triton's layout, with a CUBIN of ours in each entry, and compares with ``stat`` of all.

    The files are in the page cache: a disk would measure itself.
    """
    count = min(entries, _MOST)
    there = triton_cache(place, count)
    known = {seen.id: seen.stamp for seen in Triton().scan(there, {}) if isinstance(seen, Entry)}
    read, unchanged, looked = medians(
        [partial(_scan, there, {}), partial(_scan, there, known), partial(_look, there.path)], _SAMPLES
    )
    reference = f"stat of each file, {count:,} entries"
    for name, seconds, goal in (("read", read, _READ_GOAL_S), ("unchanged", unchanged, _UNCHANGED_GOAL_S)):
        report(Result(f"scan an entry that is {name}", seconds / count, reference, looked / count, goal_seconds=goal))


def triton_cache(place: Path, entries: int) -> Place:
    """A directory in Triton's layout with so many entries, each with a CUBIN of ours."""
    with open_cache(place / "one", durability="fast") as cache:
        cubin = cache.get_or_compile(PROBLEM).cubin
    for number in range(entries):
        _write(place / "triton", number, cubin)
    return Place("triton", place / "triton", "given")


def _scan(place: Place, known: dict[str, str]) -> int:
    return sum(1 for _ in Triton().scan(place, known))


def _look(folder: Path) -> int:
    found = 0
    for path, _, files in os.walk(folder):
        for file in files:
            found += os.stat(f"{path}/{file}").st_size
    return found


def _write(folder: Path, number: int, cubin: bytes) -> None:
    key = base64.b32encode(hashlib.sha256(str(number).encode()).digest()).decode().rstrip("=")
    entry = folder / key
    entry.mkdir(parents=True)
    metadata = {"target": {"backend": "cuda", "arch": 90}, "num_warps": 4, "triton_version": "3.9.0", "shared": 0}
    files = {"tile.cubin": cubin, "tile.json": json.dumps(metadata).encode()}
    for ending, size in _UNREAD.items():
        with (entry / f"tile.{ending}").open("wb") as file:
            file.truncate(size)
    paths = {name: str(entry / name) for name in (*files, *(f"tile.{ending}" for ending in _UNREAD))}
    files["__grp__tile.json"] = json.dumps({"child_paths": paths}).encode()
    for name, content in files.items():
        (entry / name).write_bytes(content)
