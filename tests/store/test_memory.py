"""The memory tier's bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_engine.model.key import CacheKey
from cache_engine.store.base import Loaded, MemoryTier
from cache_engine.store.codec import encode_blob
from tests.helpers import make_entry


def _loaded(size: int) -> Loaded:
    key, artifact, describe = make_entry()
    return Loaded(describe(encode_blob(key, artifact, compress=False)[1]), bytes(size))


def _key(number: int) -> CacheKey:
    return CacheKey(f"{number:064x}")


def test_the_least_recently_used_goes_first() -> None:
    tier = MemoryTier(300)
    for number in range(3):
        tier.put(_key(number), _loaded(100))
    tier.get(_key(0))
    tier.put(_key(3), _loaded(100))
    assert [number for number in range(4) if tier.get(_key(number)) is not None] == [0, 2, 3]


def test_an_entry_larger_than_the_tier_is_not_stored() -> None:
    tier = MemoryTier(300)
    tier.put(_key(0), _loaded(301))
    assert len(tier) == 0


def test_an_entry_put_again_is_counted_once() -> None:
    tier = MemoryTier(300)
    for _ in range(5):
        tier.put(_key(0), _loaded(100))
    tier.put(_key(1), _loaded(200))
    assert len(tier) == 2


@given(st.lists(st.tuples(st.sampled_from("pgd"), st.integers(0, 9), st.integers(0, 400)), max_size=60))
def test_it_never_holds_more_than_it_may(operations: list[tuple[str, int, int]]) -> None:
    tier, sizes = MemoryTier(1000), dict[int, int]()
    for what, number, size in operations:
        if what == "p":
            tier.put(_key(number), _loaded(size))
            sizes[number] = size
        elif what == "g":
            loaded = tier.get(_key(number))
            assert loaded is None or len(loaded.cubin) == sizes[number]
        else:
            tier.discard(_key(number))
        kept = [len(held.cubin) for n in range(10) if (held := tier.get(_key(n))) is not None]
        assert sum(kept) <= 1000
        assert len(kept) == len(tier)
