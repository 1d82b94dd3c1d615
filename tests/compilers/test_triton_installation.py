"""The fingerprint of Triton: every file that a compile may run is in it."""

from __future__ import annotations

import errno
import os
import py_compile
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cache_engine.compilers import triton
from cache_engine.errors import CompilerMissing
from cache_engine.model.gemm import GemmProblem
from cache_engine.settings.extras import how_to_install
from tests.compilers.test_triton import TRITON, _source
from tests.helpers import patch_in_place, require_triton


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    require_triton()


def test_the_fingerprint_does_not_need_triton_loaded() -> None:
    """Neither a hit nor a key must pay for the compiler."""
    code = (
        "import sys\nfrom cache_engine import GemmProblem\nfrom cache_engine.cache.selection import Selector\n"
        "selection = Selector().select(GemmProblem(8, 8, 8, arch='sm_90'), 'triton', None, None)\n"
        "print(selection.compiler.fingerprint())\nassert not {'triton', 'subprocess', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(TRITON.fingerprint()) == done.stdout.strip()
    assert TRITON.fingerprint().version == metadata.version("triton")


def _own(path: Path) -> Path:
    """The file at the end of a link, in place of the link."""
    real = path.resolve()
    path.unlink()
    shutil.copy2(real, path)
    return path


@pytest.mark.parametrize("part", ["backends/nvidia/bin/ptxas-blackwell", "backends/nvidia/compiler.py"])
def test_a_part_of_triton_replaced_in_place_is_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The wheel's list of files knows nothing of it; size and time of modification say nothing either."""
    place = _copied_installation(tmp_path)
    monkeypatch.syspath_prepend(place)
    path = _own(place / "triton" / part)
    before = triton.Triton()
    assert before.fingerprint() == TRITON.fingerprint()
    patch_in_place(path)
    other = triton.Triton().fingerprint()
    assert (other.version, other.build != TRITON.fingerprint().build) == (TRITON.fingerprint().version, True)
    with pytest.raises(CompilerMissing, match="Triton was replaced while this process ran; restart the process"):
        before._installation().check_unchanged()


def test_a_file_added_to_triton_is_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may shadow another, or a backend register itself."""
    place = _copied_installation(tmp_path)
    monkeypatch.syspath_prepend(place)
    before = triton.Triton()
    assert before.fingerprint() == TRITON.fingerprint()
    (place / "triton" / "backends" / "nvidia" / "more.py").touch()
    assert triton.Triton().fingerprint().build != TRITON.fingerprint().build
    with pytest.raises(CompilerMissing, match="files were added to Triton while this process ran"):
        before._installation().check_unchanged()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_folder_that_cannot_be_listed_is_not_left_out_of_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    scandir, package = os.scandir, TRITON._installation().packages / "triton"

    def refusing(folder: str) -> object:
        if str(folder).endswith("backends/nvidia/bin"):
            raise OSError(number, os.strerror(number), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(CompilerMissing, match=r"cannot read Triton's folder .*/backends/nvidia/bin"):
        triton.parts(package)


def test_another_worker_is_another_fingerprint_and_what_runs_is_what_was_read(
    fresh: triton.Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade under a running process neither changes its worker nor leaves its keys to the new one."""
    before = TRITON.fingerprint()
    text = triton._worker() + "\nraise SystemExit('another')\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert triton._worker() != text, "read once"
    fresh.load()
    triton._worker.cache_clear()
    try:
        other = triton.Triton().fingerprint()
    finally:
        triton._worker.cache_clear()
    assert other.build.split("+")[0] == before.build.split("+")[0]
    assert other.build != before.build


def test_bytecode_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of a source which was replaced since, with size and time of modification as before."""
    place = _copied_installation(tmp_path)
    monkeypatch.syspath_prepend(place)
    path = _own(place / "triton" / "__init__.py")
    py_compile.compile(str(path), doraise=True)
    seen, text = path.stat(), path.read_text()
    version = re.search(r"^__version__ = \S+$", text, re.MULTILINE)
    assert version is not None
    path.write_text(text.replace(version[0], "raise NameError".ljust(len(version[0]))))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    with pytest.raises(CompilerMissing, match=r"cannot load Triton \(NameError"):
        triton.Triton().load()


def test_every_file_of_triton_that_a_compile_opens_is_hashed(tmp_path: Path) -> None:
    """Else one left out of the fingerprint could change the code."""
    if shutil.which("strace") is None:
        pytest.skip("no strace to see which files are opened (apt-get install strace)")
    code = (
        "import sys; from cache_engine.compilers.triton import Triton\nsource = sys.stdin.read()\n"
        "[Triton().compile(source, arch) for arch in ('sm_80', 'sm_90')]\n"
    )
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=openat,execve",
        "-o",
        str(tmp_path / "trace"),
        sys.executable,
        "-c",
        code,
    ]
    subprocess.run(command, input=_source(GemmProblem(64, 128, 96)), text=True, check=True)
    package = TRITON._installation().packages / "triton"
    # A call may be on two lines, its result on the second; what is not there was not opened.
    trace = (tmp_path / "trace").read_text()
    opened = {name for name in re.findall(rf'"{package}/([^"]*)", O_RDONLY', trace) if (package / name).is_file()}
    started = set(re.findall(rf'execve\("{package}/([^"]*)"', trace))
    programs = [line for line in trace.splitlines() if "execve" in line]
    assert {"backends/nvidia/bin/ptxas", "backends/nvidia/bin/ptxas-blackwell"} <= started, "\n".join(programs)
    assert {"_C/libtriton.so", "compiler/compiler.py", "backends/nvidia/compiler.py"} <= opened
    assert opened | started <= set(triton.parts(package))


def test_no_triton_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    with pytest.raises(CompilerMissing, match=re.escape(how_to_install("triton"))):
        triton.Triton().fingerprint()


def test_a_triton_that_may_change_at_any_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One installed to be worked on is somewhere else than its package says."""
    place = _copied_installation(tmp_path)
    (place / "triton").rename(tmp_path / "sources")
    monkeypatch.syspath_prepend(place)
    with pytest.raises(CompilerMissing, match="not installed from a wheel"):
        triton.Triton().fingerprint()


def test_a_triton_replaced_under_a_running_process_is_refused(
    fresh: triton.Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels would be stored under the key of the previous one."""
    place = _copied_installation(tmp_path)
    monkeypatch.syspath_prepend(place)
    source = _source(GemmProblem(64, 128, 96))
    fresh.compile(source, "sm_90")
    ptxas = place / "triton" / "backends" / "nvidia" / "bin" / "ptxas"
    shutil.copyfile(ptxas, place / "new")
    (place / "new").rename(ptxas)
    with pytest.raises(CompilerMissing, match="replaced while this process ran; restart the process"):
        fresh.compile(source, "sm_90")


def _copied_installation(folder: Path) -> Path:
    """Triton in another place, by links to its files."""
    place = folder / "packages"
    there = metadata.distribution("triton")
    for file in there.files or ():
        if file.parts[0].startswith("triton") and "__pycache__" not in file.parts:
            copy = place / str(file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.name == "RECORD":
                shutil.copyfile(str(there.locate_file(file)), copy)
            else:
                copy.symlink_to(Path(str(there.locate_file(file))).resolve())
    return place
