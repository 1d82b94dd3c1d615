"""The command line as other programs and people use it: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cache_engine.batch import warm
from cache_engine.batch.warm import ARCHITECTURES
from cache_engine.cli.main import commands
from cache_engine.compilers.contents import find_tool
from cache_engine.gpu.probe import local_arch
from cache_engine.index.queries import OLD_SORTS, SORTS
from cache_engine.upkeep.cleanup import GRACE_S
from tests.cli import forked
from tests.cli.conftest import Examine
from tests.helpers import damage_record, make_store, publish, record_file

SHAPE = ("64", "48", "80", "--dtype", "fp32", "--arch", "sm_90")


def run(
    *arguments: object, store: Path | None = None, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    where = [] if store is None else ["--store", str(store)]
    return forked.run([*where, *map(str, arguments)], cwd=cwd, timeout=timeout)


def document(*arguments: object, store: Path, code: int = 0, timeout: float = 120) -> Any:
    done = run(*arguments, "--json", store=store, timeout=timeout)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_compile_then_find_on_disk(place: Path) -> None:
    first, second = (document("compile", *SHAPE, store=place) for _ in range(2))
    assert (first["tier"], second["tier"]) == ("compiled", "disk")
    assert first["key"] == second["key"]
    assert second["compile_ms"] == first["compile_ms"] > 0
    assert second["load_ms"] > 0
    expected = {
        "key", "tier", "arch", "compiler", "family", "config", "compile_ms", "load_ms", "stages_ms", "size_bytes",
        "stored_bytes", "registers", "shared_bytes", "spill_bytes",
    }  # fmt: skip
    assert expected <= set(first)
    tiles = {"block_m", "block_n", "block_k", "warps_m", "warps_n", "stages"}
    assert first["config"].keys() == {*tiles, "split_k", "cluster"}


def test_each_thing_asked_gives_a_key_of_its_own(place: Path) -> None:
    variants = (
        (), ("--dtype", "fp64"), ("--layout", "nn"), ("--arch", "sm_80"), ("--dtype", "tf32"), ("--dtype", "int8"),
        ("--epilogue", "bias"), ("--epilogue", "relu+bias"),
        ("--config", "block_m=64,block_n=64,block_k=16,warps_m=2,warps_n=2,stages=2"),
    )  # fmt: skip
    keys = {document("compile", *SHAPE, *variant, store=place)["key"] for variant in variants}
    assert len(keys) == len(variants)


def test_without_a_target_it_is_the_local_gpus_or_sm_90(place: Path) -> None:
    assert document("compile", 8, 8, 8, "--dtype", "fp32", store=place)["arch"] == (local_arch() or "sm_90")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("0", "5", "5"), "m is 0; it must be a whole number from 1 to 16,777,216"),
        (("5", "0", "5"), "n is 0"),
        (("-1", "5", "5"), "-1 is not a size"),
        ((str(10**9), "5", "5"), "m is 1,000,000,000; it must be a whole number from 1 to 16,777,216"),
        (("5", "5", str(10**30)), "k is 1,000,000"),
        (("5", "5", "5", "--batch", "0"), "batch is 0"),
        (("5", "5", "5", "--batch", "-3"), "-3 is not a size"),
        (("5", "5", "many"), "'many' is not a whole number"),
        (("5", "5"), "Missing argument 'K'"),
        (("5", "5", "5", "--dtype", "fp5"), "use one of: fp16, bf16, tf32, fp32, fp64, fp8_e4m3, fp8_e5m2, int8"),
        (("5", "5", "5", "--out-dtype", "fp64"), "cannot be made from bf16"),
        (("5", "5", "5", "--layout", "ab"), "use one of: nn, nt, tn, tt"),
        (("5", "5", "5", "--arch", "sm_1"), "use one of: sm_70"),
        (("5", "5", "5", "--arch", "../../etc"), "unknown architecture"),
        (("5", "5", "5", "--arch", "sm_75"), "needs sm_80 or newer; sm_75 computes: fp16, fp32, fp64, int8"),
        (("5", "5", "5", "--arch", "sm_75", "--family", "tensor_core"), "needs sm_80"),
        (("5", "5", "5", "--family", "magic"), "use one of: tensor_core, scaled, simt"),
        (("5", "5", "5", "--compiler", "gcc"), "use one of: nvrtc"),
        (("5", "5", "5", "--config", "block_m=7"), "config lacks"),
        (("5", "5", "5", "--colour"), "No such option"),
    ],
)
def test_invalid_input_is_one_line_that_names_valid_values(place: Path, arguments: tuple[str, ...], named: str) -> None:
    done = run("compile", *arguments, store=place)
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr)
    assert named in done.stderr
    assert done.stdout == ""
    assert not list(place.glob("metadata/*/*"))
    assert not list(place.glob("temp/*"))


def test_an_error_is_a_json_document_when_one_was_asked_for(place: Path) -> None:
    done = run("compile", "0", "5", "5", "--json", store=place)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "InvalidProblem"


def test_a_store_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run("compile", *SHAPE, store=tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'file'} is a file; a store is a directory\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_is_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = run("ls", store=tmp_path)
    assert done.returncode == 2
    assert "is not a store; give an empty or new directory" in done.stderr


def test_time_without_a_gpu_says_that_it_needs_one(place: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    done = run("time", *SHAPE, store=place)
    assert done.returncode == 3
    assert "timing a kernel needs an NVIDIA GPU, and no NVIDIA driver is installed" in done.stderr
    assert not place.exists()


def test_show_gives_each_text_and_the_code(compiled_store: Path, tmp_path: Path) -> None:
    listed = document("ls", store=compiled_store)["rows"]
    for row in {row["family"]: row for row in listed}.values():  # one of each
        shown = document("show", row["key"][:10], store=compiled_store)
        assert shown["key"] == row["key"]
        assert shown["components"]["arch"] == row["arch"]
        source, ptx, sass, log = (
            run("show", row["key"], f"--{part}", store=compiled_store).stdout
            for part in ("source", "ptx", "sass", "log")
        )
        assert row["name"] in source
        assert f".target {row['arch']}" in ptx
        assert ("HMMA" if row["family"] == "tensor_core" else "FFMA") in sass
        assert "Used" in log
        done = run("show", row["key"], "--part", "cubin", "--output", tmp_path / "k.cubin", store=compiled_store)
        assert done.returncode == 0
        folder = find_tool("cuobjdump", "nvidia-cuda-cuobjdump").parent
        dumped = subprocess.run(
            ["cuobjdump", "-sass", tmp_path / "k.cubin"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        ).stdout
        assert ("HMMA" if row["family"] == "tensor_core" else "FFMA") in dumped


def test_show_of_no_kernel_fails(compiled_store: Path) -> None:
    assert run("show", "0123456789", store=compiled_store).returncode == 1
    assert run("show", "xyz", store=compiled_store).returncode == 2


def test_lists_are_filtered_sorted_and_paged(compiled_store: Path) -> None:
    everything = document("ls", store=compiled_store)
    assert everything["total"] == len(everything["rows"]) == 4
    assert document("ls", "--arch", "sm_90", store=compiled_store)["total"] == 2
    assert document("ls", "--dtype", "fp32", "--dtype", "fp16", store=compiled_store)["total"] == 2
    page = document("ls", "--sort", "name", "--limit", "1", "--offset", "3", store=compiled_store)
    assert page["rows"][0]["name"] == min(row["name"] for row in everything["rows"])
    assert document("ls", "tensor_core", "SM_80", store=compiled_store)["total"] == 1
    for found in ("tensor_*", "out=fp32 simt"):  # index/test_searching.py has what words there are
        assert document("ls", *found.split(), store=compiled_store)["total"] > 0, found
    for none in ("created>1d", "key='"):
        assert document("ls", none, store=compiled_store)["total"] == 0, none
    assert [document("ls", hits, store=compiled_store)["total"] for hits in ("hits=0", "hits>0")] == [3, 1]
    unknown = run("ls", "zzz=3", store=compiled_store)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "zzz=3: there is no field zzz. Fields: m, n, k, " in unknown.stderr
    nothing = run("ls", "nothing like this", store=compiled_store).stdout
    assert "No kernel matches.\n" in nothing
    assert "valid arch values: sm_75, sm_80, sm_90\n" in nothing
    refused = run("ls", "--sort", "colour", store=compiled_store)
    assert refused.returncode == 2
    for sort in (*SORTS, *OLD_SORTS):  # index/test_queries.py sorts by each
        assert f"'{sort.replace(' ', '-')}'" in refused.stderr
    for number, sort in enumerate(("size-on-disk", *OLD_SORTS)):
        way = ("--ascending",) if number % 2 else ()
        given = document("ls", "--sort", sort, *way, store=compiled_store)
        assert {row["key"] for row in given["rows"]} == {row["key"] for row in everything["rows"]}
    sizes = [row["size_bytes"] for row in document("ls", "--sort", "size", "--ascending", store=compiled_store)["rows"]]
    assert sizes == sorted(sizes)
    table = run("ls", store=compiled_store).stdout
    assert all(row["key"][:12] in table for row in everything["rows"])


def test_statistics_add_up(compiled_store: Path) -> None:
    stats = document("stats", "--by", "arch", store=compiled_store)
    assert (stats["entries"], stats["misses"], stats["compiles"]) == (4, 4, 4)
    assert stats["hits"] == {"memory": 1}
    assert stats["hit_rate"] == 0.2
    assert {row["arch"]: row["entries"] for row in stats["architectures"]} == {"sm_75": 1, "sm_80": 1, "sm_90": 2}
    text = run("stats", "--by", "arch", store=compiled_store).stdout
    assert "4 of 5,000" in text
    assert "sm_75" in text


def test_clean_says_then_does(compiled_store: Path) -> None:
    shown = run("clean", "--max-entries", "1", "--json", store=compiled_store)
    planned = json.loads(shown.stdout)
    assert planned["dry_run"]
    assert len(planned["victims"]) == 3
    assert shown.stderr == "Nothing is deleted without --yes.\n"
    assert run("clean", "--all", "--dry-run", "--json", store=compiled_store).stderr == ""
    assert document("ls", store=compiled_store)["total"] == 4
    done = document("clean", "--yes", "--max-entries", "1", store=compiled_store)
    assert done["cleaned"]["evicted"] == 3
    assert document("ls", store=compiled_store)["total"] == 1
    assert (
        document("clean", "--yes", "--max-bytes", "0B", store=compiled_store)["victims"][0]["reason"]
        == "store too large"
    )
    assert document("ls", store=compiled_store)["total"] == 0
    assert run("clean", "--yes", "--max-bytes", "lots", store=compiled_store).returncode == 2


def test_clean_by_age(place: Path) -> None:
    store = make_store(place)
    old, young = publish(store, 1), publish(store, 2)
    then = time.time() - 30 * 86_400
    os.utime(record_file(store, old), (then, then))
    assert [victim["key"] for victim in document("clean", "--yes", "--state", "expired", store=place)["victims"]] == [
        old
    ]
    assert [row["key"] for row in document("ls", store=place)["rows"]] == [young]
    assert document("clean", "--yes", "--all", store=place)["cleaned"]["evicted"] == 1


def test_verify_finds_repairs_and_then_finds_nothing(compiled_store: Path) -> None:
    assert document("verify", store=compiled_store)["findings"] == []
    store = make_store(compiled_store)
    key = next(iter(store.keys()))
    damage_record(store, key)
    stale = store.layout.temp / "gone"
    stale.touch()
    os.utime(stale, (time.time() - GRACE_S - 1,) * 2)
    found = document("verify", store=compiled_store, code=1)
    assert [finding["kind"] for finding in found["findings"]] == [
        "truncated",
        "stale temporary",
    ]
    repaired = document("verify", "--repair", store=compiled_store)
    assert all(finding["repaired"] for finding in repaired["findings"])
    assert document("verify", store=compiled_store) == {"checked": 3, "findings": []}


def test_sync_and_rebuild(compiled_store: Path) -> None:
    first = document("store", "sync", store=compiled_store)
    assert first["added"] == 4
    assert document("store", "sync", store=compiled_store)["added"] == 0
    assert document("store", "sync", "--rebuild", store=compiled_store)["added"] == 4


def test_deleting_the_mirror_loses_no_usage(compiled_store: Path) -> None:
    before = document("ls", store=compiled_store)
    (compiled_store / "mirror.duckdb").unlink()
    assert document("ls", store=compiled_store) == before
    assert sum(row["hits"] for row in before["rows"]) == 1


def test_doctor_lists_the_installation(compiled_store: Path) -> None:
    checks = {check["name"]: check for check in document("doctor", store=compiled_store)["checks"]}
    assert {"python", "nvrtc", "cuobjdump", "nvdisasm", "gpu", "store", "file system"} <= set(checks)
    assert checks["store"]["detail"] == str(compiled_store)


def test_doctor_times_hits_of_kernels_that_can_be_read_and_changes_nothing(
    compiled_store: Path, examine: Examine
) -> None:
    def of_hits() -> list[str]:
        checks = json.loads(examine("--json", store=compiled_store).stdout)["checks"]
        return [check["detail"] for check in checks if check["name"] == "disk hit"]

    store = make_store(compiled_store)
    keys = list(store.keys())
    (said,) = of_hits()
    assert f"every byte verified (median of {len(keys)} kernels, " in said
    damage_record(store, keys[0])
    (said,) = of_hits()
    assert f"(median of {len(keys) - 1} kernel" in said
    assert all(record_file(store, key).exists() for key in keys), "the doctor removes no damaged entry"
    for key in keys:
        record_file(store, key).unlink()
    assert of_hits() == []


def test_doctor_reports_an_unusable_store(tmp_path: Path, examine: Examine) -> None:
    (tmp_path / "file").touch()
    assert re.search("✗.*a store is a directory", examine(store=tmp_path / "file", code=1).stdout)


@pytest.mark.parametrize("verb", [
    "ls x", "stats", "clean", "verify", "store sync", "show 12", "stats --by time", "log --audit", "demand",
    "stats --by toolchain", "demand --promote", "log", "show 1 2", "show --output -", "explain 16 64 96", "pin 12",
])  # fmt: skip
def test_looking_at_a_mistyped_store_makes_none(place: Path, verb: str) -> None:
    done = run(*verb.split(), store=place)
    assert done.returncode == 2
    assert f"there is no store in {place}" in done.stderr
    assert not place.exists()


@pytest.mark.parametrize("verb", [
    "warm Qwen3-0.6B --dry-run --arch sm_90", "warm Qwen3-0.6B --dry-run --by shape",
    "tune 64 48 80 --dry-run --arch sm_90", "evaluate 64 48 80 --chip SG2262",
    "evaluate Qwen3-0.6B --chip SG2262 --m 1",
    "remote status file://{remote}", "remote verify --unsigned file://{remote}",
])  # fmt: skip
def test_what_needs_no_store_is_answered_without_one(tmp_path: Path, verb: str) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "file").write_text("not a store")
    done = run(*verb.format(remote=tmp_path / "remote").split(), store=tmp_path / "file")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^No store is used: .*a store is a directory", done.stderr, re.MULTILINE), done.stderr


def test_an_empty_name_of_a_store_is_refused(tmp_path: Path) -> None:
    """As a variable that is not set gives it."""
    done = run("--store", "", "compile", *SHAPE, cwd=tmp_path)
    assert done.returncode == 2
    assert "--store is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_store_may_be_the_current_folder(compiled_store: Path) -> None:
    assert run("--store", ".", "stats", cwd=compiled_store).returncode == 0


def test_no_verb_prints_help_and_every_verb_has_some(place: Path) -> None:
    done = run()
    assert done.returncode == 2
    verbs = re.findall(r"^  (\w+)  ", done.stderr, re.MULTILINE)
    assert {
        "compile",
        "ls",
        "show",
        "stats",
        "clean",
        "verify",
        "doctor",
        "dashboard",
    } <= set(verbs)
    for verb in verbs:
        helped = run(verb, "--help")
        assert helped.returncode == 0
        assert "Usage: " in helped.stdout


@pytest.mark.parametrize("sign", ["store", "store/store.json", "store/metadata/*/*.json"])
def test_ctrl_c_during_sample_leaves_a_sound_store(place: Path, sign: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cache_engine", "--store", str(place), "sample"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not any(place.parent.glob(sign)):
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # how far it gets beyond the sign is chance; every stored entry must be valid
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert not list(place.glob("temp/*"))
    document("compile", *SHAPE, store=place)  # a store cut short in its own making is made whole by the next to use it
    assert document("verify", store=place)["findings"] == []


@pytest.mark.parametrize("targets", [("sm_90",), pytest.param(ARCHITECTURES, marks=pytest.mark.soak)])
def test_sample_compiles_finds_and_asks_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, targets: tuple[str, ...]
) -> None:
    monkeypatch.setattr(warm, "ARCHITECTURES", targets)
    command, count = ["--store", str(place), "warm", "--sample", "--json"], 12 * len(targets)
    first, second = (json.loads(CliRunner().invoke(commands, command).stdout) for _ in range(2))
    assert (first["compiled"], first["found"], first["failed"], first["found_again"]) == (count, 0, [], count)
    assert (second["compiled"], second["found"], second["requests"]) == (0, count, first["requests"])
    asked = document("demand", "--since", "24h", store=place)
    assert (asked["launches"], len(asked["shares"])) == (2 * first["requests"], count)
    assert document("stats", store=place)["hits"]["memory"] >= 2 * first["requests"]
    by_arch = document("stats", "--by", "arch", store=place)["architectures"]
    assert {row["arch"]: row["entries"] for row in by_arch} == dict.fromkeys(targets, 12)
    families = {row["family"] for row in document("ls", "--limit", "100", store=place)["rows"]}
    assert families == {"tensor_core", "simt"}
    assert document("verify", store=place)["findings"] == []
    shutil.rmtree(place)
