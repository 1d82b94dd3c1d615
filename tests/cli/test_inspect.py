"""Looking into kernels on the command line: one of them, two side by side, and why one was missed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cache_engine.compilers import COMPILERS
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import SECTIONS, Artifact, Blob, Record
from cache_engine.model.key import CacheKey, Components, key_of
from cache_engine.store.disk import DiskStore
from cache_engine.upkeep.admission import local_user
from tests.cli.test_cli import SHAPE, document, run
from tests.helpers import blob_file, make_store


def _keys(store: Path) -> dict[tuple[str, str], str]:
    """Keys of the compiled store by target and element type."""
    return {(record.arch, record.problem.dtype): record.key for record in make_store(store).records()}


# ---- show ----


def test_show_counts_instructions_and_prints_occupancy(compiled_store: Path) -> None:
    for (arch, dtype), key in _keys(compiled_store).items():
        shown = document("show", key, store=compiled_store)
        mix, resident = shown["instructions"], shown["occupancy"]
        assert ("FFMA" if dtype == "fp32" else "HMMA") in mix["classes"]
        assert sum(mix["classes"].values()) == sum(mix["opcodes"].values()) == mix["total"] > 100
        assert resident["arch"] == arch
        assert resident["blocks_per_sm"] == min(resident["block_limits"].values()) > 0
        assert resident["block_limits"]["blocks"] == architecture(arch).blocks_per_sm
        assert resident["share"] == resident["warps_per_sm"] / resident["most_warps_per_sm"]
        assert set(resident["bound_by"]) <= set(resident["block_limits"])
        assert shown["notes"] == []
        text = run("show", key[:12], store=compiled_store).stdout
        assert f"Theoretical occupancy on {arch}: {resident['share']:.1%}" in text
        assert f"{mix['total']:,} static instructions" in text
        largest, count = max(mix["classes"].items(), key=lambda one: one[1])
        bar = "█" * 8
        assert re.search(rf"^ *{re.escape(largest)} +{count:,} +{count / mix['total']:.1%} +{bar}", text, re.MULTILINE)
        for limit, blocks in resident["block_limits"].items():
            sign = "◀" if limit in resident["bound_by"] else ""
            assert re.search(rf"^ *{re.escape(limit)} +{blocks} *{sign} *$", text, re.MULTILINE), limit


def test_show_says_what_fusing_the_epilogue_saves(tmp_path: Path) -> None:
    keys = {
        epilogue: document("compile", *SHAPE, "--epilogue", epilogue, store=tmp_path)["key"]
        for epilogue in ("", "bias")
    }
    assert document("show", keys[""], store=tmp_path)["fusion_saves_bytes"] == 0
    assert "fusion saves" not in run("show", keys[""], store=tmp_path).stdout
    assert document("show", keys["bias"], store=tmp_path)["fusion_saves_bytes"] == 2 * 64 * 48 * 4
    assert re.search("fusion saves +24.0 KiB of traffic for m = 64", run("show", keys["bias"], store=tmp_path).stdout)


def test_show_without_a_disassembler_prints_the_rest_and_how_to_get_it(compiled_store: Path, tmp_path: Path) -> None:
    key = next(iter(_keys(compiled_store).values()))
    without = (
        "import sys\nfrom cache_engine.compilers import disassembly\n"
        "from cache_engine.errors import ToolMissing\n"
        "def missing(name, package): raise ToolMissing(f'{name} is not installed; run: pip install {package}')\n"
        "disassembly.find_tool = missing\n"
        "from cache_engine.cli.main import main; main()\n"
    )
    command = [sys.executable, "-c", without, "--store", str(compiled_store), "show", key]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Instructions were not counted: nvdisasm is not installed; run: pip install nvidia-cuda-nvdisasm" in (
        done.stdout
    )
    assert "Theoretical occupancy" in done.stdout


def test_show_of_damaged_code_prints_the_rest(compiled_store: Path) -> None:
    store: DiskStore = make_store(compiled_store)
    key = next(iter(store.keys()))
    blob = blob_file(store, key)
    blob.write_bytes(bytes(blob.stat().st_size))
    shown = document("show", key, store=compiled_store)
    assert shown["instructions"] is None
    assert shown["notes"][0].startswith("instructions were not counted: ")
    assert shown["occupancy"] is not None


# ---- diff ----


def test_diff_puts_two_kernels_side_by_side(compiled_store: Path) -> None:
    keys = _keys(compiled_store)
    first, second = keys["sm_90", "bf16"], keys["sm_80", "bf16"]
    found = document("show", first[:10], second[:10], store=compiled_store)
    assert found["keys"] == [first, second]
    differing = {pair["name"]: (pair["first"], pair["second"]) for pair in found["components"]}
    assert differing["arch"] == ("sm_90", "sm_80")
    shown = [document("show", key, store=compiled_store) for key in (first, second)]
    assert differing == {
        name: (value, shown[1]["components"][name])
        for name, value in shown[0]["components"].items()
        if value != shown[1]["components"][name]
    }
    for part, expected in (
        ("resources", [{"registers": each["registers"]} for each in shown]),
        ("instructions", [each["instructions"]["classes"] for each in shown]),
        ("occupancy", [{"share": each["occupancy"]["share"]} for each in shown]),
    ):
        rows = {row["name"]: (row["first"], row["second"]) for row in found[part]}
        for name in expected[0]:
            assert rows[name] == (expected[0][name], expected[1].get(name))
    assert "sass" not in found
    text = run("show", first, second, store=compiled_store).stdout
    assert "Key differences" in text
    assert first[:12] in text


def test_diff_of_machine_code_is_a_unified_diff(compiled_store: Path) -> None:
    keys = _keys(compiled_store)
    first, second = keys["sm_90", "bf16"], keys["sm_80", "bf16"]
    changes = document("show", first, second, "--part", "sass", store=compiled_store)["sass"]
    assert changes.startswith(f"--- {first[:12]} ")
    assert "\n+++ " in changes
    assert "/*0" not in changes
    assert "@@ " in run("show", first, second, "--part", "sass", store=compiled_store).stdout


def test_diff_of_a_kernel_with_itself_finds_nothing(compiled_store: Path) -> None:
    key = next(iter(_keys(compiled_store).values()))
    found = document("show", key, key, "--part", "sass", store=compiled_store)
    assert (found["components"], found["config"], found["sass"]) == ([], [], "")
    text = run("show", key, key, "--part", "sass", store=compiled_store).stdout
    assert "The keys are equal" in text
    assert "The SASS is the same" in text


def test_diff_of_no_kernel_fails(compiled_store: Path) -> None:
    key = next(iter(_keys(compiled_store).values()))
    assert run("show", key, "0123456789", store=compiled_store).returncode == 1
    assert run("show", "xyz", key, store=compiled_store).returncode == 2


# ---- explain ----

BF16 = ("128", "256", "192", "--arch")


def test_explain_reports_a_hit_and_counts_no_use(compiled_store: Path) -> None:
    before = document("stats", store=compiled_store)
    found = document("explain", *BF16, "sm_90", store=compiled_store)
    assert (found["hit"], found["tier"], found["nearest"]) == (True, "disk", None)
    assert found["key"] == _keys(compiled_store)["sm_90", "bf16"]
    assert "hit (disk)" in run("explain", *BF16, "sm_90", store=compiled_store).stdout
    assert document("stats", store=compiled_store) == before


def test_explain_of_an_evicted_kernel_says_when_why_and_by_whom(compiled_store: Path) -> None:
    """The journal explains the miss; that another kernel has other sizes does not."""
    key = _keys(compiled_store)["sm_90", "bf16"]
    document("clean", "--yes", "--key", key, store=compiled_store)
    found = document("explain", *BF16, "sm_90", store=compiled_store)
    assert (found["hit"], found["key"], found["nearest"]) == (False, key, None)
    expected = f"the kernel with this key was evicted just now: selected, by {local_user()}; compiling stores it again"
    assert found["notes"] == [expected]
    assert expected[1:] in run("explain", *BF16, "sm_90", store=compiled_store).stdout
    document("compile", *BF16, "sm_90", store=compiled_store)
    assert document("explain", *BF16, "sm_90", store=compiled_store)["hit"]


def test_show_of_an_evicted_kernel_says_when_why_and_by_whom(compiled_store: Path) -> None:
    key = _keys(compiled_store)["sm_90", "bf16"]
    document("clean", "--yes", "--key", key, store=compiled_store)
    done = run("show", key[:8], store=compiled_store)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"no kernel has key prefix {key[:8]}; {key[:12]} was evicted just now: selected, by {local_user()}; "
    assert said + f"gemm-cache log --key {key[:8]} has more" in done.stderr
    unknown = "0" * 8 if not key.startswith("0") else "f" * 8
    assert run("show", unknown, store=compiled_store).stderr.rstrip().endswith(f"no kernel has key prefix {unknown}")


def test_explain_of_a_quarantined_kernel_says_when_and_why(compiled_store: Path) -> None:
    key = _keys(compiled_store)["sm_90", "bf16"]
    blob = blob_file(make_store(compiled_store), CacheKey(key))
    blob.write_bytes(blob.read_bytes()[:100])
    document("verify", "--repair", store=compiled_store)
    found = document("explain", *BF16, "sm_90", store=compiled_store)
    assert (found["hit"], found["nearest"]) == (False, None)
    (note,) = found["notes"]
    assert note.startswith("the entry with this key was damaged and quarantined just now: truncated: ")


def test_explain_names_what_differs_from_the_nearest_and_compiles_nothing(compiled_store: Path) -> None:
    """Of two that differ in their target alone, the one compiled last."""
    found = document("explain", *BF16, "sm_100a", store=compiled_store)
    assert (found["hit"], found["tier"], found["compared"]) == (False, None, 4)
    assert found["nearest"]["key"] == _keys(compiled_store)["sm_80", "bf16"]
    causes = [pair["text"] for pair in found["nearest"]["differences"] if not pair["follows"]]
    assert causes == ["target: sm_80 in the nearest kernel, sm_100a requested"]
    text = run("explain", *BF16, "sm_100a", store=compiled_store).stdout
    assert "  target: sm_80 in the nearest kernel, sm_100a requested\n" in text
    assert document("ls", store=compiled_store)["total"] == 4
    assert document("stats", store=compiled_store)["misses"] == 4


def test_explain_says_how_to_ask_for_the_kernel_that_differs_in_its_config_alone(compiled_store: Path) -> None:
    asked = ("8192", "256", "192", "--arch", "sm_90")
    found = document("explain", *asked, store=compiled_store)
    assert not found["hit"]
    (note,) = found["notes"]
    config = note.split("--config ")[1].split()[0]
    again = document("explain", *asked, "--config", config, store=compiled_store)
    assert (again["hit"], again["key"]) == (True, found["nearest"]["key"])


def test_explain_says_how_to_ask_for_a_kernel_of_another_specialisation_that_would_serve(
    compiled_store: Path,
) -> None:
    made = document("compile", *BF16, "sm_90", "--specialise", "dynamic", "--opt-level", "1", store=compiled_store)
    assert (made["specialisation"], made["opt_level"], made["tier"]) == ("dynamic", 1, "compiled")
    shown = run("show", made["key"], store=compiled_store).stdout
    assert "dynamic: for every shape whose rows allow accesses as wide" in shown
    assert "level 1\n" in shown
    asked = ("5", "1024", "64", "--arch", "sm_90", "--specialise", "dynamic")
    found = document("explain", *asked, store=compiled_store)
    assert (found["hit"], found["specialisation"], found["opt_level"]) == (False, "dynamic", 3)
    assert found["nearest"]["key"] == made["key"]
    assert found["notes"] == ["the kernel that is there would serve this problem too; --opt-level 1 asks for it"]
    assert document("explain", *asked, "--opt-level", "1", store=compiled_store)["key"] == made["key"]
    first, second = made["key"], _keys(compiled_store)["sm_80", "bf16"]
    differing = {pair["name"] for pair in document("show", first, second, store=compiled_store)["components"]}
    assert {"N", "K", "flags", "arch"} <= differing


def test_explain_of_another_compilers_kernel_names_its_version(compiled_store: Path) -> None:
    """Records as another NVRTC would have left them, published the way every entry is."""
    store = make_store(compiled_store)
    for record in list(store.records()):
        changed = {**dict(record.components), "compiler_version": "13.4", "compiler_build": "another"}
        components = tuple(changed.items())
        key = key_of(components)
        texts = {name: store.section(record, name) for name in SECTIONS}
        artifact = Artifact(**texts, resources=record.resources)
        store.publish(key, artifact, _describer(record, key, components))
        store.delete(CacheKey(record.key))
    found = document("explain", *BF16, "sm_90", store=compiled_store)
    assert not found["hit"]
    here = COMPILERS["nvrtc"].fingerprint().version
    causes = [pair["text"] for pair in found["nearest"]["differences"] if not pair["follows"]]
    assert causes == [f"compiler version: 13.4 in the nearest kernel, {here} requested"]


def _describer(record: Record, key: CacheKey, components: Components) -> Callable[[Blob], Record]:
    return lambda blob: msgspec.structs.replace(record, key=key, components=components, blob=blob)


def test_explain_reports_a_damaged_entry(compiled_store: Path) -> None:
    store = make_store(compiled_store)
    key = CacheKey(_keys(compiled_store)["sm_90", "bf16"])
    blob = blob_file(store, key)
    blob.write_bytes(bytes(blob.stat().st_size))
    found = document("explain", *BF16, "sm_90", store=compiled_store)
    assert not found["hit"]
    assert "the entry with this key is damaged" in found["notes"][0]
    assert blob.exists()


def test_explain_of_an_empty_store_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    make_store(tmp_path / "empty")
    found = document("explain", *BF16, "sm_90", store=tmp_path / "empty")
    assert (found["hit"], found["compared"], found["nearest"]) == (False, 0, None)
    assert (
        "The store is empty; there is nothing to compare with"
        in run("explain", *BF16, "sm_90", store=tmp_path / "empty").stdout
    )


def test_explain_finds_what_a_pack_has(compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("pack", "export", tmp_path / "all.gemmpack", store=compiled_store)
    make_store(tmp_path / "empty")
    monkeypatch.setenv("GEMM_CACHE_PACKS", str(tmp_path / "all.gemmpack"))
    found = document("explain", *BF16, "sm_90", store=tmp_path / "empty")
    assert (found["tier"], found["toolchain_from"]) == ("pack", "installed")
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "packs")
    monkeypatch.setenv("GEMM_CACHE_TOOLCHAIN", "pack")
    found = document("explain", *BF16, "sm_90", store=tmp_path / "none")
    assert (found["tier"], found["toolchain_from"]) == ("pack", "pack all.gemmpack")
    assert not (tmp_path / "none").exists()


def test_explain_of_bad_input_is_one_line(compiled_store: Path) -> None:
    done = run("explain", "0", "5", "5", "--arch", "sm_90", store=compiled_store)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "m is 0" in done.stderr
