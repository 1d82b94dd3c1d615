"""The dashboard's benchmark makes its large index from today's tables."""

from __future__ import annotations

from pathlib import Path

from benchmarks.browser.multiply import multiply_rows
from benchmarks.browser.population import add_records, ask, settle
from cache_engine.cache.cache import open_cache


def test_a_mirror_has_as_many_rows_as_asked_for_and_one_in_five_was_used(tmp_path: Path) -> None:
    with open_cache(tmp_path, durability="fast") as cache:
        add_records(cache, 3)
        ask(cache, 3)
        settle(cache)
        cache.index.sync()
        multiply_rows(cache.layout, 100)
        with cache.index.read() as connection:
            assert connection.execute("SELECT count(DISTINCT key) FROM kernels").fetchone() == (100,)
            assert connection.execute("SELECT count(*) FROM demand").fetchone() == (100,)
            (used,) = connection.execute("SELECT count(*) FROM usage WHERE disk_hits = 3").fetchone() or (0,)
    assert 5 < used < 50
