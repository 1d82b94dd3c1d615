"""Other programs and older versions can rely on our formats: fields and names are added, never removed or changed."""

from __future__ import annotations

import json
import pkgutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import documents
from cache_engine.batch import results
from cache_engine.cache.cache import open_cache
from cache_engine.cli import old_names
from cache_engine.index import queries
from cache_engine.model.artifact import CUBIN
from cache_engine.model.documents import to_json
from cache_engine.settings import REPLACED, RETIRED
from tests.formats import record
from tests.formats.record import FROM, Schema, broken, merged, schema_of

HERE = Path(__file__).parent
RECORDED: dict[str, Schema] = json.loads((HERE / "schemas.json").read_text())
NAMES: dict[str, Any] = json.loads((HERE / "public_names.json").read_text())
MOVED = {
    "Cache.inspect": "cache_engine.insight.inspection.inspect_kernel",
    "Cache.mirror": "cache_engine.cache.cache.Cache.index",
    "Cache.present_components": "cache_engine.cache.selection.Selector.present",
    **{
        f"Cache.{name}": f"cache_engine.upkeep.admin.Admin.{name}"
        for name in ("clean", "export", "find_leftovers", "import_pack", "plan_cleaning", "policy", "verify")
    },
}
"""Names that moved on purpose, with the version after the recorded one."""
TO_BENCHMARKS = "bench"
"""The verb whose parts are now verbs of ``python -m benchmarks``."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What this version prints in each recorded case."""
    return record.documents(tmp_path_factory.mktemp("formats"))


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A store that the recorded version has written."""
    with tarfile.open(HERE / f"{FROM}.store.tar.gz") as tar:
        tar.extractall(tmp_path, filter="tar")
    return tmp_path / "store"


@pytest.mark.parametrize("case", sorted(RECORDED))
def test_every_recorded_field_is_printed_with_its_type(case: str, printed: dict[str, list[Any]]) -> None:
    assert list(broken(RECORDED[case], merged(map(schema_of, printed[case])), case)) == []


def test_each_public_name_is_there_with_its_parameters() -> None:
    now = record.public_names()
    for name, parameters in NAMES["names"].items():
        if name == "Cache.inspect":
            continue  # a function now, without self
        found = record.parameters_of(pkgutil.resolve_name(MOVED[name])) if name in MOVED else now["names"][name]
        if parameters is not None:
            assert [one for one in found or () if one in parameters] == parameters, name


def test_each_setting_verb_and_option_is_there() -> None:
    now = record.public_names()
    assert set(NAMES["settings"]) <= {*now["settings"], *REPLACED, *RETIRED}
    verbs = {**now["verbs"], **{old: _options_of_old(old, now["verbs"]) for old in old_names.VERBS}}
    verbs |= {group: [] for old in old_names.VERBS if (group := old.rpartition(" ")[0]) not in verbs}
    verbs[TO_BENCHMARKS] = {"what"}.union(*(options for _, options in record.verbs(benchmarks.commands)))
    for verb, options in NAMES["verbs"].items():
        now_is = old_names.VERBS.get(verb, (verb,))[0]
        now_called = {old for of, old in old_names.OPTIONS if f"{now_is} ".startswith(f"{of} ") or not of}
        written = {one for one in options if one.startswith("-")}  # no program writes the name of an argument
        assert verb in verbs
        assert written <= {*verbs[verb], *now_called}, verb


def _options_of_old(old: str, verbs: dict[str, list[str]]) -> list[str]:
    """The options and arguments of the verb that an old one is now."""
    words = old_names.VERBS[old][0].split()
    return next(verbs[name] for most in range(len(words), 0, -1) if (name := " ".join(words[:most])) in verbs)


def test_a_store_of_the_recorded_version_opens_unchanged(old_store: Path) -> None:
    """Nothing in it is damaged, and kernels, usage, timings, results and quarantine are read."""
    with open_cache(old_store, create=False) as cache:
        records = {record.arch: record for record in cache.records()}
        assert sorted(records) == ["sm_80", "sm_90"]
        assert list(cache.admin.check()) == []
        for one in records.values():
            assert cache.store.section(one, CUBIN).startswith(b"\x7fELF")
            assert "__global__" in cache.text(one, "source")
        stats = cache.stats()
        assert (stats.totals.hits, stats.totals.misses, stats.totals.compiles) == ({"disk": 2}, 3, 3)
        assert [timing.median_us for timing in cache.timings] == [5.0, 4.0]
        (fingerprint,) = cache.evaluations.fingerprints()
        assert len(list(cache.evaluations.entries(fingerprint))) == 2
        (item,) = cache.admin.quarantined()
        cache.admin.restore(item)
        cache.index.sync()
        assert cache.query(queries.count, queries.KernelFilter()) == 3


def test_a_pack_of_the_recorded_version_is_imported_whole(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", durability="fast") as cache:
        imported = cache.admin.import_pack(HERE / f"{FROM}.gemmpack")
        assert (imported.taken, list(imported.refused)) == (2, [])
        assert list(cache.admin.check()) == []


def test_a_removed_a_retyped_and_an_optional_field_are_seen() -> None:
    """The comparison itself: each way to break a reader is found, and an added field is none."""

    def compare(*new: Any) -> list[str]:
        old = schema_of({"a": 1, "b": [{"c": "x"}], "hits": {"disk": 1}})
        return list(broken(old, merged(map(schema_of, new)), "it"))

    whole = {"a": 1, "b": [{"c": "x"}], "hits": {"pack": 2}, "more": None}
    assert compare(whole) == []
    assert compare(whole, {**whole, "b": []}) == []
    assert compare({**whole, "a": None}) == ["it.a was int, and is null"]
    assert compare({**whole, "hits": {"pack": "2"}}) == ["it.hits[] was int, and is str"]
    assert compare({**whole, "b": [{"d": "x"}]}) == ["it.b[].c is gone"]
    assert compare(whole, {name: whole[name] for name in ("a", "hits")}) == [
        "it.b was always there, and is left out at times"
    ]


@pytest.mark.parametrize("case", ["sample", "bench"])
def test_documents_of_slow_verbs_are_read_as_their_types(case: str) -> None:
    """A field that the type lacks, or has as another type, would be lost or refused."""
    types: dict[str, Any] = {"sample": results.Sampled, "bench": documents.Benchmark}
    for text in json.loads((HERE / "slow_documents.json").read_text())[case]:
        read = json.loads(to_json(msgspec.convert(text, types[case])))
        assert {name: read[name] for name in text} == text  # a field may be added
