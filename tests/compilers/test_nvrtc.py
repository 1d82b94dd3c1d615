"""NVRTC: real code for every target, on a machine without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cache_engine.compilers import COMPILERS, nvrtc
from cache_engine.compilers.contents import cuda_for, find_tool, package_files
from cache_engine.compilers.disassembly import resources, sass
from cache_engine.compilers.elf import cubin_fault
from cache_engine.errors import CompilerMissing, ToolMissing
from cache_engine.kernels.select import choose
from cache_engine.kernels.source import render
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig
from tests.helpers import patch_in_place

NVRTC = COMPILERS["nvrtc"]


def _source(problem: GemmProblem, config: KernelConfig | None = None) -> str:
    family, chosen = choose(problem, config=config)
    return render(family.template, family.constants(problem, chosen))


def _targets(daily: Mapping[int, str]) -> list[Any]:
    """Daily, one target of each major version is compiled for; in the long run all are."""
    return [name if name in daily.values() else pytest.param(name, marks=pytest.mark.soak) for name in ARCHITECTURES]


@pytest.mark.parametrize("arch", _targets({target.major: name for name, target in reversed(ARCHITECTURES.items())}))
def test_simt_compiles_for_every_target(arch: str) -> None:
    compiler = NVRTC.of_cuda(cuda_for("auto", None, arch))
    compiled = compiler.compile(_source(GemmProblem(64, 64, 64, dtype=DType.FP32, arch=arch)), arch)
    assert f".target {arch}".encode() in compiled.ptx
    assert cubin_fault(compiled.cubin, arch) is None
    if arch == "sm_70":
        return  # the nvdisasm of CUDA 13 does not read it
    text = sass(compiled.cubin)
    # The machine code of a family target is that of its first chip.
    assert f".target\t{arch.removesuffix('f')}\n" in text
    assert "FFMA" in text


@pytest.mark.parametrize(
    "arch",
    [one for one in _targets({target.major: name for name, target in ARCHITECTURES.items()}) if "sm_7" not in str(one)],
)
def test_tensor_core_compiles_to_tensor_core_instructions_on_every_target_that_has_them(arch: str) -> None:
    compiled = NVRTC.compile(_source(GemmProblem(16, 64, 64, arch=arch), KernelConfig(16, 64, 32, 1, 2, 2)), arch)
    text = sass(compiled.cubin)
    assert "HMMA.16816.F32.BF16" in text
    assert "LDSM" in text
    assert "LDGSTS" in text


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param(dtype, layout, marks=() if (i + j) % len(Layout) == 0 else pytest.mark.soak)
        for i, dtype in enumerate(INPUT_DTYPES)
        for j, layout in enumerate(Layout)
    ],
)
def test_every_dtype_and_layout_compiles_without_a_warning(dtype: DType, layout: Layout) -> None:
    compiled = NVRTC.compile(_source(GemmProblem(100, 52, 36, dtype=dtype, layout=layout, arch="sm_90")), "sm_90")
    expected = {
        DType.FP16: "HMMA.16816.F32",
        DType.BF16: "HMMA.16816.F32.BF16",
        DType.TF32: "HMMA.1688.F32.TF32",
        DType.FP32: "FFMA",
        DType.FP64: "DFMA",
        # mma.sync of fp8 is of 8.9 and 12.x; ptxas makes it of fp16 for what came between.
        DType.FP8_E4M3: "HMMA.16816.F32",
        DType.FP8_E5M2: "HMMA.16816.F32",
        DType.INT8: "IMMA.16832.S8.S8",
    }
    assert expected[dtype] in sass(compiled.cubin)
    assert b"warning" not in compiled.log


def test_resources_are_read_from_the_compiled_code() -> None:
    """A kernel that keeps a large array in registers it does not have must show its spills."""
    plain = NVRTC.compile('extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }', "sm_90")
    used = resources(plain.cubin, plain.log, 4096)
    assert 0 < used.registers < 32
    assert (used.shared_bytes, used.stack_bytes, used.spill_bytes) == (4096, 0, 0)
    hungry = NVRTC.compile(
        'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* a) {\n'
        "  float held[64];\n"
        "#pragma unroll\n  for (int i = 0; i < 64; ++i) held[i] = a[i * 1024 + threadIdx.x];\n"
        "  __syncthreads();\n"
        "#pragma unroll\n  for (int i = 0; i < 64; ++i) a[(63 - i) * 1024 + threadIdx.x] = held[i] * held[63 - i];\n}",
        "sm_90",
    )
    used = resources(hungry.cubin, hungry.log, 0)
    assert used.registers <= 32
    assert used.stack_bytes > 0
    assert used.spill_bytes > 0


def test_the_fingerprint_needs_no_library_loaded() -> None:
    """A hit must not pay for the compiler."""
    code = (
        "import sys; from cache_engine.compilers import COMPILERS; print(COMPILERS['nvrtc'].fingerprint());"
        "assert 'libnvrtc' not in open('/proc/self/maps').read()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(NVRTC.fingerprint()) == done.stdout.strip()


def test_a_library_patched_in_place_is_another_fingerprint(copied: Path) -> None:
    """Its build ID, its size and its time of modification stay what they were."""
    before = nvrtc.Nvrtc()
    assert before.fingerprint() == NVRTC.fingerprint()
    patch_in_place(copied)
    assert nvrtc.Nvrtc().fingerprint().build != before.fingerprint().build
    with pytest.raises(CompilerMissing, match="NVRTC was replaced while this process ran; restart the process"):
        before.load()


def test_a_library_replaced_after_another_has_loaded_it_is_refused(tmp_path: Path, copied: Path) -> None:
    """As by CuPy before the first key: the system hands out the old one, and the key names the new one."""
    ctypes.CDLL(str(copied))
    shutil.copyfile(copied, tmp_path / "new")
    (tmp_path / "new").rename(copied)
    with pytest.raises(
        CompilerMissing, match="NVRTC was replaced after this process had loaded it; restart the process"
    ):
        nvrtc.Nvrtc().load()


def test_a_new_hard_link_to_the_library_changes_nothing(tmp_path: Path, copied: Path) -> None:
    """It changes the time that a change in place cannot hide."""
    compiler = nvrtc.Nvrtc()
    before = compiler.fingerprint()
    (tmp_path / "link").hardlink_to(copied)
    compiler.load()
    assert nvrtc.Nvrtc().fingerprint() == before


@pytest.mark.usefixtures("copied")
def test_a_companion_that_another_has_loaded_is_refused(tmp_path: Path) -> None:
    """The system hands out the one that is there, whichever library asks for it."""
    with pytest.raises(CompilerMissing, match=f"the key names {tmp_path}.* was loaded; remove one of the two"):
        nvrtc.Nvrtc().compile('extern "C" __global__ void k() {}', "sm_90")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NVRTC in another place, once this process has the real one's companion and so will never load the copy's."""
    NVRTC.compile('extern "C" __global__ void k() {}', "sm_90")
    (found,) = package_files("lib/libnvrtc.so.*")
    for path in found.parent.glob("libnvrtc*.so*"):
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.setattr(nvrtc, "package_files", lambda *_: iter([tmp_path / found.name]))
    return tmp_path / found.name


@pytest.mark.usefixtures("copied")
def test_a_compiler_replaced_under_a_running_process_is_refused(tmp_path: Path) -> None:
    """Its kernels would be stored under the key of the previous one."""
    compiler = nvrtc.Nvrtc()
    assert compiler.fingerprint() == NVRTC.fingerprint()
    compiler.load()
    (builtins,) = tmp_path.glob("libnvrtc-builtins.so.*")
    builtins.with_suffix(".new").write_bytes(builtins.read_bytes() + b"another build")
    builtins.with_suffix(".new").rename(builtins)
    with pytest.raises(CompilerMissing, match="replaced while this process ran; restart the process"):
        compiler.compile('extern "C" __global__ void k() {}', "sm_90")
    builtins.unlink()
    with pytest.raises(CompilerMissing, match="no longer exists; reinstall its package"):
        compiler.compile('extern "C" __global__ void k() {}', "sm_90")


def test_no_tool_says_how_to_get_it() -> None:
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-nothing"):
        find_tool("nothing-of-this-name", "nvidia-cuda-nothing")
