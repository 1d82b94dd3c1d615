"""Environment variables: those that reach a compiler are in the key, and no others reach one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cache_engine.compilers.base import Cuda
from cache_engine.compilers.contents import KEYED, LEFT_OUT, package_files
from cache_engine.compilers.nvcc import Nvcc, _find_nvcc
from cache_engine.compilers.triton import Triton
from tests.helpers import needs_host_compiler, require_triton

# Prints the key's component, the key, and a digest of the code of one kernel.
COMPILE = (
    "import hashlib, sys, tempfile\nfrom cache_engine import GemmProblem, open_cache\n"
    "with open_cache(tempfile.mkdtemp(dir=sys.argv[1]), durability='fast') as cache:\n"
    "    kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048, arch='sm_90'))\n"
    "    print(dict(kernel.record.components).get('environment'), kernel.key, "
    "hashlib.sha256(kernel.cubin).hexdigest(), kernel.record.resources.registers, sep='|')\n"
)
KERNEL = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }'
CLEAN = {name: value for name, value in os.environ.items() if name not in KEYED}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str, int]:
    """A compile without any variable that reaches a compiler."""
    return _compiled(tmp_path_factory.mktemp("clean"))


def _compiled(folder: Path, **variables: str) -> tuple[str, str, str, int]:
    command = [sys.executable, "-c", COMPILE, str(folder)]
    done = subprocess.run(command, env=CLEAN | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    component, key, code, registers = done.stdout.strip().split("|")
    return component, key, code, int(registers)


def test_a_variable_that_changes_the_code_changes_the_key(tmp_path: Path, clean: tuple[str, str, str, int]) -> None:
    """Another NVVM takes 166 registers in place of 236; another writer of ELF is chosen by a name that may be empty."""
    assert clean[0] == "None"
    assert _compiled(tmp_path)[:2] == clean[:2]
    another = _compiled(tmp_path, NV_NVVM_VERSION="nvvm-latest")
    assert re.fullmatch("NV_NVVM_VERSION=[0-9a-f]{32}", another[0])
    assert another[1] != clean[1]
    assert another[3] != clean[3]
    elf = _compiled(tmp_path, FINALIZER_USE_LEGACY_ELF_BUILDER="1")
    assert elf[1] != clean[1]
    assert elf[2] != clean[2]
    assert len({clean[1], another[1], elf[1], _compiled(tmp_path, FINALIZER_USE_LEGACY_ELF_BUILDER="")[1]}) == 4


def test_variables_left_out_change_neither_the_code_nor_the_key(
    tmp_path: Path, clean: tuple[str, str, str, int]
) -> None:
    odd = dict.fromkeys(LEFT_OUT, "1") | dict.fromkeys(("HOME", "PATH", "PWD", "TMPDIR"), str(tmp_path))
    assert _compiled(tmp_path, **odd) == clean


def test_values_of_variables_are_hashed(tmp_path: Path) -> None:
    """They may be paths, and of any length."""
    component = _compiled(tmp_path, EDG_BASE=str(tmp_path), NVRTC_DISABLE_PCH="1" * 10_000)[0]
    assert re.fullmatch("EDG_BASE=[0-9a-f]{32} NVRTC_DISABLE_PCH=[0-9a-f]{32}", component)


@pytest.mark.parametrize("how", ["os.environ['{}'] = '1'", "import ctypes; ctypes.CDLL(None).setenv(b'{}', b'1', 1)"])
@pytest.mark.parametrize("when", ["before loading", "before compiling"])
def test_a_variable_set_after_the_first_key_is_refused(how: str, when: str) -> None:
    """Also where it is set behind Python's back, as libraries do it. NVRTC would read it, and the key not name it."""
    code = (
        "import os\nfrom cache_engine.compilers import COMPILERS\nnvrtc = COMPILERS['nvrtc']\nnvrtc.fingerprint()\n"
        f"{'' if when == 'before loading' else 'nvrtc.load()'}\n{how.format('FINALIZER_USE_LEGACY_ELF_BUILDER')}\n"
        f"nvrtc.compile({KERNEL!r}, 'sm_90')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=CLEAN, capture_output=True, text=True)
    assert "CompilerMissing: an environment variable that NVRTC reads was changed while this process" in done.stderr


def test_no_variable_is_both_in_the_key_and_left_out() -> None:
    assert set(KEYED).isdisjoint(LEFT_OUT)
    assert list(KEYED) == sorted(KEYED)


SPY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static char *noted(const char *name, const char *real) {
    for (char **entry = environ; entry && *entry; ++entry)
        if (!strncmp(*entry, "SPY=", 4)) {
            char line[256] = {0};
            strncpy(line, name, 254);
            line[strlen(line)] = '\\n';
            int file = open(*entry + 4, O_WRONLY | O_CREAT | O_APPEND, 0600);
            if (write(file, line, strlen(line)) < 0) _exit(9);
            close(file);
        }
    return ((char *(*)(const char *))dlsym(RTLD_NEXT, real))(name);
}
char *getenv(const char *name) { return noted(name, "getenv"); }
char *secure_getenv(const char *name) { return noted(name, "secure_getenv"); }
"""


def test_nvrtc_asks_for_no_variable_that_is_not_listed(tmp_path: Path) -> None:
    """A ``getenv`` of the test's own notes the names, while NVRTC is loaded and compiles for several targets."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build a getenv that notes what it is asked for")
    (tmp_path / "spy.c").write_text(SPY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "spy.so", "spy.c", "-ldl"], cwd=tmp_path, check=True)
    code = (
        "import ctypes, os, sys\nfrom cache_engine.compilers import COMPILERS\nnvrtc = COMPILERS['nvrtc']\n"
        "nvrtc.fingerprint()\nctypes.CDLL(None).setenv(b'SPY', sys.argv[1].encode(), 1)\n"
        f"for arch in ('sm_75', 'sm_90a', 'sm_120'): nvrtc.compile({KERNEL!r}, arch)\n"
        "ctypes.CDLL(None).unsetenv(b'SPY')\n"
    )
    environment = CLEAN | {"LD_PRELOAD": str(tmp_path / "spy.so")}
    subprocess.run([sys.executable, "-c", code, tmp_path / "names"], env=environment, check=True)
    asked = set((tmp_path / "names").read_text().split())
    assert {"NV_NVVM_VERSION", "FINALIZER_USE_LEGACY_ELF_BUILDER"} <= asked
    assert asked <= {*KEYED, *LEFT_OUT}, "weigh each, and add it to one of the lists"


@pytest.mark.parametrize("folder", ["cu13", "cuda_nvrtc"])
def test_no_call_of_getenv_in_nvrtc_names_a_variable_that_is_not_listed(folder: str) -> None:
    """As its machine code has them, also those that no compile of ours comes to."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump to find where the library calls getenv")
    (library,) = package_files("lib/libnvrtc.so.*", folder)
    named = _names_given_to_getenv(library)
    assert len(named) > 20
    assert named <= {*KEYED, *LEFT_OUT}, "weigh each, and add it to one of the lists"


def _names_given_to_getenv(library: Path) -> set[str]:
    """The texts whose address is put in the first argument's register shortly before ``getenv`` is called (x86-64)."""
    stubs = subprocess.run(["objdump", "-d", "-j", ".plt", "-j", ".plt.sec", library], capture_output=True, text=True)
    calls = [int(found, 16) for found in re.findall(r"^(\w+) <getenv(?:@[\w.]+)?@plt>:", stubs.stdout, re.MULTILINE)]
    headers = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    load = re.compile(r"LOAD off +0x(\w+) vaddr 0x(\w+).*\n +filesz 0x(\w+)")
    code = np.fromfile(library, dtype=np.uint8)
    text = code.tobytes()
    names = set()
    for offset, address, size in (tuple(int(n, 16) for n in found) for found in load.findall(headers)):
        at = np.flatnonzero((code[offset : offset + size - 5] & 0xFE) == 0xE8) + offset  # call and jmp
        distance = sum(code[at + 1 + byte].astype(np.int64) << 8 * byte for byte in range(4))
        distance = np.where(distance >= 2**31, distance - 2**32, distance)
        for call in at[np.isin(at - offset + address + 5 + distance, calls)].tolist():
            lea = text.rfind(b"\x48\x8d\x3d", call - 48, call)  # lea rdi, [rip + …]
            if lea >= 0:
                start = lea + 7 + int.from_bytes(text[lea + 3 : lea + 7], "little", signed=True)
                name = text[start : text.index(b"\0", start)]
                names |= {name.decode()} if re.fullmatch(rb"[A-Za-z_]\w{1,60}", name) else set()
    return names


@needs_host_compiler
def test_nvcc_gets_named_variables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "toolkit" / "bin" / "nvcc"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nenv >> {tmp_path}/seen\nexec {_find_nvcc(Cuda())} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(script.parent.parent))
    for name in (*KEYED, "NVCC_PREPEND_FLAGS", "CPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "GCC_EXEC_PREFIX"):
        monkeypatch.setenv(name, "")
    Nvcc().compile(KERNEL, "sm_90")
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert seen - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "TMPDIR", "LC_ALL"}  # those left out are the shell's


def test_triton_gets_named_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    require_triton()
    for name in (*KEYED, "TRITON_PTXAS_PATH", "PYTHONPATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, "")
    compiler = Triton()
    compiler.load()
    (worker,) = compiler._idle
    try:
        environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes().decode()
    finally:
        worker.end()
    seen = {entry.partition("=")[0] for entry in environment.split("\0") if entry}
    own = {flag.partition("=")[0] for flag in compiler.flags}
    own |= {
        "TMPDIR",
        "TRITON_CACHE_DIR",
        "TRITON_HOME",
        "TRITON_BACKENDS_IN_TREE",
        "TRITON_DUMP_PTXAS_LOG",
        "TRITON_DUMP_DIR",
    }
    assert own <= seen <= own | {"PATH", "LD_LIBRARY_PATH"}
