"""What became of a kernel that the store has no longer."""

from __future__ import annotations

from pathlib import Path

from cache_engine.cache.cache import open_cache
from cache_engine.insight.explanation import asked_for, quarantined_record
from cache_engine.model.gemm import GemmProblem
from cache_engine.store.disk import DiskStore
from cache_engine.upkeep.plan import Limits
from tests.helpers import blob_file

PROBLEM = GemmProblem(16, 512, 96, arch="sm_80")


def test_an_evicted_kernel_that_programs_ask_for_can_be_compiled_again(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        key = cache.get_or_compile(PROBLEM).key
        assert cache.admin.departure(key) is None
        cache.journal.flush()
        cache.admin.clean(Limits(everything=True), by="an engineer")
        gone = cache.admin.departure(key)
        assert gone is not None
        assert (gone.is_evicted, gone.by) == (True, "an engineer")
        asked = asked_for(cache, key)
        assert asked is not None
        assert asked.key == key
        assert asked.command.startswith("gemm-cache compile 16 512 96 ")
        assert asked_for(cache, key, within_s=-1) is None


def test_a_quarantined_kernel_still_has_its_record(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        key = cache.get_or_compile(PROBLEM).key
        assert isinstance(cache.store, DiskStore)
        path = blob_file(cache.store, key)
        path.write_bytes(bytes(path.stat().st_size))
        cache.admin.verify(repair=True)
        gone = cache.admin.departure(key)
        assert gone is not None
        assert not gone.is_evicted
        record = quarantined_record(cache, key)
        assert record is not None
        assert (record.key, record.problem.n) == (key, 512)
