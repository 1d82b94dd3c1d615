"""nvcc's launcher with the real nvcc: each result is nvcc's own, and processes that are killed leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.compilers.contents import package_files
from tests.cli.test_cli import document, run
from tests.helpers import host_compiler

_LAUNCH = (sys.executable, "-c", "from cache_engine.adapters.nvcc import main; main()")
_SOURCE = "#include <lib/a.h>\n__global__ void kernel(float* x) { int unused; x[threadIdx.x] *= FACTOR; }\n"


class Machine:
    """A folder with a source and a header, and a store; ``nvcc`` is the compiler."""

    def __init__(self, root: Path, store: Path, nvcc: str) -> None:
        self.root, self.store, self.nvcc = root, store, nvcc
        (root / "include" / "lib").mkdir(parents=True)
        (root / "include" / "lib" / "a.h").write_text("#define FACTOR 3\n")
        (root / "k.cu").write_text(_SOURCE)
        self.environment = {**os.environ, "GEMM_CACHE_DIR": str(store), "HOME": str(root)}

    def words(self, *more: str, out: str = "k.out") -> list[str]:
        """A command; its phase is among ``more``."""
        return [
            self.nvcc,
            "-arch=sm_90a",
            f"-I{self.root}/include",
            f"{self.root}/k.cu",
            "-o",
            f"{self.root}/{out}",
            *more,
        ]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts the launcher."""
        return subprocess.Popen(
            [*_LAUNCH, *words],
            env=self.environment,
            cwd=self.root,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def launch(self, *words: str) -> tuple[int, str, str]:
        """The exit code and what was printed."""
        with self.start(*words) as process:
            out, err = process.communicate()
            return process.returncode, out, err

    @property
    def counts(self) -> tuple[int, int, dict[str, int]]:
        """Compiles, hits and commands that passed."""
        stats: Any = document("stats", store=self.store)
        return stats["compiles"], sum(stats["hits"].values()), stats["passed"]


@pytest.fixture(scope="session")
def nvcc() -> str:
    host_compiler()
    found = next(map(str, package_files("bin/nvcc")), None)
    if found is None:
        pytest.skip("the package nvidia-cuda-nvcc is not installed")
    return found


@pytest.fixture
def machine(tmp_path: Path, nvcc: str) -> Machine:
    return Machine(tmp_path / "a", tmp_path / "store", nvcc)


@pytest.mark.parametrize("phase", ["-cubin", "-ptx", "-c"])
def test_a_hit_is_what_nvcc_made_and_printed_also_elsewhere(machine: Machine, tmp_path: Path, phase: str) -> None:
    words = machine.words(phase, "-MD", "-MF", "k.d", "--resource-usage")
    first = machine.launch(*words)
    made, read = (machine.root / "k.out").read_bytes(), (machine.root / "k.d").read_text()
    assert (first[0], "declared but never referenced" in first[2]) == (0, True)
    (machine.root / "k.out").unlink()
    (machine.root / "k.d").unlink()
    assert machine.launch(*words) == first
    assert ((machine.root / "k.out").read_bytes(), (machine.root / "k.d").read_text()) == (made, read)
    other = Machine(tmp_path / "b", machine.store, machine.nvcc)
    assert other.launch(*other.words(phase, "-MD", "-MF", "k.d", "--resource-usage"))[0] == 0
    assert (other.root / "k.out").read_bytes() == made
    assert (other.root / "k.d").read_text() == read.replace(str(machine.root), str(other.root))
    assert machine.counts == (1, 2, {})


def test_what_nvcc_refuses_or_we_do_not_understand_is_nvcc_s(machine: Machine) -> None:
    (machine.root / "k.cu").write_text("error\n")
    ours, own = (
        machine.launch(*machine.words("-cubin")),
        subprocess.run(machine.words("-cubin"), capture_output=True, text=True),
    )
    assert ours == (own.returncode, own.stdout, own.stderr)
    assert ours[0] != 0
    version = machine.launch(machine.nvcc, "--version")
    assert (version[0], "release" in version[1]) == (0, True)
    assert machine.launch(*machine.words("-cubin", "-no-such-option"))[0] != 0
    assert machine.counts == (0, 0, {"option -version": 1, "unknown option": 1})
    assert machine.launch("/nowhere/nvcc", *machine.words("-cubin")[1:])[0] == 127


def test_two_processes_compile_once_and_show_the_kernel(machine: Machine) -> None:
    words = machine.words("-cubin")
    both = [machine.start(*words), machine.start(*words)]
    assert [process.communicate() and process.returncode for process in both] == [0, 0]
    assert machine.counts[:2] == (1, 1)
    (shown,) = document("ls", store=machine.store)["adapted"]["rows"]
    assert (shown["framework"], shown["arch"], shown["registers"] > 0) == ("nvcc", "sm_90a", True)
    assert run("verify", store=machine.store).returncode == 0
    explained = json.loads(run("nvcc", "--dry-run", "--json", "--", *words, store=machine.store).stdout)
    assert (explained["result"], explained["key"]) == ("hit", shown["key"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_launcher_leaves_nothing(machine: Machine, number: signal.Signals) -> None:
    # A header that is a pipe holds nvcc where it reads it.
    header = machine.root / "include" / "lib" / "a.h"
    header.unlink()
    os.mkfifo(header)
    process = machine.start(*machine.words("-cubin"))
    with open(header, "wb"):  # returns when nvcc has opened it
        process.send_signal(number)
        process.communicate()
    assert process.returncode in (-number, 255)  # nvcc ends so when it is terminated
    assert sorted(path.name for path in machine.root.iterdir()) == ["include", "k.cu"]
    assert list((machine.store / "temp").iterdir()) == []
    assert not (machine.store / "groups").exists()
    header.unlink()
    header.write_text("#define FACTOR 3\n")
    assert machine.launch(*machine.words("-cubin"))[0] == 0
    assert machine.counts[0] == 1


def test_a_hit_imports_little(machine: Machine) -> None:
    """Each of these takes as long to import as a hit takes, or nearly."""
    machine.launch(*machine.words("-cubin"))
    heavy = {"logging", "subprocess", "json", "duckdb", "cache_engine.adapters.shelf", "cache_engine.store.disk"}
    code = (
        f"import os, sys; from cache_engine.adapters import nvcc; nvcc.launch(sys.argv[1:], os.environ); "
        f"print({heavy} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, *machine.words("-cubin")]
    done = subprocess.run(command, env=machine.environment, cwd=machine.root, capture_output=True, text=True)
    assert done.stdout == "set()\n"
    assert machine.counts[:2] == (1, 1)


def test_a_reader_that_goes_away_does_not_stop_or_repeat_a_compile(machine: Machine) -> None:
    (machine.root / "include" / "lib" / "a.h").unlink()
    os.mkfifo(machine.root / "include" / "lib" / "a.h")
    process = machine.start(*machine.words("-cubin"))
    assert process.stdout is not None
    assert process.stderr is not None
    with open(machine.root / "include" / "lib" / "a.h", "wb") as header:
        process.stdout.close()
        process.stderr.close()  # before nvcc warns
        (machine.root / "include" / "lib" / "b.h").write_text("#define FACTOR 3\n")
        (machine.root / "include" / "lib" / "b.h").rename(machine.root / "include" / "lib" / "a.h")
        header.write(b"#define FACTOR 3\n")
    assert process.wait() == 0
    assert machine.counts[2] == {"a header changed while it was compiled": 1}
