"""After an upgrade: each entry's fate is what its request really gets, and the work is done once, losing nothing."""

from __future__ import annotations

import errno
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cache_engine.batch.migration import (
    AGAIN,
    CARRIED,
    DAMAGED,
    FOREIGN,
    SUPERSEDED,
    UNKNOWN,
    MigrationPlan,
    migrate,
    plan_migration,
)
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cli.main import commands
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store import dictionary
from cache_engine.store.codec import FORMAT, encode_record
from tests.helpers import record_file
from tests.store.first_format import as_first_format

FORMATS = Path(__file__).parents[1] / "formats"


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A store that version 0.1.0 has written: two kernels, whose keys have no hash of the compiler's content."""
    with tarfile.open(FORMATS / "fc4e2bd.store.tar.gz") as tar:
        tar.extractall(tmp_path, filter="tar")
    return tmp_path / "store"


def fates(plan: MigrationPlan) -> dict[str, int]:
    """How many entries have each fate."""
    counts: dict[str, int] = {}
    for kind, found in plan.sums.items():
        counts[kind.fate] = counts.get(kind.fate, 0) + found.entries
    return counts


def rewrite(cache: Cache, record: Record) -> None:
    """Replaces the record of an entry."""
    record_file(cache.store, CacheKey(record.key)).write_bytes(encode_record(record))


def test_entries_of_this_version_are_carried_over(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        seen: list[None] = []
        plan = plan_migration(cache, lambda: seen.append(None))
        assert (fates(plan), plan.again, len(seen)) == ({CARRIED: 4}, {}, 4)
        assert sum(found.stored_bytes for found in plan.sums.values()) == cache.count()[1]


def test_kernels_of_an_older_version_are_compiled_once_and_the_old_entries_stay(old_store: Path) -> None:
    with open_cache(old_store) as cache:
        first, second = cache.records()
        assert (first.config_from, second.config_from) == ("given", "given")
        rewrite(cache, msgspec.structs.replace(first, config_from="cost model"))
        old = {first.key, second.key}
        plan = plan_migration(cache)
        assert fates(plan) == {AGAIN: 2}
        assert {kind.reason for kind in plan.sums} == {"changed: template, compiler build, flags"}
        assert {kind.created_by for kind in plan.sums} == {"gemm-cache 0.1.0"}
        assert {record.key for record in cache.records()} == old, "a plan changes nothing"
        assert migrate(cache, plan) == {}
        after = plan_migration(cache)
        assert (fates(after), after.again) == ({CARRIED: 2, SUPERSEDED: 2}, {})
        records = {record.key: record for record in cache.records()}
        assert old | set(plan.again) == set(records)
        assert [records[key].config_from for key in plan.again] == ["cost model", "given"]
        assert list(cache.admin.check()) == []
    with open_cache(old_store, enable_jit=False) as cache:
        assert cache.get_or_compile(first.problem.on(first.arch), family=first.family).tier == "disk"
        asked = second.problem.on(second.arch)
        assert cache.get_or_compile(asked, family=second.family, config=second.config).tier == "disk"


def test_an_interrupted_migration_continues_with_what_is_left(old_store: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with open_cache(old_store) as cache:
        plan = plan_migration(cache)
        with pytest.raises(KeyboardInterrupt):
            migrate(cache, plan, jobs=1, on_done=interrupted)
        left = plan_migration(cache)
        assert len(left.again) < len(plan.again)
        assert migrate(cache, left) == {}
        assert plan_migration(cache).again == {}
        assert list(cache.admin.check()) == []


def test_a_given_config_stays_given_and_a_cheaper_choice_supersedes(compiled_store: Path) -> None:
    """Two entries of one problem: one chosen, one with a config given by hand, which its request still gets."""
    problem = GemmProblem(128, 256, 192, arch="sm_90")
    with open_cache(compiled_store, durability="fast") as cache:
        chosen = cache.get_or_compile(problem)
        given = replace(chosen.record.config, stages=3 if chosen.record.config.stages != 3 else 2)
        key = cache.get_or_compile(problem, config=given).key
        assert fates(plan_migration(cache)) == {CARRIED: 5}
        record = cache.find(key)
        rewrite(cache, msgspec.structs.replace(record, config_from="cost model"))
        assert fates(plan_migration(cache)) == {CARRIED: 4, SUPERSEDED: 1}
        assert {kind.reason for kind in plan_migration(cache).sums if kind.fate == SUPERSEDED} == {
            "another config is chosen"
        }


def test_what_cannot_be_migrated_is_counted_and_left_alone(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        first, second, third, _ = sorted(cache.store.keys())
        record_file(cache.store, first).write_bytes(b'{"format": 7, "anything": 1}')
        record_file(cache.store, second).write_bytes(b"{")
        record = cache.find(third)
        rewrite(cache, msgspec.structs.replace(record, family="later"))
        plan = plan_migration(cache)
        assert fates(plan) == {FOREIGN: 1, DAMAGED: 1, UNKNOWN: 1, CARRIED: 1}
        assert {kind.format for kind in plan.sums if kind.fate == FOREIGN} == {7}
        assert next(kind.reason for kind in plan.sums if kind.fate == UNKNOWN).startswith("unknown family 'later'")
        assert migrate(cache, plan) == {}
        assert record_file(cache.store, first).read_bytes() == b'{"format": 7, "anything": 1}'


def test_the_verb_shows_the_plan_then_does_it(old_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ran(*options: str) -> str:
        commands.main(["--store", str(old_store), "migrate", *options], standalone_mode=False)
        return capsys.readouterr().out

    planned = json.loads(ran("--dry-run", "--json"))
    assert (planned["dry_run"], planned["store_format"], planned["to_compile"], planned["failed"]) == (True, 2, 2, {})
    (row,) = planned["rows"]
    assert (row["fate"], row["entries"], row["format"], row["key_schema"]) == (AGAIN, 2, 1, "1")
    assert "Would compile 2 kernels." in ran("--dry-run")
    assert ran().endswith("Wrote 0 of 0 entries again. Compiled 2 of 2 kernels.\n")
    assert "Would compile 0 kernels." in ran("--dry-run")


def test_entries_of_the_first_format_are_served_and_written_again_unless_they_are_signed(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        texts = {record.key: cache.text(record, "source") for record in cache.store.records()}
        keys = as_first_format(cache.store)
    with open_cache(compiled_store) as cache:
        assert all(cache.get(key) for key in keys)
        assert {record.key: cache.text(record, "source") for record in cache.store.records()} == texts
        assert [finding for finding in cache.admin.verify() if finding.is_damage] == []
        before = cache.count()[1]
        plan = plan_migration(cache)
        assert (plan.older, {kind.format for kind in plan.sums}) == (keys, {1})
        assert migrate(cache, plan) == {}
        assert [cache.store.format(key) for key in keys] == [FORMAT] * len(keys)
        assert cache.count()[1] < 0.7 * before
        assert {record.key: cache.text(record, "source") for record in cache.store.records()} == texts
        assert list(cache.admin.verify()) == []
        assert plan_migration(cache).older == []
        as_first_format(cache.store, signature="a signature")
        migrate(cache, plan_migration(cache))
        assert {cache.store.format(key) for key in keys} == {1}


def test_a_damaged_dictionary_is_said_and_entries_stay_in_their_format(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: bytes) -> bytes:
        raise OSError(errno.EIO, "install gemm-cache again")

    with open_cache(compiled_store) as cache:
        keys = as_first_format(cache.store)
        monkeypatch.setattr(dictionary, "compress", damaged)
        assert migrate(cache, plan_migration(cache)) == dict.fromkeys(keys, "install gemm-cache again")
        assert [cache.store.format(key) for key in keys] == [1] * len(keys)
        assert list(cache.admin.verify()) == []
