"""A hundred hostile strings in every text field of a record: stored, searched, listed, exported, always plain text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cli.ls import Page, print_kernels
from cache_engine.cli.show import inspection_document, print_difference, print_inspection
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.insight.comparison import compare, sass_difference
from cache_engine.insight.inspection import inspect
from cache_engine.model.artifact import Blob, Record
from cache_engine.model.documents import to_json
from cache_engine.model.key import CacheKey, key_of
from cache_engine.store.codec import encode_blob, encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.pack import Pack
from cache_engine.upkeep import integrity
from cache_engine.upkeep.packs import export_pack, import_pack
from tests.helpers import make_entry, make_store

MARKUP = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></tr></table>", "<!--", "-->", "]]>",
    "&lt;b&gt;", "javascript:alert(1)", "[x](javascript:alert(1))", "![x](https://example.org/x.png)",
    "**bold**", "`code`", "# title", "$x^2$", ":material/delete:", ":red[x]", "[bold red]x[/]", "[/]",
    "[link=https://example.org]x[/link]", "{{7*7}}",
    "${7*7}", "<%= 7*7 %>", "{0}", "{x.__class__}", "%s%s%n", "%(x)s", "{}", "{", "}",
]  # fmt: skip
SQL = [
    "'; DROP TABLE kernels; --", '"; DROP TABLE kernels; --', "' OR '1'='1", "\\'; --", "x' UNION SELECT 1 --", "%",
    "_", "%%", "\\", "\\\\", "?", "$1", ":name", "NULL", "null", "None", "true", "0", "-1", "1e999", "NaN", "Infinity",
]  # fmt: skip
SHELL = [
    "$(reboot)", "`reboot`", "; reboot", "| cat", "&& reboot", "> /dev/null", "-rf", "--all", "~", "$HOME", "*",
    "../..", "../../etc/passwd", "/etc/passwd", "C:\\CON", "a/b", "a\\b", ".", "..", " ", "\t", "con", "nul",
    "=cmd|'/C calc'!A0", "+1+1", "-1+1", "@SUM(1)",
]  # fmt: skip
UNICODE = [
    "\u202egnp.exe", "\u200b", "\ufeff", "\u2028", "\u2029", "\x00", "\x1b[31m", "\x1b]0;owned\x07", "\x1b[2J", "\x07",
    "\r", "a\r\nb", "a\nb", "\x7f", "\x9b31m", "ß", "İ", "ı", "Ǆ", "é", "e\u0301", "한글", "日本語", "עברית",
    "العربية", "🦄",
    "👩‍👩‍👧‍👦", "\U0010ffff", "\ufffd", "\ue000", "Ω" * 1000, "a" * 10_000, "\u0300" * 50, "１２３", "Ｓｍ＿９０",
]  # fmt: skip
HOSTILE = [*MARKUP, *SQL, *SHELL, *UNICODE]


def _forged(number: int, text: str) -> tuple[Record, bytes]:
    """A record with the text in every field that is text, and its blob; every checksum fits."""
    _, artifact, describe = make_entry(number)
    start = (("schema", "1"), ("family", text), ("compiler", text), ("arch", text), ("number", str(number)))
    components = (*start, (text, text))
    key = key_of(components)
    data, blob = encode_blob(key, artifact, compress=True)
    record = describe(blob)
    fields = dict.fromkeys(("name", "family", "compiler", "compiler_version", "arch", "created_by"), text)
    problem = msgspec.structs.replace(record.problem, dtype=text, out_dtype=text, layout=text)
    stages = {text: 1.0}
    changed: dict[str, Any] = {**fields, "key": key, "components": components, "problem": problem, "stages_ms": stages}
    return msgspec.structs.replace(record, **changed), data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DiskStore:
    """One entry for each text."""
    made = make_store(tmp_path_factory.mktemp("hostile") / "store")
    for number, text in enumerate(HOSTILE):
        record, data = _forged(number, text)
        made.place(record, encode_record(record), data)
    return made


@pytest.fixture(scope="module")
def rows(store: DiskStore) -> dict[str, dict[str, Any]]:
    """What the index says of them, by key."""
    index = Index(store)
    synced = index.sync()
    assert (synced.added, synced.unreadable) == (len(HOSTILE), 0)
    with index.read() as connection:
        return {row["key"]: row for row in queries.kernels(connection, queries.KernelFilter(), limit=1000)}


def _by_key(store: DiskStore) -> Iterator[tuple[CacheKey, str]]:
    for record in store.records():
        yield CacheKey(record.key), record.name


def test_there_are_a_hundred() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 100


def test_they_come_out_as_they_went_in(store: DiskStore, rows: dict[str, dict[str, Any]]) -> None:
    assert sorted(text for _, text in _by_key(store)) == sorted(HOSTILE)
    for key, text in _by_key(store):
        row = rows[key]
        indexed = {row[name] for name in ("name", "family", "compiler", "compiler_version", "arch", "dtype", "layout")}
        assert indexed == {text}
        assert store.get(key) is not None
    assert list(integrity.check(store)) == []


def test_each_is_found_by_searching_for_it(store: DiskStore, rows: dict[str, dict[str, Any]]) -> None:
    index = Index(store)
    index.sync()
    with index.read() as connection:
        for key, text in _by_key(store):
            by_text = queries.kernels(connection, queries.KernelFilter(text=text), limit=1000)
            assert key in {row["key"] for row in by_text}
            by_arch = queries.kernels(connection, queries.KernelFilter(archs=(text,)), limit=1000)
            assert {row["key"] for row in by_arch} == {key}
            assert queries.kernel(connection, key) is not None
        assert len(queries.architectures(connection)) == len(HOSTILE)
        assert len(queries.facets(connection)["arch"]) == len(HOSTILE)
        counts = queries.facet_counts(connection, queries.KernelFilter())
        assert (len(counts.values["arch"]), len(counts.values["compiler"])) == (len(HOSTILE), len(HOSTILE))


def test_no_terminal_gets_a_control_character(
    store: DiskStore, rows: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_kernels(Page(len(rows), list(rows.values())), Page(0, []), 0, {})
    for record in store.records():
        inspection = inspect(record, None, record.name)
        print_inspection(inspection)
        assert msgspec.json.decode(to_json(inspection_document(inspection)))["name"] == record.name
        ordinary = inspect(make_entry(1)[2](record.blob), None)
        for one, other in ((ordinary, inspection), (inspection, ordinary)):
            comparison = compare(one, other)
            code = sass_difference(one, "        /*0000*/  NOP ;\n        /*0010*/  EXIT ;\n", other, "")
            assert code.count("\n") == 4
            print_difference(one, other, comparison, code)
            assert to_json(comparison)
    printed = capsys.readouterr().out
    assert [char for char in set(printed) if not char.isprintable() and char != "\n"] == []


def test_they_go_out_in_a_pack_and_in_again(store: DiskStore, tmp_path: Path) -> None:
    export_pack(store, tmp_path / "hostile.gemmpack")
    other = make_store(tmp_path / "other")
    imported = import_pack(other, Journal(other.layout.journal, 3600.0), Pack(tmp_path / "hostile.gemmpack"))
    assert (imported.taken, imported.refused) == (len(HOSTILE), ())
    assert dict(_by_key(other)) == dict(_by_key(store))
    stray = [path for path in other.layout.root.parent.iterdir() if path.name not in ("other", "hostile.gemmpack")]
    assert stray == []


def test_a_blob_cannot_name_its_place(store: DiskStore) -> None:
    """The names of files are made of the key and of a digest; a forged one is only another that does not match."""
    record = next(store.records())
    for digest in ("../../../../etc/passwd", "/etc/passwd", "\x00", "a/b", ""):
        forged = msgspec.structs.replace(record, blob=Blob(digest, 1, True, record.blob.sections))
        path = store.layout.blob_path(CacheKey(forged.key), forged.blob.digest)
        assert path.startswith(f"{store.layout.kernels}/{forged.key[:2]}/{forged.key}-") or digest
