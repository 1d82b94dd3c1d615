"""CUDA 12 and 13: which one compiles, where its NVRTC is found, and what is said where none fits.

Another installation is a folder in front of all others on Python's path, as ``pip install --target`` makes it. A driver
is a library with its name, whose version the environment gives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.compilers import COMPILERS, nvrtc
from cache_engine.compilers.base import Cuda
from cache_engine.compilers.contents import cuda_for, package_files
from cache_engine.compilers.disassembly import sass
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import CompilerMissing, ToolMissing
from cache_engine.settings.extras import how_to_install
from tests.helpers import needs_host_compiler

EMPTY = 'extern "C" __global__ void k() {}'
GET_12 = "run: pip install 'nvidia-cuda-nvrtc-cu12>=12.9'"
INSTALL = how_to_install("cuda12")


@pytest.mark.parametrize(
    ("asked", "driver", "arch", "versions", "why"),
    [
        ("auto", None, "sm_90", (13, 12), ""),
        ("auto", (13, 0), "sm_90", (13, 12), ""),
        ("auto", (14, 1), "sm_90", (13, 12), ""),
        ("auto", (12, 4), "sm_90", (12,), "the driver is for CUDA 12.4"),
        ("auto", (11, 8), "sm_90", (), "the driver is for CUDA 11.8"),
        ("12", None, "sm_90", (12,), "the setting cuda is 12"),
        ("13", (12, 4), "sm_90", (13,), "the setting cuda is 13"),
        ("auto", (13, 0), "sm_70", (12,), "only CUDA 12 compiles for sm_70"),
        ("13", None, "sm_70", (), "the setting cuda is 13 and only CUDA 12 compiles for sm_70"),
        ("auto", (12, 4), "sm_110a", (), "the driver is for CUDA 12.4 and only CUDA 13 compiles for sm_110a"),
    ],
)
def test_what_is_asked_for_comes_before_the_driver_and_the_target_limits_both(
    asked: str, driver: tuple[int, int] | None, arch: str, versions: tuple[int, ...], why: str
) -> None:
    assert cuda_for(asked, driver, arch) == Cuda(versions, why)


def _run(
    *arguments: str, driver: Path | None = None, packages: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    if driver is not None:
        environment["LD_LIBRARY_PATH"] = str(driver)
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, errors="replace"
    )


# Prints the version and build of what compiles a kernel.
_COMPILE = """
import sys
from cache_engine import GemmProblem, open_cache
with open_cache(sys.argv[1], durability="fast") as cache:
    record = cache.get_or_compile(GemmProblem(64, 48, 80, dtype="fp32", arch=sys.argv[2])).record
    print(record.compiler_version, dict(record.components)["compiler_build"])
"""


def _compiled(store: Path, arch: str, **how: object) -> tuple[str, str]:
    """The version and build of what compiles a kernel."""
    done = _run("-c", _COMPILE, str(store), arch, **how)  # type: ignore[arg-type]
    version, _, build = done.stdout.strip().partition(" ")
    assert done.returncode == 0, done.stderr
    return version, build


@needs_host_compiler
@pytest.mark.parametrize(
    ("version", "asked", "made_by"), [("12040", "", "12.9"), ("13000", "", "13."), ("12040", "13", "13.")]
)
def test_the_driver_says_which_cuda_compiles_unless_the_setting_does(
    version: str, asked: str, made_by: str, driver: Path, tmp_path: Path
) -> None:
    version, _ = _compiled(tmp_path, "sm_90", driver=driver, DRIVER=version, GEMM_CACHE_CUDA=asked)
    assert version.startswith(made_by)


# Prints what doctor says of NVRTC and of CuPy.
_DOCTOR = """
import json, msgspec
from cache_engine.cli.doctor import _compilers, _cupy
from cache_engine.settings import Settings
print(json.dumps(msgspec.to_builtins([next(_compilers(Settings.load())), _cupy()])))
"""


def _doctor(**how: object) -> list[dict[str, str]]:
    done = _run("-c", _DOCTOR, **how)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@needs_host_compiler
@pytest.mark.parametrize(
    ("version", "asked", "nvrtc_says", "cupy_says"),
    [
        ("13000", "", "ok: 13.", "ok: "),
        ("12040", "", "ok: 12.9, build ", f"cupy-cuda13x && {INSTALL}"),
        ("12040", "13", "problem: 13", "but the driver is for CUDA 12.4; run: pip uninstall --yes cupy-cuda13x"),
        ("11080", "", "problem: no NVRTC fits, as the driver is for CUDA 11.8; set GEMM_CACHE_CUDA", "problem: "),
    ],
)
def test_doctor_says_what_does_not_fit_the_driver_and_the_command_that_mends_it(
    version: str, asked: str, nvrtc_says: str, cupy_says: str, driver: Path
) -> None:
    said = [
        f"{check['status']}: {check['detail']}"
        for check in _doctor(driver=driver, DRIVER=version, GEMM_CACHE_CUDA=asked)
    ]
    assert said[0].startswith(nvrtc_says)
    assert asked != "13" or said[0].endswith("loads nothing that it compiles; run: export GEMM_CACHE_CUDA=12")
    assert cupy_says in said[1]


def test_doctor_says_how_to_get_rid_of_one_of_two_cupys(tmp_path: Path) -> None:
    (tmp_path / "cupy_cuda12x-14.2.0.dist-info").mkdir()
    (tmp_path / "cupy_cuda12x-14.2.0.dist-info" / "METADATA").write_text("Name: cupy-cuda12x\nVersion: 14.2.0\n")
    _, cupy = _doctor(packages=tmp_path)
    assert cupy["status"] == "problem"
    assert f"run: pip uninstall --yes cupy-cuda13x cupy-cuda12x && {how_to_install('gpu')}" in cupy["detail"]


@pytest.fixture(scope="module")
def without_rpath(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation whose NVRTC does not know that its companion is next to it, as that of CUDA 13.0's package."""
    folder = tmp_path_factory.mktemp("no-rpath")
    _without_rpath(folder)
    return folder


def _without_rpath(folder: Path) -> Path:
    libraries = _copied(folder)
    image = (libraries / "libnvrtc.so.13").read_bytes()
    assert image.count(b"\0$ORIGIN\0") == 1
    (libraries / "libnvrtc.so.13").write_bytes(image.replace(b"\0$ORIGIN\0", b"\0/NoPath\0"))
    return libraries


def _copied(folder: Path) -> Path:
    """NVRTC in another folder of packages; returns that of its libraries."""
    (found,) = package_files("lib/libnvrtc.so.*")
    libraries = folder / "nvidia" / "cu13" / "lib"
    libraries.mkdir(parents=True)
    for path in found.parent.glob("libnvrtc*.so*"):
        shutil.copyfile(path, libraries / path.name)
    return libraries


def test_nvrtc_finds_a_companion_that_its_own_package_does_not(without_rpath: Path, tmp_path: Path) -> None:
    """PyTorch's wheels for CUDA 13.0 pin such a build."""
    _, build = _compiled(tmp_path, "sm_90", packages=without_rpath)
    assert build != COMPILERS["nvrtc"].fingerprint().build


@pytest.mark.parametrize(
    "fault",
    [
        "no companion",
        "damaged companion",
        "damaged library",
        pytest.param("other companion", marks=pytest.mark.soak),
        pytest.param("companion of another name", marks=pytest.mark.soak),
    ],
)
def test_a_fault_of_the_installation_is_said_once_with_exit_code_3(fault: str, tmp_path: Path) -> None:
    """Not once for each kernel."""
    libraries = tmp_path / "nvidia" / "cu13" / "lib"
    if fault == "other companion":
        (companion,) = _copied(tmp_path).glob("libnvrtc-builtins.so.*")
        companion.rename(libraries / "libnvrtc-builtins.so.13.99")
    elif fault == "companion of another name":
        (companion,) = _without_rpath(tmp_path).glob("libnvrtc-builtins.so.*")
        name = f"\0{companion.name}\0".encode()
        companion.write_bytes(companion.read_bytes().replace(name, name.swapcase()))
    else:
        libraries.mkdir(parents=True)
        (libraries / "libnvrtc.so.13").write_bytes(b"\x7fELF and no more")
        if fault == "damaged companion":
            (libraries / "libnvrtc-builtins.so.13.5").write_bytes(b"\x7fELF and no more")
        elif fault == "damaged library":
            (companion,) = package_files("lib/libnvrtc-builtins.so.*")
            shutil.copyfile(companion, libraries / companion.name)
    (tmp_path / "shapes.csv").write_text("m,n,k\n16,64,32\n16,72,32\n16,80,32\n")
    command = ("-m", "cache_engine", "--store", str(tmp_path / "store"), "warm", str(tmp_path / "shapes.csv"))
    done = _run(*command, "--arch", "sm_90", packages=tmp_path)
    assert done.returncode == 3, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "pip install" in line)
    assert line.endswith("run: pip install --force-reinstall --no-deps nvidia-cuda-nvrtc")
    check, _ = _doctor(packages=tmp_path)
    assert (check["status"], check["detail"]) == ("problem", line.removeprefix("error: "))


# Prints what the engine says compiles, and what the PTX says compiled it, after another NVRTC has compiled.
_BESIDE_ANOTHER = """
import ctypes, hashlib, os, re, sys
from pathlib import Path
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Cuda
if sys.argv[2:]:
    other = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    program = ctypes.c_void_p()
    assert other.nvrtcCreateProgram(ctypes.byref(program), sys.argv[3].encode(), b"k.cu", 0, None, None) == 0
    assert other.nvrtcCompileProgram(program, 0, None) == 0
compiler = COMPILERS["nvrtc"].of_cuda(Cuda((int(sys.argv[1]),)))
compiled = compiler.compile('extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }', "sm_90")
print(compiler.fingerprint(), re.search(rb"release (\\d+[.]\\d+)", compiled.ptx)[1].decode(),
      hashlib.sha256(compiled.cubin).hexdigest())
"""


@pytest.mark.parametrize(("ours", "other"), [(13, "cuda_nvrtc/lib/libnvrtc.so.12"), (12, "cu13/lib/libnvrtc.so.13")])
def test_the_key_names_the_nvrtc_that_compiles_where_another_was_loaded_before(ours: int, other: str) -> None:
    """As by PyTorch or CuPy, for the whole process."""
    (path,) = package_files(Path(other).name, str(Path(other).parent))
    alone, beside = (_run("-c", _BESIDE_ANOTHER, str(ours), *more) for more in ((), (str(path), EMPTY)))
    assert alone.returncode == beside.returncode == 0, beside.stderr
    assert alone.stdout == beside.stdout
    version = COMPILERS["nvrtc"].of_cuda(Cuda((ours,))).fingerprint().version
    assert f") {version} " in beside.stdout


def test_another_build_of_the_same_version_that_was_loaded_before_is_not_mistaken_for_ours(without_rpath: Path) -> None:
    """Loaded alone it does no harm; once it has compiled, the companion of both is the one it loaded."""
    library = str(without_rpath / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13")
    loaded = re.sub("    program.*== 0\n", "", _BESIDE_ANOTHER, flags=re.DOTALL)
    assert _run("-c", loaded, "13", library).stdout == _run("-c", _BESIDE_ANOTHER, "13").stdout
    companion = next(Path(library).parent.glob("libnvrtc-builtins.so.*"))
    compiled = loaded.replace("other = ", f"ctypes.CDLL({str(companion)!r}); other = ")
    done = _run("-c", compiled, "13", library)
    assert f"but {companion} was loaded; remove one of the two" in done.stderr


@pytest.mark.parametrize("place", ["CUDA_HOME", "/usr/local", "the system"])
def test_nvrtc_of_a_toolkit_or_the_system_is_found_where_there_is_no_package(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = COMPILERS["nvrtc"].of_cuda(Cuda((12,))).fingerprint()
    (library,) = package_files("lib/libnvrtc.so.12", "cuda_nvrtc")
    folder = tmp_path / "cuda-12.9" / "lib64"
    folder.mkdir(parents=True)
    for path in (library, next(library.parent.glob("libnvrtc-builtins.so.12.*"))):
        os.link(path, folder / path.name) if path.stat().st_dev == folder.stat().st_dev else shutil.copy(path, folder)
    code = (
        "from pathlib import Path\nfrom cache_engine.compilers import COMPILERS, contents, nvrtc\n"
        "from cache_engine.compilers.base import Cuda\nnvrtc.package_files = lambda *_: iter(())\n"
        f"contents._LOCAL = Path({str(tmp_path if place == '/usr/local' else tmp_path / 'none')!r})\n"
        "compiler = COMPILERS['nvrtc'].of_cuda(Cuda((12,)))\n"
        f"compiler.compile({EMPTY!r}, 'sm_90')\n"
        "print(compiler.fingerprint(), compiler._installation().library)\n"
    )
    home, loaded = (str(folder.parent) if place == name else "" for name in ("CUDA_HOME", "the system"))
    done = _run("-c", code, CUDA_HOME=home, LD_LIBRARY_PATH=loaded and str(folder))
    assert done.stdout == f"{here} {folder / library.name}\n", done.stderr


def test_an_nvrtc_before_12_9_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "package_files", lambda *_: iter(()))
    # Under its plain name the loader gives one that another test has loaded.
    monkeypatch.setattr(nvrtc, "_path_of", lambda _: tmp_path / "lib64" / "libnvrtc.so.12")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "lib64").mkdir()
    for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.4", "libnvrtc-builtins.so.12.4.127"):
        (tmp_path / "lib64" / name).touch()
    with pytest.raises(CompilerMissing, match=r"libnvrtc.so.12 is of CUDA 12.4, and 12.9 or later is needed; run: pip"):
        Nvrtc(cuda=Cuda((12,))).fingerprint()


def test_sm_70_is_compiled_by_cuda_12_alone(tmp_path: Path) -> None:
    assert _compiled(tmp_path, "sm_70")[0] == "12.9"
    command = ("-m", "cache_engine", "--store", str(tmp_path / "new"), "compile", "64", "48", "80")
    done = _run(*command, "--dtype", "fp32", "--arch", "sm_70", GEMM_CACHE_CUDA="13")
    assert done.returncode == 3
    assert "no NVRTC fits, as the setting cuda is 13 and only CUDA 12 compiles for sm_70" in done.stderr


def test_without_cuda_12_sm_70_says_how_to_get_it_and_other_targets_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one target lacks its compiler is not taken for a compiler that is missing."""
    from cache_engine import GemmProblem, open_cache

    really = nvrtc._libraries
    monkeypatch.setattr(nvrtc, "_libraries", lambda version: really(version) if version == 13 else iter(()))
    with open_cache(tmp_path, durability="fast") as cache:
        for m in (8, 300):
            with pytest.raises(CompilerMissing) as refused:
                cache.get_or_compile(GemmProblem(m, 8, 8, dtype="fp32", arch="sm_70"))
            assert str(refused.value) == (
                f"NVRTC of CUDA 12 is not installed, and only CUDA 12 compiles for sm_70; {GET_12}"
            )
            assert cache.get_or_compile(GemmProblem(m, 8, 8, dtype="fp32", arch="sm_75")).record.arch == "sm_75"


def test_nvdisasm_that_no_longer_reads_sm_70_says_which_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = COMPILERS["nvrtc"].of_cuda(Cuda((12,))).compile(EMPTY, "sm_70")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"use CUDA toolkit 13\.0 or earlier; set CUDA_HOME to such a toolkit"):
        sass(compiled.cubin)
    (tmp_path / "nvdisasm").write_text("#!/bin/sh\necho read by an older one\n")
    (tmp_path / "nvdisasm").chmod(0o700)
    assert sass(compiled.cubin) == "read by an older one\n"
