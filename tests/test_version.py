"""What records name as their maker: the version and the build, wherever the package came from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine import _version
from cache_engine._version import __version__, version_and_build
from cache_engine.cache.cache import Cache
from cache_engine.model.gemm import GemmProblem

ROOT = Path(__file__).parent.parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, without what Python has compiled."""
    target = tmp_path / "copy" / "cache_engine"
    return Path(shutil.copytree(ROOT / "cache_engine", target, ignore=shutil.ignore_patterns("__pycache__")))


def append(path: Path, text: str) -> None:
    """Adds text at the end of a file."""
    path.write_text(path.read_text() + text)


def said_by(package: Path, *, path: str = os.environ["PATH"]) -> str:
    """The version and build of a package, asked in a process that sees no other one."""
    code = "from cache_engine import _version; print(_version.__file__); print(_version.version_and_build())"
    command = [sys.executable, "-P", "-c", code]
    environment = {"PYTHONPATH": str(package.parent), "PATH": path}
    done = subprocess.run(command, env=environment, cwd=package.parent, capture_output=True, text=True, check=True)
    file, said = done.stdout.split("\n")[:2]
    assert file == str(package / "_version.py")
    return said


def test_the_build_is_the_version_and_twelve_digits_and_names_no_path() -> None:
    assert re.fullmatch(re.escape(__version__) + r"\+[0-9a-f]{12}", version_and_build())


def test_a_copy_elsewhere_without_git_is_the_same_build(package: Path) -> None:
    assert said_by(package, path="") == version_and_build()


def test_files_that_are_no_part_of_the_package_change_nothing(package: Path) -> None:
    for name in ("__pycache__/a.pyc", "store/__pycache__/b.pyc", "_bundled/app/main.py", ".hidden", ".git/config"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    assert said_by(package) == version_and_build()


@pytest.mark.parametrize(
    "edit",
    [
        lambda package: append(package / "units.py", "# edited\n"),
        lambda package: append(package / "kernels/templates/primitives.cuh", "\n"),
        lambda package: append(package / "index/schema.sql", "\n"),
        lambda package: (package / "new.py").touch(),
        lambda package: (package / "units.py").rename(package / "unit.py"),
        lambda package: (package / "py.typed").unlink(),
    ],
    ids=["source", "template", "schema", "added", "renamed", "removed"],
)
def test_any_edit_is_another_build(package: Path, edit: Callable[[Path], object]) -> None:
    edit(package)
    said = said_by(package)
    assert said.startswith(f"{__version__}+")
    assert said != version_and_build()


def test_an_sdist_and_the_wheel_made_of_it_without_git_are_the_same_build(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("gemm_cache-*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert said_by(unpacked / "cache_engine") == version_and_build()
    subprocess.run([*build, "--target", "wheel"], cwd=unpacked, check=True, capture_output=True, env={"PATH": ""})
    (wheel,) = tmp_path.glob(f"gemm_cache-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert (tmp_path / "installed/cache_engine/_bundled/app/main.py").exists()
    assert said_by(tmp_path / "installed" / "cache_engine") == version_and_build()


def test_what_cannot_be_read_is_said_to_be_unknown_and_read_again_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = version_and_build()
    _version._build.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(_version, "__file__", str(tmp_path / "package.zip" / "_version.py"))
        assert version_and_build() == f"{__version__}+unknown"
    assert version_and_build() == whole


def test_neither_an_import_nor_a_hit_reads_the_package(compiled_store: Path) -> None:
    code = (
        "import sys\nfrom cache_engine import GemmProblem, open_cache, _version\nimport cache_engine.cli.main\n"
        "with open_cache(sys.argv[1]) as cache:\n"
        "    assert cache.get_or_compile(GemmProblem(128, 256, 192, arch='sm_90')).tier == 'disk'\n"
        "print(_version._build.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(compiled_store)], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def test_a_record_names_the_build_which_is_no_part_of_its_key(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GemmProblem(16, 48, 80, arch="sm_90")
    first = cache.get_or_compile(problem)
    assert first.record.created_by == f"gemm-cache {version_and_build()}"
    monkeypatch.setattr("cache_engine.cache.miss.version_and_build", lambda: "9.9.9+another")
    second = cache.get_or_compile(problem, force=True)
    assert second.record.created_by == "gemm-cache 9.9.9+another"
    assert second.key == first.key
    assert not [value for _, value in first.record.components if __version__ in value]
