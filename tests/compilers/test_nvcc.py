"""NVCC as a subprocess: nothing left behind, nothing let in from outside, nothing unseen in its fingerprint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine.compilers import nvcc
from cache_engine.compilers.base import Cuda
from cache_engine.compilers.nvcc import sweep, workplace
from cache_engine.errors import CompileError, CompilerMissing
from tests.helpers import needs_host_compiler, patch_in_place
from tests.remote.waiting import until

pytestmark = needs_host_compiler

KERNEL = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }'
COMPILE = (
    "import sys; from cache_engine.compilers.nvcc import Nvcc\n"
    f"Nvcc().compile({KERNEL!r}, 'sm_90')\n"
)  # fmt: skip


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other process uses."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An NVCC that never ends once it compiles; returns the file that then has its process id."""
    sign = tmp_path / "compiling"
    real = nvcc._find_nvcc(Cuda())
    folder = tmp_path / "toolkit" / "bin"
    folder.mkdir(parents=True)
    script = folder / "nvcc"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--dryrun*|*" -E "*) exec {real} "$@" ;; esac\n'
        f"echo $$ > {sign}.new; mv {sign}.new {sign}; exec sleep 600\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(folder.parent))
    return sign


@pytest.fixture
def started(temp: Path, hanging: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that waits for a hanging NVCC, and the id of that."""
    process = subprocess.Popen([sys.executable, "-c", COMPILE], stderr=subprocess.PIPE, text=True)
    while not hanging.exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield process, int(hanging.read_text())
    process.kill()
    process.communicate()


def _is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_nothing_is_left_of_a_compile_or_of_a_failed_one(temp: Path) -> None:
    compiler = nvcc.Nvcc()
    compiler.compile(KERNEL, "sm_90")
    with pytest.raises(CompileError):
        compiler.compile("wrong", "sm_90")
    with pytest.raises(CompileError):
        compiler.compile(KERNEL, "sm_999")
    assert list(temp.iterdir()) == []


def test_a_hanging_compiler_is_stopped_and_leaves_no_files(
    temp: Path, hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = nvcc.Nvcc()
    compiler.load()
    monkeypatch.setattr(nvcc, "_TIMEOUT_S", 1.0)
    with pytest.raises(CompileError, match="did not finish within 1 s and was stopped"):
        compiler.compile(KERNEL, "sm_90")
    assert list(temp.iterdir()) == []
    assert not hanging.exists() or not _is_alive(int(hanging.read_text()))


def test_ctrl_c_stops_the_compiler_and_leaves_nothing(temp: Path, started: tuple[subprocess.Popen[str], int]) -> None:
    process, compiling = started
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    until(lambda: not _is_alive(compiling))  # it was killed, and takes a moment to end
    assert list(temp.iterdir()) == []


def test_files_of_a_killed_process_are_removed_once_unused(
    temp: Path, started: tuple[subprocess.Popen[str], int]
) -> None:
    process, compiling = started
    process.kill()
    process.wait()
    try:
        sweep()
        assert len(list(temp.iterdir())) == 1  # its compiler still works there
    finally:
        os.kill(compiling, signal.SIGKILL)
    while _is_alive(compiling):
        time.sleep(0.01)
    with workplace() as ours:
        sweep()
        assert list(temp.iterdir()) == [ours.folder]


def test_sweeping_leaves_foreign_files_alone(temp: Path) -> None:
    (temp / "gemm-cache-compile-link").symlink_to(temp)
    (temp / "gemm-cache-compile-file").write_text("mine")
    (temp / "other").mkdir()
    sweep()
    assert len(list(temp.iterdir())) == 3


def test_no_room_for_temporary_files_is_reported(temp: Path) -> None:
    compiler = nvcc.Nvcc()
    compiler.load()
    temp.rmdir()
    with pytest.raises(CompileError, match=f"could not work in {temp}.*No such file"):
        compiler.compile(KERNEL, "sm_90")


def test_variables_that_compilers_read_do_not_reach_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The key would not know of them."""
    compiler = nvcc.Nvcc()
    before = compiler.compile(KERNEL, "sm_90").cubin
    (tmp_path / "cuda_runtime.h").write_text("#error from outside\n")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G -DBROKEN")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--device-debug")
    assert compiler.compile(KERNEL, "sm_90").cubin == before
    assert nvcc.Nvcc().fingerprint() == compiler.fingerprint()


def test_no_name_or_text_reaches_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVCC runs its programs through one."""
    traps = "$(touch trap1) `touch trap2` ; touch trap3"
    folder = tmp_path / traps
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    nvcc.Nvcc().compile(f"// {traps}\n{KERNEL}", "sm_90")
    assert not list(tmp_path.rglob("trap?"))


def test_where_it_works_is_in_nothing_it_makes(temp: Path) -> None:
    compiled = nvcc.Nvcc().compile(KERNEL, "sm_90")
    for part in (compiled.cubin, compiled.ptx, compiled.log):
        assert str(temp).encode() not in part
        assert b"gemm-cache-compile" not in part


def test_the_preprocessed_source_holds_the_headers_and_the_kernel() -> None:
    text = nvcc.Nvcc().preprocess(KERNEL, "sm_90")
    assert "threadIdx" in text
    assert 'extern "C"' in text
    assert "cuda_runtime.h" in text
    assert text.count("\n") > 10_000


def _link(source: str, target: str) -> None:
    """A second name for a large file, which is not changed in place; a copy where the two cannot share it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same toolkit in another place, its headers to be changed at will; the programs are links."""
    real = nvcc._find_nvcc(Cuda()).parent.parent.resolve()
    copied = tmp_path / "another" / "place"
    shutil.copytree(real / "include", copied / "include", ignore=shutil.ignore_patterns("cccl"))
    shutil.copytree(real / "nvvm", copied / "nvvm", copy_function=_link)
    shutil.copytree(real / "bin", copied / "bin", copy_function=_link)
    monkeypatch.setenv("CUDA_HOME", str(copied))
    return copied


def test_the_fingerprint_is_of_content_and_not_of_places(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = nvcc.Nvcc()
    seen = compiler.fingerprint()
    monkeypatch.delenv("CUDA_HOME")
    assert nvcc.Nvcc().fingerprint() == seen


def test_another_header_is_another_fingerprint_and_is_refused_while_running(toolkit: Path) -> None:
    """Also where the change is in a branch that other targets take."""
    compiler = nvcc.Nvcc()
    before = compiler.fingerprint()
    header = toolkit / "include" / "cuda_runtime.h"
    header.write_text(header.read_text() + "\n#if __CUDA_ARCH__ == 1200\nint more;\n#endif\n")
    assert nvcc.Nvcc().fingerprint() != before
    with pytest.raises(CompilerMissing, match="replaced while this process ran; restart the process"):
        compiler.compile(KERNEL, "sm_90")


def test_a_header_patched_in_place_is_another_fingerprint_and_is_refused_while_running(toolkit: Path) -> None:
    """With its size and its time of modification as they were."""
    compiler = nvcc.Nvcc()
    before = compiler.fingerprint()
    header = toolkit / "include" / "cuda_runtime.h"
    patch_in_place(header, header.read_bytes().index(b"NVIDIA"))  # in a comment
    assert nvcc.Nvcc().fingerprint() != before
    with pytest.raises(CompilerMissing, match="NVCC or a header it includes was replaced while this process ran"):
        compiler.compile(KERNEL, "sm_90")


def test_a_header_that_hides_another_is_another_fingerprint_and_is_refused_while_running(toolkit: Path) -> None:
    """No file in the key changes; the compile reads one more, found earlier on the path."""
    compiler = nvcc.Nvcc()
    before = compiler.fingerprint()
    compiler.compile(KERNEL, "sm_90")
    (toolkit / "include" / "stdlib.h").write_text("#include_next <stdlib.h>\n#define __restrict__\n")
    with pytest.raises(CompilerMissing, match=r"stdlib\.h was added while this process ran; restart the process"):
        compiler.compile(KERNEL, "sm_90")
    assert nvcc.Nvcc().fingerprint() != before


@pytest.mark.parametrize("part", ["nvvm/bin/cicc", "bin/ptxas", "nvvm/libdevice/libdevice.10.bc"])
def test_another_program_is_another_fingerprint_and_a_missing_one_is_reported(toolkit: Path, part: str) -> None:
    before = nvcc.Nvcc().fingerprint()
    path = toolkit / part
    changed = path.read_bytes() + b"another build"
    path.unlink()
    with pytest.raises(CompilerMissing, match=f"lacks {path.name}; run: .*pip install"):
        nvcc.Nvcc().fingerprint()
    path.write_bytes(changed)
    assert nvcc.Nvcc().fingerprint() != before


def test_a_broken_host_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\necho 'kernel.cu:1:1: error: no such luck' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("NVCC_CCBIN", str(script))
    with pytest.raises(CompilerMissing, match=r"does not work with .*no such luck; name another .* in NVCC_CCBIN"):
        nvcc.Nvcc().fingerprint()


def test_without_a_host_compiler_the_command_line_says_so_and_ends_with_3(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cache_engine",
            "--store",
            tmp_path / "s",
            "compile",
            "8",
            "8",
            "8",
            "--arch",
            "sm_90",
            "--compiler",
            "nvcc",
        ],
        env={**os.environ, "PATH": str(tmp_path), "NVCC_CCBIN": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert done.stderr.startswith(
        "error: NVCC needs a C++ compiler of the host to preprocess with, and none is installed"
    )
    assert done.stderr.count("\n") == 1
