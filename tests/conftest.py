"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from tests import isolation
from tests.helpers import make_store

if TYPE_CHECKING:
    from tests.trust.keys import Builder  # tests/gpu does without cryptography

if find_spec("hypothesis") is not None:  # tests/gpu does without
    from hypothesis import HealthCheck, settings

    # Nothing goes by the clock: a machine may have much to do. CI prints the blob that reproduces a failure.
    _UNCHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=_UNCHECKED)
    settings.load_profile("default")

# A shell that starts the tests in the background has Ctrl-C ignored, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Two more than processors: tests wait for processes, disks and browsers."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Nothing of the user who runs the tests is seen by them; processes of pytest-xdist do this each for itself."""
    is_worker = hasattr(config, "workerinput")
    get_temp_dir()  # once for the process: inside a test's folder, its sockets would have names that are too long
    if is_worker or config.getoption("dist", "no") == "no":
        folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        isolation.isolate(folder.parent if is_worker else folder)


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_user_is_read() -> Iterator[None]:
    """At the end of each process of the tests: none of the user's caches was opened, let alone changed."""
    yield
    assert isolation.seen() == ""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a machine without any cache, and an empty temporary directory; here and in processes started."""
    for name, below in (("HOME", "home"), ("TMPDIR", "temporary")):
        (tmp_path / below).mkdir()
        monkeypatch.setenv(name, str(tmp_path / below))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _main_module() -> Iterator[None]:
    """A page that runs in this process becomes its main module, which processes that are spawned would run again."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    """An empty store."""
    return make_store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> DiskStore:
    """Another empty store, as of another machine."""
    return make_store(tmp_path / "other")


@pytest.fixture
def journal(store: DiskStore) -> Journal:
    """Of the store; it writes what it counts only when it is asked or closed."""
    return Journal(store.layout.journal, 3600.0)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """One who signs."""
    from tests.trust.keys import Builder

    return Builder(tmp_path / "builder")


@pytest.fixture
def stranger(tmp_path: Path) -> Builder:
    """Another, whose key is in no file of signers, unless a test writes it there."""
    from tests.trust.keys import Builder

    return Builder(tmp_path / "stranger")


@pytest.fixture
def without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor in this process leaves out the compilers: trying each of them takes a second."""
    monkeypatch.setattr("cache_engine.cli.doctor._compilers", lambda _: ())


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """An empty cache that does not wait for the disk."""
    with open_cache(tmp_path / "store", durability="fast") as opened:
        yield opened


SAMPLE = (
    GemmProblem(128, 256, 192, arch="sm_90"),
    GemmProblem(128, 256, 192, arch="sm_80"),
    GemmProblem(16, 512, 96, dtype=DType.FP16, arch="sm_90"),
    GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_75"),
)


# About what a compile makes, takes or reports; and those for a real GPU.
_COMPILING = {
    "tests/compilers", "tests/gpu", "tests/conformance/test_compilers.py", "tests/cache/test_debug_dump.py",
    "tests/cache/test_descriptors.py", "tests/cache/test_reproduction.py",
}  # fmt: skip


@pytest.fixture(scope="session")
def _made_before(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was compiled in this run, by whichever process of the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled-before"
    folder.mkdir(exist_ok=True)
    os.environ["TESTS_COMPILED_BEFORE"] = str(folder)


@pytest.fixture(autouse=True)
def _compiled_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _made_before: None) -> None:
    """No compiler compiles what it compiled for a test before, but where a test is about compiling."""
    path = request.path.relative_to(Path(__file__).parents[1])
    if _COMPILING.isdisjoint(map(str, (path, *path.parents))):
        from tests import compiled_once

        compiled_once.install(monkeypatch.setattr)


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "store"
    with open_cache(folder, durability="fast") as opened:
        for problem in SAMPLE:
            opened.get_or_compile(problem)
        opened.get_or_compile(SAMPLE[0])
    return folder


@pytest.fixture
def compiled_store(_compiled: Path, tmp_path: Path) -> Path:
    """A store of really compiled kernels, one of them used again; the test's own copy."""
    return Path(shutil.copytree(_compiled, tmp_path / "compiled"))


@pytest.fixture
def pack(compiled_store: Path, tmp_path: Path) -> Path:
    """A pack of the sample's four kernels, made by the NVRTC that is installed."""
    with open_cache(compiled_store) as cache:
        cache.admin.export(tmp_path / "kernels.gemmpack")
    return tmp_path / "kernels.gemmpack"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver that sees no GPU; it is for the version of CUDA in ``DRIVER``, such as 12040."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(
        "#include <cstdlib>\n"
        'extern "C" int cuInit(unsigned) { return 100; }\n'
        'extern "C" int cuDriverGetVersion(int* version) { *version = std::atoi(std::getenv("DRIVER")); return 0; }\n'
    )
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.cpp"], cwd=folder, check=True)
    return folder
