"""Preloading copies kernels to memory, so that no lookup reads a file, and says what is missing or has no room."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from cache_engine import Cache, GemmProblem, UsageError, open_cache
from cache_engine.types import CacheKey

PROBLEMS = [GemmProblem(m, 48, 80, dtype="fp32", arch="sm_90", specialisation="exact") for m in (8, 16, 24)]
NOWHERE = CacheKey("0" * 64)


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[CacheKey, int]]:
    place = tmp_path_factory.mktemp("made") / "store"
    with open_cache(place, durability="fast") as cache:
        kernels = [cache.get_or_compile(problem) for problem in PROBLEMS]
    return place, {kernel.key: len(kernel.cubin) for kernel in kernels}


@pytest.fixture
def place(_made: tuple[Path, dict[CacheKey, int]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(_made[0], tmp_path / "store"))


@pytest.fixture
def sizes(_made: tuple[Path, dict[CacheKey, int]]) -> dict[CacheKey, int]:
    """Bytes of compiled code by key; three kernels."""
    assert len(_made[1]) == 3
    return _made[1]


def tiers(cache: Cache) -> list[str]:
    return [cache.get_or_compile(problem).tier for problem in PROBLEMS]


def test_later_lookups_are_hits_in_memory_even_without_the_files(place: Path, sizes: dict[CacheKey, int]) -> None:
    with open_cache(place) as cache:
        done = cache.preload([*sizes, *sizes])
        assert done.loaded == dict.fromkeys(sizes, "disk")
        assert (done.missing, done.no_room) == ((), ())
        assert done.loaded_bytes == done.needed_bytes == sum(sizes.values())
        shutil.rmtree(place / "kernels")
        assert tiers(cache) == ["memory"] * 3
        assert cache.preload(sizes).loaded == dict.fromkeys(sizes, "memory")
        assert str(done).startswith("3 kernels in memory, ")
        assert ";" not in str(done)


def test_what_no_tier_has_whole_is_missing(
    place: Path, sizes: dict[CacheKey, int], caplog: pytest.LogCaptureFixture
) -> None:
    damaged, *others = sizes
    (blob,) = (place / "kernels").rglob(f"*{damaged}*")
    blob.write_bytes(blob.read_bytes()[:500])
    with open_cache(place) as cache:
        done = cache.preload([damaged, *others, NOWHERE])
    assert done.missing == (damaged, NOWHERE)
    assert list(done.loaded) == others
    assert "preloaded: 2 kernels in memory" in caplog.text
    assert "2 in no tier" in caplog.text


def test_those_that_do_not_fit_have_no_room_and_displace_none(place: Path, sizes: dict[CacheKey, int]) -> None:
    first, second, third = sizes
    room = sizes[first] + sizes[second]
    with open_cache(place, memory_bytes=room) as cache:
        cache.get_or_compile(PROBLEMS[2])  # in memory first, and in the way
        done = cache.preload([first, second, third])
        assert (list(done.loaded), done.no_room) == ([first, second], (third,))
        assert (done.loaded_bytes, done.needed_bytes, done.memory_bytes) == (room, sum(sizes.values()), room)
        assert f"1 without room in memory_bytes = {room:,}; set it to at least {sum(sizes.values()):,}" in str(done)
        assert [cache.look_up(key).tier for key in (first, second)] == ["memory"] * 2  # type: ignore[union-attr]
    with open_cache(place, memory_bytes=done.needed_bytes) as cache:
        assert cache.preload(sizes).no_room == ()
        assert tiers(cache) == ["memory"] * 3


def test_one_that_is_too_large_leaves_room_for_a_smaller_one(place: Path, sizes: dict[CacheKey, int]) -> None:
    smallest, *_, largest = sorted(sizes, key=lambda key: sizes[key])
    assert sizes[smallest] < sizes[largest]
    with open_cache(place, memory_bytes=sizes[smallest]) as cache:
        done = cache.preload([largest, smallest])
    assert (list(done.loaded), done.no_room) == ([smallest], (largest,))


def test_a_preload_is_not_a_use(place: Path, sizes: dict[CacheKey, int]) -> None:
    with open_cache(place) as cache:
        before = cache.stats().hits
        cache.preload(sizes)
        assert cache.stats().hits == before


def test_packs_alone_and_caching_off(place: Path, sizes: dict[CacheKey, int], tmp_path: Path) -> None:
    with open_cache(place) as cache:
        cache.admin.export(tmp_path / "kernels.gemmpack")
    with open_cache(packs=tmp_path / "kernels.gemmpack", enable_caching="packs") as cache:
        assert cache.preload(sizes).loaded == dict.fromkeys(sizes, "pack")
    with open_cache(packs=tmp_path / "kernels.gemmpack", enable_caching=False) as cache:
        assert cache.preload(sizes).missing == tuple(sizes), "no pack is read, either"
        assert cache.preload([]).loaded == {}


@pytest.mark.parametrize("keys", [["3f2a"], [None], ["../" * 20], ["A" * 64]])
def test_what_is_no_whole_key_is_refused_before_anything_is_read(
    place: Path, sizes: dict[CacheKey, int], keys: list[CacheKey], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with open_cache(place) as cache:
        with pytest.raises(UsageError, match="is not a whole key"):
            cache.preload([*sizes, *keys])
        with pytest.raises(UsageError, match="takes keys in a list"):
            cache.preload(next(iter(sizes)))
        assert tiers(cache) == ["disk"] * 3
    assert "preloaded" not in caplog.text
