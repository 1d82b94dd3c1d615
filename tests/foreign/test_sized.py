"""Caches of which only names, sizes and ages are looked at; written by hand, as their frameworks' sources have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.foreign.registry import load_sources, surroundings
from cache_engine.foreign.survey import survey
from cache_engine.foreign.values import Entry, State, Unchanged

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
