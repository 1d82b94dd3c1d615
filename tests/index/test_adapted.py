"""Kernels of other frameworks in a store, in the index: what changed is read again, and hostile text does no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.errors import UsageError
from cache_engine.frameworks.bundles import Group, put_group, read_group
from cache_engine.index import queries, records
from cache_engine.index.queries import KernelFilter
from cache_engine.index.sync import Index
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from tests.adapters.made import STAGES, TILE, put_kernel, triton_groups
from tests.helpers import publish

ALL = KernelFilter(frameworks=())


def _rows(store: DiskStore, chosen: KernelFilter = ALL) -> list[queries.Row]:
    index = Index(store)
    index.sync()
    rows = index.query(queries.kernels, chosen)
    assert index.query(queries.count, chosen) == len(rows)
    return rows


def test_a_row_says_what_the_files_say(store: DiskStore, tmp_path: Path) -> None:
    key = put_kernel(store.layout, tmp_path)
    journal = Journal(store.layout.journal, 3600.0)
    journal.hit(key, "disk", made_at=1_700_000_000.0)
    journal.close()
    (row,) = _rows(store)
    group = triton_groups(tmp_path / "again")[TILE]
    assert row["key"] == key
    facts = {name: row[name] for name in ("framework", "name", "version", "arch", "config", "hits")}
    assert facts == {
        "framework": "triton", "name": "tile", "version": "3.9.0", "arch": "sm_90a",
        "config": "num_warps=4, num_stages=3, num_ctas=1", "hits": 1,
    }  # fmt: skip
    assert row["registers"] > 0
    assert row["shared_bytes"] == json.loads(group.files["tile.json"])["shared"]
    assert row["size_bytes"] == sum(map(len, group.files.values()))
    assert row["stored_bytes"] == os.stat(store.layout.group_path(key)).st_size
    assert (row["compile_ms"], row["created_at"]) == (sum(STAGES.values()), 1_700_000_000.0)
    assert row["last_used_at"] > row["created_at"]
    index = Index(store)
    assert index.query(queries.names, [key]) == {key: "tile"}
    assert index.query(queries.sums_by_arch, [key])[0]["entries"] == 1
    assert index.query(queries.overview)["entries"] == 1
    assert index.query(queries.adapted_kernel, key) == row
    assert index.query(queries.facets)["framework"] == ["triton"]


def test_only_what_changed_is_read_again(store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = triton_groups(tmp_path)
    for group in groups.values():
        put_group(store.layout, group, durable=False)
    assert len(_rows(store)) == len(groups) == 4
    read: list[str] = []

    def reading(layout: StoreLayout, key: CacheKey, **options: Any) -> Group | None:
        read.append(key)
        return read_group(layout, key, **options)

    monkeypatch.setattr(records, "read_group", reading)
    tile = groups[TILE]
    put_group(store.layout, msgspec.structs.replace(tile, made_at=1_800_000_000.0), durable=False)
    gone = next(group.key for group in groups.values() if group.key != tile.key)
    store.delete(gone)
    rows = {row["key"]: row for row in _rows(store)}
    assert read == [tile.key]
    assert rows[tile.key]["created_at"] == 1_800_000_000.0
    assert rows.keys() == {group.key for group in groups.values()} - {gone}


def test_a_damaged_one_has_no_row_and_a_reason(store: DiskStore, tmp_path: Path) -> None:
    key = put_kernel(store.layout, tmp_path)
    assert _rows(store)
    path = Path(store.layout.group_path(key))
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(store.layout.groups)  # a folder does not change when a file in it is damaged
    assert _rows(store) == []
    index = Index(store)
    with index.read() as connection:
        assert connection.execute("SELECT shard, key FROM unreadable").fetchall() == [("groups", key)]
    put_kernel(store.layout, tmp_path / "again")
    assert len(_rows(store)) == 1
    with index.read() as connection:
        assert connection.execute("SELECT count(*) FROM unreadable").fetchone() == (0,)


def test_they_are_found_by_words_targets_and_frameworks(store: DiskStore, tmp_path: Path) -> None:
    for group in triton_groups(tmp_path).values():
        put_group(store.layout, group, durable=False)
    assert len(_rows(store, KernelFilter("TILE 3.9.0 num_warps=4", frameworks=()))) == 1
    assert len(_rows(store, KernelFilter(archs=("sm_80",), frameworks=()))) == 1
    assert len(_rows(store, KernelFilter("scale", ("sm_90a",), frameworks=("triton",)))) == 2
    assert _rows(store, KernelFilter(frameworks=("cupy",))) == []
    index = Index(store)
    for sort in queries.SORTS:
        assert len(index.query(queries.kernels, ALL, sort=sort)) == 4
    sizes = [row["stored_bytes"] for row in index.query(queries.kernels, ALL, sort="size on disk")]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(UsageError, match="cannot sort"):
        index.query(queries.kernels, ALL, sort="colour")


def test_they_live_next_to_ours(store: DiskStore, tmp_path: Path) -> None:
    ours, theirs = publish(store, 1), put_kernel(store.layout, tmp_path)
    index = Index(store)
    index.sync()
    assert [row["key"] for row in index.query(queries.kernels, queries.KernelFilter())] == [ours]
    assert [row["key"] for row in _rows(store)] == [theirs]
    assert index.query(queries.overview)["entries"] == 2


def test_a_file_under_the_key_of_one_of_ours_takes_it_nothing(store: DiskStore, tmp_path: Path) -> None:
    ours, theirs = publish(store, 1), put_kernel(store.layout, tmp_path)
    Index(store).sync()
    Path(store.layout.group_path(ours)).write_bytes(Path(store.layout.group_path(theirs)).read_bytes())
    synced = Index(store).sync()
    assert (synced.removed, synced.unreadable) == (0, 1)
    assert [row["key"] for row in Index(store).query(queries.kernels, KernelFilter())] == [ours]


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": b'{"name": "\\u001b[31m<script>", "shared": -1, "target": {"arch": []}, "triton_version": 7}'},
        {"a.json": b"[" * 100_000},
        {"a.json": b'{"shared": 99999999999999999999, "num_warps": {"a": 1}, "name": "x"}', "a.cubin": b"\x7fELF"},
        {"a\x1b\n.json": b"\xff", "a\x1b\n.ptx": b".version 8\n.target sm_90\n.entry \xff("},
        {"=cmd().json": b"{}", "=cmd().cubin": b""},
    ],
)
def test_hostile_files_make_a_row_without_what_they_claim(store: DiskStore, files: dict[str, bytes]) -> None:
    group = Group("triton\x1b[2J", "KEY", next(iter(files)), files)
    put_group(store.layout, group, durable=False)
    (row,) = _rows(store)
    assert row["name"].isprintable()
    assert row["shared_bytes"] is None
    assert row["version"] is None
    assert row["registers"] is None
    assert (row["arch"] is None) or row["arch"] == "sm_90"
