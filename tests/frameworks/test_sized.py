"""Caches of which only names, sizes and ages are looked at: one that JAX made, and others as written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.frameworks.registry import load_sources, surroundings, survey
from cache_engine.frameworks.values import Entry, Fault, Place, ScanFinding, State, Unchanged
from tests.frameworks.fixtures import unpack

SOURCES = load_sources()
LAYOUTS = {
    "inductor": (
        "torchinductor_me",
        ["fxgraph/ab/key/1", "fxgraph/ab/key/2", "aotautograd/cd/key/1", "triton/0/K/x.ptx"],
        2,
    ),
    "compute_cache": (".nv/ComputeCache", ["index", "1/2/0123456789abcd", "1/3/0123456789abcd"], 3),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_names_sizes_and_ages_are_listed(kind: str, tmp_path: Path) -> None:
    folder, files, count = LAYOUTS[kind]
    for number, file in enumerate(files, start=1):
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    environment = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchinductor_me")}
    (place,) = [place for place in SOURCES.places(surroundings((), environment)) if place.kind == kind]
    entries = [seen for _, seen in survey(SOURCES, [place]) if isinstance(seen, Entry)]
    assert len(entries) == count
    assert {entry.state for entry in entries} == {State.UNREAD}
    sizes = [number for number, file in enumerate(files, start=1) if not file.startswith("triton/")]
    assert sum(entry.size_bytes for entry in entries) == sum(sizes)
    known = {entry.id: entry.stamp for entry in entries}
    again = list(SOURCES.by_kind[kind].scan(place, known))
    assert all(isinstance(seen, Unchanged) for seen in again)


@pytest.mark.parametrize("kind", ["jax", "tensorrt"])
def test_a_directory_that_is_named_is_listed(kind: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jit_f-0123-cache").write_bytes(b"1234")
    where = surroundings([f"{kind}={cache}"], {"HOME": str(tmp_path)})
    (entry,) = [
        seen for place, seen in survey(SOURCES, SOURCES.places(where)) if place.kind == kind and isinstance(seen, Entry)
    ]
    assert (entry.id, entry.size_bytes) == ("jit_f-0123-cache", 4)


def test_a_directory_that_is_named_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "fxgraph" / "ab" / "key").mkdir(parents=True)
    where = surroundings([f"inductor={tmp_path}"], {"HOME": str(tmp_path / "none")})
    assert [place.path for place in SOURCES.places(where) if place.kind == "inductor"][:1] == [tmp_path]


def test_the_marks_and_the_lock_of_jax_are_no_entries(tmp_path: Path) -> None:
    """With ``JAX_COMPILATION_CACHE_MAX_SIZE`` it writes a file at each use, by ``jax/_src/lru_cache.py``."""
    for name in (".lockfile", "jit_f-01-cache", "jit_f-01-atime", "jit_g-02-cache", "jit_gone-03-atime"):
        (tmp_path / name).write_bytes(b"" if name == ".lockfile" else b"12345678")
    os.utime(tmp_path / "jit_f-01-atime", (5_000, 5_000))
    source, place = SOURCES.by_kind["jax"], Place("jax", tmp_path, "given")
    found = {seen.id: seen for seen in source.scan(place, {}) if isinstance(seen, Entry)}
    assert {name: entry.size_bytes for name, entry in found.items()} == {
        "jit_f-01-cache": 16, "jit_g-02-cache": 8, "jit_gone-03-atime": 8,
    }  # fmt: skip
    assert found["jit_f-01-cache"].last_used_at == 5_000
    known = {name: entry.stamp for name, entry in found.items()}
    assert {type(seen) for seen in source.scan(place, known)} == {Unchanged}
    os.utime(tmp_path / "jit_f-01-atime", (6_000, 6_000))
    assert [seen.id for seen in source.scan(place, known) if isinstance(seen, Entry)] == ["jit_f-01-cache"]


def test_a_cache_that_jax_made_is_read_to_the_byte(tmp_path: Path) -> None:
    """Of JAX 0.10.2 with a limit of size: an entry for each program, and each byte in one of them."""
    place = Place("jax", unpack("jax", tmp_path), "given")
    found = [seen for seen in SOURCES.by_kind["jax"].scan(place, {}) if isinstance(seen, Entry)]
    files = {path.name: path.stat().st_size for path in place.path.iterdir()}
    assert {entry.id for entry in found} == {name for name in files if name.endswith("-cache")}
    assert {part.file: part.size_bytes for entry in found for part in entry.parts} == {
        name: size for name, size in files.items() if name != ".lockfile"
    }
    assert files[".lockfile"] == 0
    assert all(entry.last_used_at is not None for entry in found)


def test_the_bytes_of_a_folder_are_those_of_all_below_it(tmp_path: Path) -> None:
    """As deep as any framework's; one that is deeper is a finding."""
    place, deep = Place("jax", tmp_path, "given"), tmp_path / "xla" / "/".join("abcdef")
    deep.mkdir(parents=True)
    for folder in (tmp_path / "xla", deep):
        (folder / "file").write_bytes(b"12345")
    (entry,) = SOURCES.by_kind["jax"].scan(place, {})
    assert isinstance(entry, Entry)
    assert {part.file: part.size_bytes for part in entry.parts} == {"xla/file": 5, "xla/a/b/c/d/e/f/file": 5}
    (deep / "/".join(["x"] * 30)).mkdir(parents=True)
    (seen,) = SOURCES.by_kind["jax"].scan(place, {})
    assert isinstance(seen, ScanFinding)
    assert seen.fault == Fault.TOO_MANY
