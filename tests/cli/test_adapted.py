"""The verbs on kernels that another framework keeps in the store: real files of Triton's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from tests.adapters.made import SCALE, SCALE_8_WARPS, SCALE_SM_80, STAGES, TILE, put_kernel, triton_groups
from tests.cli.test_cli import document, run
from tests.helpers import make_store, publish


@pytest.fixture
def tile(store: DiskStore, tmp_path: Path) -> CacheKey:
    """The key of a kernel of Triton in the store."""
    return put_kernel(store.layout, tmp_path / "made")


def test_ls_and_search_list_them_after_ours(store: DiskStore, tile: CacheKey) -> None:
    place = store.layout.root
    ours = publish(store, 1)
    listed = document("ls", store=place)
    assert ([row["key"] for row in listed["rows"]], listed["total"]) == ([ours], 1)
    assert ([row["key"] for row in listed["adapted"]["rows"]], listed["adapted"]["total"]) == ([tile], 1)
    row = listed["adapted"]["rows"][0]
    assert (row["framework"], row["name"], row["version"], row["arch"]) == ("triton", "tile", "3.9.0", "sm_90a")
    assert row["compile_ms"] == sum(STAGES.values())
    printed = run("ls", store=place).stdout
    assert printed.index(ours[:12]) < printed.index("Kernels of other frameworks") < printed.index(tile[:12])
    found = document("ls", "tile", "sm_90a", store=place)
    assert (found["total"], found["adapted"]["total"]) == (0, 1)
    assert tile[:12] in run("ls", "tile", "sm_90a", store=place).stdout


def test_filters_choose_ours_or_theirs(store: DiskStore, tile: CacheKey) -> None:
    place = store.layout.root
    publish(store, 1)
    for options, wanted in (
        (("--kind", "triton"), (0, 1)),
        (("--kind", "cupy"), (0, 0)),
        (("--family", "simt", "--arch", "sm_90a"), (None, 0)),
        (("--arch", "sm_80"), (None, 0)),
    ):
        listed = document("ls", *options, store=place)
        assert listed["adapted"]["total"] == wanted[1]
        assert wanted[0] in (None, listed["total"])
    refused = run("ls", "--kind", "cupy", store=place).stdout
    assert "No kernel matches." in refused
    assert "valid framework values: triton" in refused
    assert "Only 1 row." in run("ls", "--kind", "triton", "--offset", "5", store=place).stdout
    assert document("ls", "--kind", "triton", store=place)["adapted"]["rows"][0]["key"] == tile


def test_show_says_what_is_known_and_prints_its_texts(store: DiskStore, tile: CacheKey, tmp_path: Path) -> None:
    place = store.layout.root
    files = triton_groups(tmp_path / "again")[TILE].files
    shown = document("show", tile[:8], store=place)
    assert (shown["key"], shown["framework"], shown["name"]) == (tile, "triton", "tile")
    assert {part["name"] for part in shown["parts"]} == set(files)
    assert (shown["stages_ms"], shown["hits"], shown["pinned"]) == (STAGES, 0, False)
    assert shown["spill_bytes"] is None
    assert shown["unknown"]["spill_bytes"]
    printed = run("show", tile, store=place).stdout
    for text in ("tile.ttgir", "sm_90a", "stage of the compile", "unknown: the report of the assembler"):
        assert text in printed
    assert run("show", tile, "--part", "ptx", store=place).stdout.rstrip("\n") == files["tile.ptx"].decode().rstrip(
        "\n"
    )
    assert document("show", tile, "--part", "source", store=place)["source"] == files["tile.source"].decode()
    assert "HGMMA" in run("show", tile, "--part", "sass", store=place).stdout
    refused = run("show", tile, "--part", "log", store=place)
    assert (refused.returncode, "stores no log" in refused.stderr) == (2, True)
    code = tmp_path / "tile.cubin"
    assert run("show", tile, "--part", "cubin", "--output", code, store=place).returncode == 0
    assert code.read_bytes() == files["tile.cubin"]


def test_diff_says_which_inputs_of_the_key_differ(store: DiskStore, tile: CacheKey, tmp_path: Path) -> None:
    place = store.layout.root
    one, other, old = (put_kernel(store.layout, tmp_path / key, key) for key in (SCALE, SCALE_8_WARPS, SCALE_SM_80))
    found = document("show", one[:8], other[:8], store=place)
    assert (found["keys"], found["names"]) == ([one, other], ["scale", "scale"])
    four_and_eight = {"name": "num_warps", "first": 4, "second": 8}
    assert found["config"] == [four_and_eight]
    assert found["components"] == [four_and_eight | {"first": "4", "second": "8"}]
    assert [note for note in found["notes"] if "inputs that triton does not store: the build of Triton" in note]
    occupancy = {pair["name"]: (pair["first"], pair["second"]) for pair in found["occupancy"]}
    assert occupancy["arch"] == ("sm_90a", "sm_90a")
    assert occupancy["blocks_per_sm"][0] == 2 * occupancy["blocks_per_sm"][1]
    found = document("show", one, old, "--part", "sass", store=place)
    pairs = {pair["name"]: (pair["first"], pair["second"]) for pair in found["components"]}
    assert pairs["target arch"] == ("90", "80")
    assert {"triton_version", "num_warps"}.isdisjoint(pairs)
    assert "Input target arch: another GPU: its kernels are compiled apart." in found["notes"]
    resources = {pair["name"]: (pair["first"], pair["second"]) for pair in found["resources"]}
    known = [document("show", key, store=place) for key in (one, old)]
    for name in ("registers", "shared_bytes", "code_bytes", "spill_bytes"):
        assert resources[name] == tuple(each[name] for each in known), name
    assert f"--- {one[:12]} scale" in found["sass"]
    printed = run("show", one, old, store=place).stdout
    places = [printed.index(text) for text in ("Key differences", "Theoretical occupancy", "Input target arch")]
    assert places == sorted(places)
    assert "The keys are equal" not in printed
    same = run("show", tile, tile, store=place).stdout
    assert ("The keys are equal." in same, "does not store:" in same) == (True, False)


def test_diff_with_one_of_ours_compares_all_but_the_keys(compiled_store: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    shutil.copytree(compiled_store, place)
    store = make_store(place)
    ours = next(iter(store.keys()))
    found = document("show", ours, put_kernel(store.layout, tmp_path / "made"), store=place)
    assert found["components"] == []
    assert "These kernels are of different frameworks: their keys have no inputs in common." in found["notes"]
    resources = {pair["name"]: (pair["first"], pair["second"]) for pair in found["resources"]}
    assert all(resources["registers"])
    assert all(pair["first"] is not None for pair in found["instructions"] if pair["name"] == "total")


def test_diff_of_what_states_no_inputs_says_so(store: DiskStore) -> None:
    groups = [Group("cuda_core", name, "program", {"program": b".version 8.0 %d" % at}) for at, name in enumerate("ab")]
    for group in groups:
        put_group(store.layout, group, durable=False)
    found = document("show", *(group.key for group in groups), store=store.layout.root)
    assert found["components"] == []
    assert any("cuda_core keys a kernel by a digest, and stores no input of it" in note for note in found["notes"])
    assert any(note.startswith("occupancy is not known") for note in found["notes"])
    assert run("show", *(group.key for group in groups), "--part", "sass", store=store.layout.root).returncode == 2


def test_a_damaged_one_is_said_and_an_unknown_key_too(store: DiskStore, tile: CacheKey) -> None:
    path = Path(store.layout.group_path(tile))
    path.write_bytes(path.read_bytes()[:-1])
    done = run("show", tile, store=store.layout.root)
    assert (done.returncode, "does not match its checksum" in done.stderr) == (1, True)
    assert run("show", "abcd1234", store=store.layout.root).returncode == 1


def test_a_pinned_one_is_not_evicted(store: DiskStore, tile: CacheKey) -> None:
    place = store.layout.root
    assert document("pin", tile[:8], store=place)["pinned"] == [tile]
    assert document("show", tile, store=place)["pinned"] is True
    assert document("clean", "--yes", "--all", store=place)["victims"] == []
    assert document("pin", "--remove", tile[:8], store=place)["pinned"] == []
    planned = document("clean", "--arch", "sm_90a", store=place)
    assert [victim["key"] for victim in planned["victims"]] == [tile]
    assert document("clean", "--yes", "--arch", "sm_80", store=place)["victims"] == []
    assert [victim["key"] for victim in document("clean", "--yes", "--key", tile[:8], store=place)["victims"]] == [tile]
    assert document("ls", store=place)["adapted"]["total"] == 0


def test_python_has_them_too(store: DiskStore, tile: CacheKey) -> None:
    with open_cache(store.layout.root) as cache:
        group = cache.admin.adapted(cache.admin.find_key(tile[:8]))
        assert group is not None
        assert group.key == tile
        assert cache.admin.usage_of(tile, group.made_at) is None
        assert cache.admin.pin(tile) == [tile]
