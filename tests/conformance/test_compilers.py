"""What every compiler promises, run by every compiler.

A compiler joins with a row of ``SUBJECTS``: a source with a kernel of a given name, one that does not compile and the
line of its mistake, and what says how to get the compiler where it is missing.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache as compiled_once
from importlib import metadata
from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers import COMPILERS, nvcc, nvrtc, triton
from cache_engine.compilers.base import ALLOWED, Compiled, Compiler, extra_flags
from cache_engine.compilers.diagnostics import diagnostics, warnings
from cache_engine.compilers.disassembly import resources, sass
from cache_engine.compilers.elf import code_of as elf_code
from cache_engine.compilers.elf import cubin_fault
from cache_engine.errors import CompileError, CompilerMissing, InvalidProblem, Level, UsageError
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.kernels.source import render
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.settings.extras import how_to_install
from cache_engine.upkeep.plan import Limits
from tests.helpers import code_of, missing_bytes, needs_host_compiler, require_triton

ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_120")
SMALL = KernelConfig(16, 64, 32, 1, 2, 2)
_EM_CUDA = 190  # ELF machine of CUDA code, as binutils names it


@dataclass(frozen=True)
class Subject:
    """A compiler, and what to give it."""

    compiler: Compiler
    source: Callable[[str], str]
    """The source of a matmul on tensor cores for a target."""
    name: str
    """What that kernel's name holds."""
    wrong: tuple[str, int]
    """A source that is refused, and the line of its mistake."""
    hide: Callable[[pytest.MonkeyPatch], Compiler]
    """Gives one of its kind that finds nothing installed."""
    how_to_get: str
    flag: str = "-arch=sm_90"
    """What its flags say of sm_90."""
    takes_flags: bool = True
    """Whether the settings can give it more."""


def _cuda(arch: str) -> str:
    problem = GemmProblem(16, 64, 64, arch=arch)
    family, config = choose(problem, config=SMALL)
    return render(family.template, family.constants(problem, config))


def _triton(arch: str) -> str:
    problem = GemmProblem(64, 64, 64, arch=arch)
    family = FAMILIES["triton"]
    return render(family.template, family.constants(problem, KernelConfig(64, 64, 32, 4, 1, 3)))


def _hide_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setattr(nvrtc, "_libraries", lambda version: iter(()))
    return nvrtc.Nvrtc()


def _hide_nvcc(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(nvcc, "package_files", lambda pattern: iter(()))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return nvcc.Nvcc()


def _hide_triton(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    return triton.Triton()


_WRONG = ('extern "C" __global__ void k(float* a) {\n    int unused;\n    a[0] = undeclared_name;\n}\n', 3)
SUBJECTS = {
    "nvrtc": Subject(
        COMPILERS["nvrtc"], _cuda, "gemm_tensor_core", _WRONG, _hide_nvrtc, "pip install nvidia-cuda-nvrtc"
    ),
    "nvcc": Subject(
        COMPILERS["nvcc"], _cuda, "gemm_tensor_core", _WRONG, _hide_nvcc, re.escape(how_to_install("nvcc"))
    ),
    "triton": Subject(
        COMPILERS["triton"],
        _triton,
        "gemm_triton",
        ("import undeclared_name\n", 1),
        _hide_triton,
        re.escape(how_to_install("triton")),
        flag="cuda:90",
        takes_flags=False,
    ),
}


NEEDS = {"nvcc": needs_host_compiler}


@compiled_once
def _compiled(subject: Subject, arch: str) -> Compiled:
    """Its source for a target, compiled by this process alone and once."""
    return subject.compiler.compile(subject.source(arch), arch)


@pytest.fixture(params=[pytest.param(name, marks=NEEDS.get(name, ())) for name in SUBJECTS])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "triton":
        require_triton()
    return SUBJECTS[request.param]


def test_every_compiler_is_held_to_this() -> None:
    assert set(SUBJECTS) == set(COMPILERS)
    assert all(subject.compiler.name == name for name, subject in SUBJECTS.items())


@pytest.mark.parametrize("arch", ARCHS)
def test_the_code_is_a_whole_cubin_of_the_target_with_the_kernel_in_it(subject: Subject, arch: str) -> None:
    """The driver loads what is whole, is for CUDA, and names a chip of the same major version."""
    compiled = _compiled(subject, arch)
    number = int("".join(filter(str.isdigit, arch)))
    machine, flags = struct.unpack_from("<H", compiled.cubin, 18)[0], struct.unpack_from("<I", compiled.cubin, 48)[0]
    assert missing_bytes(compiled.cubin) == 0
    assert machine == _EM_CUDA
    assert number in (flags >> 8 & 0xFFFF, flags & 0xFF)  # where ptxas 13 has the target, and where earlier ones had it
    assert cubin_fault(compiled.cubin, arch) is None
    assert "not for sm_75" in (cubin_fault(compiled.cubin, "sm_75") or "")
    assert subject.name.encode() in compiled.cubin
    text = sass(compiled.cubin)
    # Triton asks for the one chip's instructions; and its older ptxas, for 8.x, marks the target in a way of its own.
    assert re.search(rf"\.target\t{arch}a?\n|EF_CUDA_SM{number} ", text)
    assert "MMA" in text
    assert f".target {arch}".encode() in compiled.ptx
    assert b".visible .entry" in compiled.ptx
    used = resources(compiled.cubin, compiled.log, 4096)
    assert 0 < used.registers <= 255
    assert used.shared_bytes >= 4096
    assert used.spill_bytes == 0
    assert warnings(compiled.log.decode(), used) == ()


def test_the_same_source_gives_the_same_code(subject: Subject) -> None:
    again = subject.compiler.compile(subject.source("sm_90"), "sm_90")
    assert code_of(_compiled(subject, "sm_90").cubin) == code_of(again.cubin)


def test_threads_compile_side_by_side(subject: Subject) -> None:
    with ThreadPoolExecutor(3) as pool:
        archs = ("sm_80", "sm_90", "sm_100")
        together = list(pool.map(lambda arch: subject.compiler.compile(subject.source(arch), arch).cubin, archs))
    assert code_of(together[1]) == code_of(_compiled(subject, archs[1]).cubin)
    assert len({str(code_of(cubin)) for cubin in together}) == len(archs)


def test_a_rejected_source_is_reported_with_log_line_source_and_flags(subject: Subject) -> None:
    source, line = subject.wrong
    with pytest.raises(CompileError, match=r"(?s)rejected the source for sm_90: .*undeclared_name") as caught:
        subject.compiler.compile(source, "sm_90")
    error = caught.value
    assert error.source == source
    assert subject.flag in error.flags
    assert "undeclared_name" in error.log
    told = [(each.level, each.line) for each in diagnostics(error.log) if each.level is not Level.WARNING]
    assert told == ([(Level.ERROR, line)] if subject.compiler.takes == ".cu" else [])


def test_an_unknown_target_is_refused(subject: Subject) -> None:
    with pytest.raises((CompileError, InvalidProblem), match="sm_1"):
        subject.compiler.compile(subject.source("sm_90"), "sm_1")


def test_the_fingerprint_is_the_same_each_time_and_holds_no_path(subject: Subject) -> None:
    seen = subject.compiler.fingerprint()
    assert seen.compiler == subject.compiler.name
    assert seen.version[0].isdigit()
    assert "/" not in seen.build
    assert type(subject.compiler)().fingerprint() == seen


def test_more_flags_are_another_key_and_other_code(subject: Subject, cache: Cache, tmp_path: Path) -> None:
    if not subject.takes_flags:
        with pytest.raises(UsageError, match="accepts no compiler_flags"):
            subject.compiler.with_flags(("--fmad=false",))
        return
    problem = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
    plain = cache.get_or_compile(problem, compiler=subject.compiler.name)
    flag = "--ptxas-options=-dlcm=cv"
    with open_cache(tmp_path / "store", durability="fast", compiler_flags=(flag,)) as flagged:
        other = flagged.get_or_compile(problem, compiler=subject.compiler.name)
    assert (plain.tier, other.tier) == ("compiled", "compiled")
    assert plain.key != other.key
    assert dict(other.record.components)["flags"] == " ".join((*subject.compiler.flags, flag))
    assert code_of(plain.cubin) != code_of(other.cubin)


def test_every_flag_that_may_be_given_is_one_it_takes(subject: Subject) -> None:
    """So the list of allowed flags cannot hold one that only another compiler knows."""
    values = {"--diag-suppress": "177", "--ptxas-options": "-dlcm=cg"}
    given = [name if pattern is None else f"{name}={values.get(name, 'false')}" for name, pattern in ALLOWED.items()]
    more = ("-dlcm=ca", "--allow-expensive-optimizations=false", "--warn-on-spills")
    given += [f"--ptxas-options={option}" for option in more]
    if not subject.takes_flags:
        return
    source = 'extern "C" __global__ void copy(float* to, const float* from) { to[threadIdx.x] = -from[threadIdx.x]; }'
    plain = subject.compiler.compile(source, "sm_90")
    assert (
        subject.compiler.with_flags(extra_flags(["--use_fast_math", *given])).compile(source, "sm_90").cubin
        != plain.cubin
    )
    # A flag that has an effect on later compiles would be in no key.
    assert subject.compiler.compile(source, "sm_90").cubin == plain.cubin


@pytest.mark.parametrize("levels", [(0, 3), pytest.param(OPT_LEVELS, marks=pytest.mark.soak)], ids=["two", "all"])
def test_every_level_of_optimisation_is_another_key_and_the_lowest_is_other_code(
    subject: Subject, cache: Cache, levels: tuple[int, ...]
) -> None:
    """The default is the highest. Levels may make the same code; the lowest and the highest do not."""
    problem = GemmProblem(64, 64, 64, arch="sm_90")
    asked = {level: replace(problem, opt_level=level) for level in OPT_LEVELS}
    keys = {cache.selector.select(each, None, subject.compiler.name, None).key for each in asked.values()}
    assert len(keys) == len(OPT_LEVELS)
    kernels = {level: cache.get_or_compile(asked[level], compiler=subject.compiler.name) for level in levels}
    assert {kernel.key for kernel in kernels.values()} <= keys
    assert {kernel.tier for kernel in kernels.values()} == {"compiled"}
    for level, kernel in kernels.items():
        assert kernel.record.problem.opt_level == level
        assert f"-O{level}" in dict(kernel.record.components)["flags"]
        assert missing_bytes(kernel.cubin) == 0
    assert code_of(kernels[0].cubin) != code_of(kernels[3].cubin)
    assert cache.get_or_compile(problem, compiler=subject.compiler.name).key == kernels[3].key
    assert subject.compiler.at_level(3).flags == subject.compiler.flags
    assert cache.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()


@needs_host_compiler
def test_each_compiler_has_keys_of_its_own(cache: Cache) -> None:
    problem = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
    kernels = [cache.get_or_compile(problem, compiler=name) for name in ("nvrtc", "nvcc")]
    assert [kernel.record.compiler for kernel in kernels] == ["nvrtc", "nvcc"]
    assert len({kernel.key for kernel in kernels}) == 2
    assert all(kernel.tier == "compiled" for kernel in kernels)
    assert cache.admin.verify() == []


def test_a_missing_compiler_says_how_to_get_it(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompilerMissing, match=subject.how_to_get):
        subject.hide(monkeypatch).fingerprint()


@pytest.mark.parametrize(
    "flag",
    [
        "-I/tmp", "--include-path=/tmp", "-include", "-arch=sm_80", "--gpu-architecture=sm_80", "-DN=3", "@file", "",
        "--maxrregcount=128", "--fmad", "--fmad=maybe", "--restrict", "--restrict=true", "--pre-include=x",
        "--ptxas-options=-arch=sm_80", "--ptxas-options=-O2",
        "--ptxas-options=-o,file", "--options-file=x", "--ptxas-options=@x", "--fmad=true\n-I/tmp", "; rm -rf /",
    ],
)  # fmt: skip
def test_a_flag_whose_effect_cannot_be_seen_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="compiler_flags has"):
        extra_flags([flag])


def test_fast_math_is_off_unless_asked_for() -> None:
    assert extra_flags(()) == ()
    assert extra_flags(("--fmad=true", "--use_fast_math")) == ("--use_fast_math", "--fmad=true")
    assert not any("fast" in flag for compiler in COMPILERS.values() for flag in compiler.flags)


@pytest.mark.parametrize(
    "arch", ["sm_90a", *(pytest.param(arch, marks=pytest.mark.soak) for arch in ("sm_80", "sm_120"))]
)
def test_with_lines_it_makes_the_same_machine_code(subject: Subject, arch: str) -> None:
    plain = _compiled(subject, arch)
    with_lines = subject.compiler.with_lines().compile(subject.source(arch), arch)
    assert elf_code(plain.cubin) == elf_code(with_lines.cubin)
    assert any(elf_code(plain.cubin).values())
    assert (b".loc" in plain.ptx, b".loc" in with_lines.ptx) == (False, True)
    assert len(plain.cubin) < len(with_lines.cubin)
    irs = ["ttir", "ttgir", "llir"] if subject.compiler.name == "triton" else []
    assert [name for name, _ in with_lines.irs] == irs
    assert plain.irs == ()
