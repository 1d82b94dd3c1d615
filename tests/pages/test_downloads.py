"""Lists and entries as files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest

from app.presenters.downloads import csv_file, pack_file, parquet_file
from cache_engine.cache.cache import open_cache
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.store.codec import encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.pack import Pack
from cache_engine.upkeep.packs import import_pack
from tests.helpers import blob_file, damage_record, fill, make_store

FORMULAS = ("=cmd|'/C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\tx", "\rx")


@pytest.mark.parametrize("text", [*FORMULAS, "plain", "a=b", 'quotes " and\nlines', ""])
def test_no_cell_of_a_csv_file_is_a_formula(store: DiskStore, text: str) -> None:
    """Read again, all is there; only what a spreadsheet would run has an apostrophe before it."""
    (key,) = fill(store, 1)
    record = next(store.records())
    forged = msgspec.structs.replace(record, name=text, family=text, arch=text, created_by=text)
    damage_record(store, key, encode_record(forged))
    index = Index(store)
    index.sync()
    with index.read() as connection:
        whole = queries.kernels(connection, queries.KernelFilter())
        as_csv = csv_file(queries.kernel_batches(connection, queries.KernelFilter(), limit=10))
        as_parquet = parquet_file(queries.kernel_batches(connection, queries.KernelFilter(), limit=10))
    (row,) = csv.DictReader(io.StringIO(as_csv.decode(), newline=""))
    assert {name: row[name] for name in ("name", "family", "arch", "created_by")} == dict.fromkeys(
        ("name", "family", "arch", "created_by"), f"'{text}" if text in FORMULAS else text
    )
    assert (row["key"], int(row["n"]), float(row["compile_ms"])) == (key, whole[0]["n"], whole[0]["compile_ms"])
    assert not any(value[:1] in ("=", "+", "-", "@", "\t", "\r") for value in row.values() if value)
    assert pyarrow.parquet.read_table(io.BytesIO(as_parquet)).to_pylist() == whole


def test_a_pack_holds_the_selected_kernels_and_is_valid(store: DiskStore, tmp_path: Path) -> None:
    keys = fill(store, 6)
    blob_file(store, keys[4]).write_bytes(b"damaged")
    file = tmp_path / "picked.gemmpack"
    file.write_bytes(pack_file(open_cache(store.layout.root), [keys[3], keys[1], keys[4], "0" * 64, keys[1]]))
    file.chmod(0o600)
    other = make_store(tmp_path / "other")
    imported = import_pack(other, Journal(other.layout.journal, 3600.0), Pack(file))
    assert (imported.taken, imported.refused) == (2, ())
    assert sorted(other.keys()) == sorted([keys[1], keys[3]])
