"""The command that compiles a kernel again makes the same key."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.reproduction import reproducing_command
from cache_engine.compilers import COMPILERS
from cache_engine.model.gemm import DType, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.settings import Settings
from tests.cli import forked
from tests.helpers import require_triton
from tests.pages.opening import a_record

SMALL = GemmProblem(8, 32, 32, dtype=DType.FP32, arch="sm_80")
CONFIG = KernelConfig(block_m=32, block_n=32, block_k=16, warps_m=2, warps_n=1, stages=2)


def run_again(command: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command prints, run as a shell runs it: variables, then words."""
    for name in [name for name in os.environ if name.startswith("GEMM_CACHE_")]:
        monkeypatch.delenv(name)
    words = shlex.split(command)
    start = words.index("gemm-cache")
    for variable in words[:start]:
        monkeypatch.setenv(*variable.split("=", 1))
    done = forked.run([*words[start + 1 :], "--json"], cwd=None, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_in_a_shell(command: str, **environment: str) -> Any:
    """What a command prints, run by a shell that knows nothing of this process's settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GEMM_CACHE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**inherited, "PATH": path, **environment}
    done = subprocess.run(["sh", "-c", f"{command} --json"], capture_output=True, check=True, env=variables)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("problem", "choice", "settings"),
    [
        pytest.param(
            GemmProblem(64, 96, 64, batch=3, dtype=DType.FP16, out_dtype=DType.FP32, layout=Layout.TN, arch="sm_90"),
            {},
            {},
            id="types and layout",
        ),
        pytest.param(
            GemmProblem(8, 48, 4096, dtype=DType.FP32, arch="sm_80", epilogue="bias+relu"),
            {},
            {},
            id="epilogue and split-k",
        ),
        pytest.param(
            GemmProblem(8, 32, 128, dtype="fp8_e5m2", arch="sm_89", scales="1x128,1x128,e8m0"), {}, {}, id="scales"
        ),
        pytest.param(GemmProblem(8, 32, 64, 3, arch="sm_80", mode="masked"), {}, {}, id="mode"),
        pytest.param(SMALL, {}, {"compiler_flags": ("--use_fast_math",)}, id="fast-math"),
        pytest.param(replace(SMALL, fast_math=True), {}, {}, id="fast-math of the problem"),
        pytest.param(replace(SMALL, fast_math=False), {}, {"compiler_flags": ("--use_fast_math",)}, id="no fast-math"),
        pytest.param(SMALL, {}, {"compiler_flags": ("--fmad=false", "--ftz=true")}, id="flags"),
        pytest.param(
            GemmProblem(8, 32, 32, dtype=DType.FP32, arch="sm_80", opt_level=1, specialisation=Specialisation.EXACT),
            {"config": CONFIG},
            {"compiler_flags": ("--fmad=false", "--use_fast_math")},
            id="level, specialisation, config, fast-math and flags",
        ),
        pytest.param(
            GemmProblem(16, 64, 64, dtype=DType.FP16, arch="sm_80"),
            {"family": "triton"},
            {},
            id="Triton",
        ),
    ],
)
def test_the_command_makes_the_same_key(
    tmp_path: Path, problem: GemmProblem, choice: dict[str, Any], settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if choice.get("family") == "triton":
        require_triton()
    with open_cache(tmp_path / "a store", **settings) as cache:
        kernel = cache.get_or_compile(problem, **choice)
        command = reproducing_command(kernel.record, cache.settings, cache.layout.root)
    document = run_again(command, monkeypatch)
    assert (document["key"], document["tier"]) == (kernel.key, "disk")


def test_the_command_switches_off_what_the_reader_has_on(tmp_path: Path) -> None:
    """A kernel compiled without fast-math and flags, shown where the environment asks for both."""
    with open_cache(tmp_path) as cache:
        kernel = cache.get_or_compile(SMALL)
    asked = {"GEMM_CACHE_COMPILER_FLAGS": "--use_fast_math --fmad=false"}
    command = reproducing_command(kernel.record, Settings.load(asked), tmp_path)
    document = run_in_a_shell(command, **asked)
    assert (document["key"], document["tier"]) == (kernel.key, "disk")


def test_the_command_of_a_record_of_another_version_names_its_flags() -> None:
    """Its compiler had other flags of its own, so that only what can be asked for is asked for."""
    record = msgspec.structs.replace(a_record(), compiler="nvrtc", components=(("flags", "--old -O2 --fmad=false"),))
    assert reproducing_command(record, Settings(), Path("s")).startswith("GEMM_CACHE_COMPILER_FLAGS=--fmad=false gemm-")


def test_the_command_of_a_hostile_record_is_one_command() -> None:
    record = msgspec.structs.replace(
        a_record(),
        arch="x; rm -rf ~ #",
        family="$(id)",
        compiler="`id`\n--force",
        components=(("flags", "$(id) `id`"),),
    )
    program, *arguments = shlex.split(reproducing_command(record, Settings(), Path("/a $(id)")))
    assert program == "gemm-cache"
    assert {"/a $(id)", "--arch=x; rm -rf ~ #", "--family=$(id)", "--compiler=`id`\n--force"} <= set(arguments)
    own = " ".join(COMPILERS["nvrtc"].flags)
    record = msgspec.structs.replace(a_record(), compiler="nvrtc", components=(("flags", f"{own} $(id)"),))
    variable, program, *_ = shlex.split(reproducing_command(record, Settings(), Path("s")))
    assert (variable, program) == ("GEMM_CACHE_COMPILER_FLAGS=$(id)", "gemm-cache")
