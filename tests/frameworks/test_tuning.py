"""Results of tuning of Triton, Inductor, Helion and FlashInfer: read, listed and compared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import group_keys
from cache_engine.frameworks.tuning import Choice, choices, compare
from cache_engine.frameworks.values import Place, ScanFinding
from cache_engine.settings import Settings
from cache_engine.store.disk import open_store

KEY = "A" * 52


def triton(folder: Path, times: dict[int, Any], key: object = (1024, "torch.float16"), digest: str = KEY) -> None:
    """As Triton 3.9 writes it: a config's fields, and its median, 20th and 80th percentile in milliseconds."""
    configs = [
        [{"kwargs": {"BLOCK": block}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None,
          "ir_override": None}, time]
        for block, time in times.items()
    ]  # fmt: skip
    (folder / digest).mkdir(parents=True, exist_ok=True)
    (folder / digest / "add.autotune.json").write_text(json.dumps({"key": key, "configs_timings": configs}))


def inductor(folder: Path, **config: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    others = {"configs_hash": "c", "found_by_coordesc": False, "time_taken_ms": 12, "triton_cache_hash": "T"}
    (folder / "0123456789abcdef.best_config").write_text(
        json.dumps({**config, "num_warps": 4, "num_stages": 1, **others})
    )


def helion(folder: Path, digest: str, **config: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"kernel_source_hash": "k", "specialization_key": "s", "hardware": "H100", "best_of_k": "1"}
    text = json.dumps(
        {"config": json.dumps(config), "key": {"type": "LooseAutotuneCacheKey", "fields": fields}}, indent=2
    )
    (folder / f"{digest}.best_config").write_text(text)
    return text


def operations(folder: Path, times: dict[str, Any], inputs: str = "(64, 64)") -> None:
    """As ``PersistentCache`` of torch 2.13 writes it after ``max_autotune``: a file for a GPU, with all operations."""
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    document = {"system": {"hash": "ab"}, "cache": {"mm": {inputs: {"highest": times}}, "bmm": {}}}
    (folder / "cache" / ("ab" * 32)).write_text(json.dumps(document, indent=4))


def flashinfer(folder: Path, key: str, tactic: object) -> None:
    entries = folder / ".cache" / "autotune" / "v2" / "env" / "entries"
    entries.mkdir(parents=True, exist_ok=True)
    (entries / "e.json").write_text(json.dumps({"key": key, "runner": "CutlassRunner", "tactic": tactic}))


def found(folder: Path, kind: str = "triton") -> list[Choice]:
    seen = list(choices(Place(kind, folder, "given")))
    assert not [each for each in seen if isinstance(each, ScanFinding)]
    return [each for each in seen if isinstance(each, Choice)]


def test_each_framework_s_files_say_what_was_chosen(tmp_path: Path) -> None:
    triton(tmp_path / "triton", {64: [2.0, 1.9, 2.1], 128: [1.0, 0.9, 1.1], 256: [float("inf")] * 3, 512: 1.5})
    inductor(tmp_path / "inductor" / "ab", XBLOCK=32)
    helion(tmp_path / "inductor" / "helion", "ab" * 32, block_sizes=[16, 16])
    flashinfer(tmp_path / "flashinfer", "('fp4_gemm', 'CutlassRunner', ((1, 2),), ())", [1, 2])
    (tmp_path / "flashinfer" / "mine.json").write_text(
        json.dumps({"_metadata": {"gpu": "B200"}, "_generation": "x", "('moe', 'R', (), ())": ["R", 3, ["hot"]]})
    )
    (one,) = found(tmp_path / "triton")
    assert (one.name, one.key) == ("add", '[1024, "torch.float16"]')
    assert (one.chosen, one.ms) == ("BLOCK=128 num_warps=4 num_ctas=1 num_stages=3", 1.0)
    assert sorted(one.times_ms.values()) == [1.0, 1.5, 2.0]
    told = {(each.framework, each.name): each.chosen for each in found(tmp_path / "inductor", "inductor")}
    assert told == {
        ("inductor", "0123456789ab"): "XBLOCK=32 num_warps=4 num_stages=1",
        ("helion", "ab" * 6): "block_sizes=[16, 16]",
    }
    told = {(each.framework, each.name): each.chosen for each in found(tmp_path / "flashinfer", "flashinfer")}
    assert told == {("flashinfer", "fp4_gemm"): "CutlassRunner [1, 2]", ("flashinfer", "moe"): "R 3"}


def test_two_machines_are_compared_key_by_key_whatever_their_files_are_called(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for number in range(4):
        triton(one, {64: 1.0, 128: 1.09 if number else 1.5}, key=[number], digest=f"{'A' * 51}{number + 2}")
        times = {64: 1.0, 128: 2.0} if number == 3 else {64: 1.05, 128: 1.0}
        triton(other, times, key=[number], digest=f"{'B' * 51}{number + 2}")
    triton(one, {64: 1.0}, key=["a"], digest="C" * 52)
    triton(other, {64: 1.0}, key=["b"], digest="D" * 52)
    compared = compare(found(one), found(other))
    assert compared.both == 4
    assert [each.slower for each in compared.different] == [
        pytest.approx(0.5),
        pytest.approx(0.09),
        pytest.approx(0.09),
    ]
    assert compared.worst == pytest.approx(0.5)
    assert [each.key for each in compared.only_first + compared.only_second] == ['["a"]', '["b"]']


def test_without_times_no_difference_in_time_is_invented(tmp_path: Path) -> None:
    inductor(tmp_path / "a", XBLOCK=32)
    inductor(tmp_path / "b", XBLOCK=64)
    compared = compare(found(tmp_path / "a"), found(tmp_path / "b"))
    assert (compared.both, len(compared.different), compared.worst) == (1, 1, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.autotune.json", ""), ("x.autotune.json", "[]"), ("x.autotune.json", '{"configs_timings": 3}'),
        ("x.autotune.json", '{"key": 1, "configs_timings": [[3, 4]]}'), ("x.autotune.json", "[" * 100_000),
        ("x.autotune.json", '{"key": 1, "configs_timings": [[{}, [' + "9" * 5000 + "]]]}"),
        ("x.autotune.json", '{"key": 1, "configs_timings": [[{}, []]]}'),
        ("x.best_config", '{"key": 3, "config": ""}'), ("x.best_config", '{"key": {"fields": {}}, "config": "3"}'),
        ("x.best_config", "\xff"), ("x.best_config", "null"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_result_is_a_finding(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    inductor(tmp_path / "z", XBLOCK=32)
    first, second = choices(Place("triton", tmp_path, "given"))
    assert isinstance(first, ScanFinding)
    assert isinstance(second, Choice)


def test_links_devices_and_hostile_names_are_not_followed(tmp_path: Path) -> None:
    inductor(tmp_path / "real", XBLOCK=32)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "a" / "x.best_config").symlink_to(tmp_path / "real" / "0123456789abcdef.best_config")
    os.mkfifo(tmp_path / "a" / "y.best_config")
    (tmp_path / "a" / "\x1b]0;.best_config").write_text('{"X\x7f": "\\u001b"}')
    (tmp_path / "a" / "\udcff.autotune.json").write_text("{}")
    seen = list(choices(Place("triton", tmp_path / "a", "given")))
    (told,) = (each for each in seen if isinstance(each, Choice))
    assert (told.file, told.chosen) == ("%1B]0;.best_config", "X%7F=%1B")
    assert sum(isinstance(each, ScanFinding) for each in seen) == 3
    for each in seen:
        json.dumps(str(each)).encode()


# ---- Helion's backend ----


class _Interface:
    """Of Helion 1.5.1; a test of the real one is in soak."""


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import importlib
    import sys
    from types import ModuleType

    from cache_engine.adapters import shelf

    names = ("helion", "helion.autotuner", "helion.autotuner.remote_cache")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].RemoteCacheBackend = _Interface  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "cache_engine.adapters.helion", raising=False)
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "store"))
    open_store(tmp_path / "store")
    shelf.shelf.cache_clear()
    yield importlib.import_module("cache_engine.adapters.helion").Backend()
    shelf.shelf.cache_clear()


def test_helion_gets_what_it_put_the_newest_first(backend: Any, tmp_path: Path) -> None:
    first, second = (helion(tmp_path / "h", name, block_sizes=[int(name)]) for name in ("1", "2"))
    assert backend.get("1") is None
    backend.put("1", first)
    backend.put("2", second)
    assert (backend.get("1"), backend.get("2")) == (first, second)
    assert list(backend.list()) == [second, first]
    assert list(backend.list(1)) == [second]
    assert Settings.load().directory() == tmp_path / "store"
    assert len(list(group_keys(open_store(tmp_path / "store")))) == 2


@pytest.mark.parametrize("data", ["", "[]", '{"config": 3}', "\0"])
def test_helion_cannot_store_what_is_no_result(backend: Any, data: str) -> None:
    with pytest.raises(CorruptEntry, match="result" if "{" in data else "JSON"):
        backend.put("1", data)


def test_the_choices_of_max_autotune_are_results_with_their_times(tmp_path: Path) -> None:
    operations(tmp_path / "one", {"triton_mm-c1": 0.5, "mm-c2": 0.25, "triton_mm-c3": float("inf")})
    operations(tmp_path / "two", {"triton_mm-c1": 0.2, "mm-c2": 0.4})
    (one,), (two,) = (found(tmp_path / name, "inductor") for name in ("one", "two"))
    assert (one.framework, one.name, one.key, one.chosen, one.ms) == (
        "inductor", "mm", "(64, 64) highest", "mm-c2", 0.25,
    )  # fmt: skip
    assert set(one.times_ms) == {"triton_mm-c1", "mm-c2"}
    compared = compare([one], [two])
    assert compared.both == 1
    assert compared.worst == pytest.approx(1.0)
    assert found(tmp_path / "one", "triton") == []  # a file of this name means nothing there


@pytest.mark.parametrize("value", [None, 1, "x", [1], {"mm": 1}, {"mm": {"k": []}}, {"mm": {"k": {"p": {"c": "x"}}}}])
def test_a_damaged_file_of_max_autotune_is_a_finding(value: object, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "ab").write_text(json.dumps({"system": {}, "cache": value}))
    (seen,) = choices(Place("inductor", tmp_path, "given"))
    assert isinstance(seen, ScanFinding)
