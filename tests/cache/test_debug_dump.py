"""A failed compile reports everything, and a debug dump holds everything: real compilers, real processes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.cache import miss
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.cli import forked
from tests.cli.test_cli import document, run
from tests.helpers import code_of, needs_host_compiler, require_triton

COMPILERS = [pytest.param("nvrtc"), pytest.param("nvcc", marks=needs_host_compiler)]
SOURCES = {"nvrtc": "kernel.cu", "nvcc": "kernel.cu", "triton": "kernel.py"}
PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
ASKED = ("compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90")


def broken(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command line whose sources no compiler takes."""
    return forked.run(list(map(str, arguments)), cwd=None, timeout=120, module="tests.cli.broken")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_failed_compile_shows_log_source_flags_and_command(tmp_path: Path, compiler: str) -> None:
    place = ("--store", tmp_path / "store")
    done = broken(*place, *ASKED, "--compiler", compiler)
    assert done.returncode == 1
    assert done.stdout == ""
    found = re.search(r"^kernel\.cu\((\d+)\): error: ", done.stderr, re.MULTILINE)
    assert found
    assert f"\n> {found[1]} | broken;\n" in done.stderr
    assert "\nflags: -arch=sm_90 --std=c++17 " in done.stderr
    assert re.match(
        rf"error: \w+ rejected the source for sm_90: kernel\.cu\({found[1]}\)", done.stderr.splitlines()[-1]
    )
    error = json.loads(broken(*place, *ASKED, "--compiler", compiler, "--json").stdout)["error"]
    assert (error["kind"], error["level"]) == ("CompileError", "error")
    assert error["flags"][0] == "-arch=sm_90"
    assert error["excerpt"].endswith("| broken;")
    again = shlex.split(error["command"])
    assert again[0] == "gemm-cache"
    second = json.loads(broken(*place, *again[1:], "--json").stdout)["error"]
    assert {**second, "log": error["log"]} == error
    assert not list((tmp_path / "store").glob("metadata/*/*"))


def test_a_dump_has_no_secret_of_the_environment(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_ADMIN_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("GEMM_CACHE_MAX_ENTRIES", "77")
    cache.get_or_compile(PROBLEM, debug_dump=tmp_path / "dump")
    written = b"".join(path.read_bytes() for path in (tmp_path / "dump").iterdir())
    assert b"GEMM_CACHE_MAX_ENTRIES" in written
    assert b"correct-horse-battery" not in written


def test_the_command_says_everything_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--use_fast_math", "--fmad=false", "--ptxas-options=-dlcm=ca")
    with open_cache(tmp_path / "store", compiler_flags=flags) as cache:
        key = cache.get_or_compile(PROBLEM).key
        command = cache.select(PROBLEM).command
    variables, program, arguments = command.partition("gemm-cache ")
    environment = dict(part.split("=", 1) for part in shlex.split(variables))
    assert environment == {"GEMM_CACHE_COMPILER_FLAGS": " ".join(flags[1:])}
    assert program
    assert "--fast-math" in shlex.split(arguments)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert document(*shlex.split(arguments), store=tmp_path / "other")["key"] == key


@pytest.mark.parametrize("compiler", [*COMPILERS, "triton"])
def test_a_dump_holds_what_went_in_and_came_out_and_can_be_run_again(
    cache: Cache, tmp_path: Path, compiler: str
) -> None:
    if compiler == "triton":
        require_triton()
    problem = replace(PROBLEM, dtype=DType.TF32) if compiler == "triton" else PROBLEM
    folder = tmp_path / "deep" / "dump"
    if compiler == "nvrtc":  # the quickest: a dump compiles also what is stored
        cache.get_or_compile(problem, compiler=compiler)
    kernel = cache.get_or_compile(problem, compiler=compiler, debug_dump=folder)
    assert kernel.tier == "compiled"
    expected = set(miss.DUMP_FILES) - set(SOURCES.values()) | {SOURCES[compiler]}
    expected -= {miss.PREPROCESSED} if compiler != "nvcc" else set()
    assert {path.name for path in folder.iterdir()} == expected
    assert (folder / "kernel.cubin").read_bytes() == kernel.cubin
    for part in ("source", "ptx", "sass", "log"):
        name = {"source": SOURCES[compiler], "ptx": "kernel.ptx", "sass": "kernel.sass", "log": "compile.log"}[part]
        assert (folder / name).read_text() == cache.text(kernel.record, part)
    config = json.loads((folder / "config.json").read_text())
    assert config["key"] == kernel.key
    assert config["components"] == dict(kernel.record.components)
    assert json.loads((folder / "result.json").read_text())["resources"]["registers"] > 0
    if compiler == "nvcc":
        assert kernel.record.name in (folder / "kernel.ii").read_text()
    subprocess.run([sys.executable, folder / "reproduce.py"], check=True)
    assert code_of((folder / "reproduced.cubin").read_bytes()) == code_of(kernel.cubin)


@needs_host_compiler
def test_a_dump_of_a_failure_has_the_report_and_nothing_of_an_earlier_success(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    with open_cache(tmp_path / "store") as cache:
        cache.get_or_compile(PROBLEM, compiler="nvcc", debug_dump=folder)
    done = broken("--store", tmp_path / "store", *ASKED, "--compiler", "nvcc", "--output", folder)
    assert done.returncode == 1
    assert {path.name for path in folder.iterdir()} == {
        "kernel.cu", "kernel.ii", "compile.log", "config.json", "environment.json", "result.json", "reproduce.py",
    }  # fmt: skip
    error = json.loads((folder / "result.json").read_text())["error"]
    assert error["report"] in done.stderr
    assert "broken;" in (folder / "kernel.cu").read_text()
    assert (folder / "compile.log").read_text() in done.stderr
    again = subprocess.run([sys.executable, folder / "reproduce.py"], capture_output=True, text=True)
    assert again.returncode == 1
    assert "| broken;" in again.stderr


def test_a_dump_contains_only_listed_variables(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-secret")
    monkeypatch.setenv("GEMM_CACHE_TOKEN", "hunter2-secret")
    monkeypatch.setenv("GEMM_CACHE_DEFAULT_ARCH", "sm_80")
    cache.get_or_compile(PROBLEM, debug_dump=tmp_path / "dump")
    for path in (tmp_path / "dump").iterdir():
        assert b"hunter2" not in path.read_bytes()
    environment = json.loads((tmp_path / "dump" / "environment.json").read_text())
    assert environment["variables"]["GEMM_CACHE_DEFAULT_ARCH"] == "sm_80"
    assert environment["toolchain"]["compiler"] == "nvrtc"


def test_a_folder_that_cannot_be_written_is_wrong_usage(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write the debug dump in .*file: File exists"):
        cache.get_or_compile(PROBLEM, debug_dump=tmp_path / "file")


def test_spills_are_warned_of_when_compiled_when_found_and_when_shown(tmp_path: Path) -> None:
    """1024 threads have 64 registers each, and the sums of this config alone take as many."""
    config = "block_m=256,block_n=256,block_k=32,warps_m=4,warps_n=8,stages=2"
    store = tmp_path / "store"
    asked = ("compile", "4096", "4096", "4096", "--arch", "sm_90", "--config", config)
    for tier in ("compiled", "disk"):
        done = run(*asked, "--json", store=store)
        found = json.loads(done.stdout)
        assert found["tier"] == tier
        assert found["spill_bytes"] > 0
        (warning,) = found["warnings"]
        assert warning.startswith(f"{found['spill_bytes']} bytes of registers are spilled to local memory")
        assert done.stderr == f"warning: {warning}\n"
    assert json.loads(run("show", found["key"], "--json", store=store).stdout)["warnings"] == [warning]
    assert run("show", found["key"], store=store).stderr == f"warning: {warning}\n"


def test_a_flag_that_is_not_allowed_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_COMPILER_FLAGS", "--fmad=false -I/tmp")
    done = run(*ASKED, store=tmp_path / "store")
    assert done.returncode == 2
    assert done.stderr.startswith("error: compiler_flags has '-I/tmp', which is not allowed; use: --use_fast_math,")
    assert done.stderr.count("\n") == 1


def test_a_kernel_that_fits_is_not_warned_of(cache: Cache) -> None:
    kernel = cache.get_or_compile(PROBLEM, config=KernelConfig(32, 32, 16, 2, 1, 2))
    assert kernel.record.warnings == ()
