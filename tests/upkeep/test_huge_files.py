"""A file of holes is as large as it says and takes no room on the disk: none fills the memory or stops a command."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cache_engine.errors import CorruptEntry
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.store.codec import decode_record, encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import DecisionReader, Journal, fold, read_journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.timings import Timings
from cache_engine.upkeep import integrity
from tests.helpers import publish, record_file
from tests.upkeep.test_every_file import DAMAGED

_HUGE = 2**40
_MOST_MEMORY = 2**31
_MAKERS = [make for makes in DAMAGED.values() for make in makes if make.__name__ != "_temporary"]


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """More than the tests need, and far less than the files have; the index is left out, as DuckDB takes its own."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _open_journal(store: DiskStore) -> Path:
    journal = Journal(store.layout.journal, 3600.0)
    journal.miss()
    journal.close()
    return next(store.layout.journal.glob("*.jsonl"))


def _use(store: DiskStore) -> None:
    """What commands read."""
    read_journal(store.layout.journal)
    read_timeline(store.layout)
    DecisionReader(store.layout).new()
    with Evaluations(store.layout) as kept:
        kept.summaries()
        kept.evaluate(EvaluationProblem(1, 128, 64), PRESETS["SG2262"])
    list(Timings(store.layout))
    list(store.records())
    fold(store.layout.journal, store.layout.temp, keep=lambda _: True)


@pytest.mark.parametrize("make", [*_MAKERS, _open_journal], ids=lambda make: make.__name__)
def test_a_file_of_holes_is_found_and_repaired(make: Callable[[DiskStore], Path], store: DiskStore) -> None:
    path = make(store)
    os.truncate(path, _HUGE)
    findings = list(integrity.check(store))
    assert findings
    _use(store)
    integrity.repair(store, Journal(store.layout.journal, 3600.0), list(integrity.check(store)))
    assert list(integrity.check(store)) == []
    _use(store)
    used = sum(file.lstat().st_blocks * 512 for file in store.layout.root.rglob("*"))
    assert used < 2**24


def test_a_result_after_a_repair_is_not_lost_in_a_log_that_is_not_read(store: DiskStore) -> None:
    path = DAMAGED["evaluations"][2](store)
    os.truncate(path, _HUGE)
    problem = EvaluationProblem(2, 128, 64)
    with Evaluations(store.layout) as kept:
        kept.evaluate(problem, PRESETS["SG2262"])
    with Evaluations(store.layout) as kept:
        assert kept.look_up(problem, PRESETS["SG2262"]) is not None


def test_a_record_that_names_a_huge_blob_is_damaged(store: DiskStore) -> None:
    """With a checksum that is right."""
    key = publish(store, 1)
    record = store.record(key)
    assert record is not None
    code = msgspec.structs.replace(record.blob.sections["cubin"], stored_bytes=_HUGE)
    for blob in (
        msgspec.structs.replace(record.blob, stored_bytes=_HUGE),
        msgspec.structs.replace(record.blob, sections=record.blob.sections | {"cubin": code}),
    ):
        data = encode_record(msgspec.structs.replace(record, blob=blob))
        with pytest.raises(CorruptEntry, match="which none has"):
            decode_record(key, data)
        record_file(store, key).write_bytes(data)
        os.truncate(store.layout.blob_path(key, blob.digest), _HUGE)
        with pytest.raises(CorruptEntry):
            store.get(key)
        assert list(integrity.check(store))
