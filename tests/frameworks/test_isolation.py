"""The tests read none of the caches of whoever runs them, and change none."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from tests.frameworks.fixtures import HERE
from tests.isolation import cache_variables, caches_of

ROOT = Path(__file__).parents[2]
_DAILY = [
    "tests/cli/test_caches.py::test_the_overview_needs_no_configuration_and_no_store",
    "tests/index/test_foreign.py::test_the_cache_scans_what_there_is_and_what_is_named",
]
_SOAK = ["tests/frameworks", "tests/adapters", "tests/browser/test_caches.py", "tests/browser/test_caches_journeys.py"]
_SOAK += map(str, sorted(Path("tests").glob("*/test_*caches*.py")))
_READ_OR_CHANGED = 0x20 | 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400  # IN_OPEN, IN_MODIFY, … of inotify(7)
_NON_BLOCKING = 0o4000


class Watch:
    """What any process opens or changes in directories, as the kernel sees it."""

    def __init__(self, tops: Iterable[str]) -> None:
        """Watches directories and all below them."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._events, self._folders = libc.inotify_init1(_NON_BLOCKING), {}
        for folder, *_ in chain.from_iterable(map(os.walk, tops)):
            number = libc.inotify_add_watch(self._events, os.fsencode(folder), _READ_OR_CHANGED)
            assert number > 0, os.strerror(ctypes.get_errno())
            self._folders[number] = folder
        self.seen()  # the walk

    def seen(self) -> set[str]:
        """The paths, since the last look."""
        found = set[str]()
        while True:
            try:
                data = os.read(self._events, 2**16)
            except BlockingIOError:
                return found
            while data:
                number, _, _, length = struct.unpack_from("iIII", data)
                found.add(os.path.join(self._folders[number], os.fsdecode(data[16 : 16 + length].rstrip(b"\0"))))
                data = data[16 + length :]


def plant(place: Path) -> None:
    """Writes a full cache: what each framework made, and as files of no framework's form."""
    for archive in HERE.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
    for name in ("fxgraph/ab/key/1", "1/2/0123456789abcd"):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_bytes(b"1234")


@dataclass(frozen=True)
class User:
    """A user of every framework: the environment, and where the caches are."""

    environment: dict[str, str]
    caches: set[str]


@pytest.fixture
def user(tmp_path: Path) -> User:
    """One with a full cache at each default, and where each variable says."""
    machine = tmp_path / "machine"
    bare = {"HOME": str(machine / "home")}
    moved = {name: str(machine / name) for name in cache_variables()}
    caches = caches_of(bare, f"{machine}/tmp") | caches_of({**bare, **moved}, f"{machine}/tmp")
    for place in caches:
        plant(Path(place))
    named = f"triton={moved['TRITON_CACHE_DIR']}"
    return User({**os.environ, **bare, **moved, "TMPDIR": f"{machine}/tmp", "GEMM_CACHE_CACHES": named}, caches)


def _run(user: User, *arguments: str) -> subprocess.CompletedProcess[str]:
    base = f"{user.environment['HOME']}/basetemp"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", base, *arguments]
    return subprocess.run(command, cwd=ROOT, env=user.environment, capture_output=True, text=True)


@pytest.mark.parametrize("tests", [_DAILY, pytest.param(_SOAK, marks=pytest.mark.soak)], ids=["some", "all"])
def test_the_caches_of_whoever_runs_the_tests_stay_unread(tests: list[str], user: User) -> None:
    """No process of theirs opens anything in them, and no number depends on what is there."""
    watch = Watch(user.caches)
    done = _run(user, "--ignore", __file__, *tests)
    assert done.returncode == 0, done.stdout[-5000:]
    assert watch.seen() == set()
    any_of_them = min(user.caches)
    os.listdir(any_of_them)
    assert watch.seen() == {f"{any_of_them}/"}


@pytest.mark.soak
def test_a_test_that_reads_one_is_reported_at_the_end(user: User, tmp_path: Path) -> None:
    """Also where a process that it forked does."""
    reads = f"import os\nif os.fork() == 0:\n    os.listdir({min(user.caches)!r})\n    os._exit(0)\nos.wait()\n"
    (tmp_path / "test_reads.py").write_text(f"def test_it() -> None:\n    {reads.replace(chr(10), chr(10) + '    ')}\n")
    done = _run(user, "-p", "tests.conftest", str(tmp_path / "test_reads.py"))
    assert "os.listdir" in done.stdout
    assert "1 passed, 1 error" in done.stdout
