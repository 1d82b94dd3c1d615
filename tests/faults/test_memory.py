"""Memory runs out on the way: the caller gets a ``MemoryError`` like any other exception.

No sound entry counts as damaged, nothing is torn, and no lock outlives the process. The places are chosen: where an
entry is read, decoded, written and published.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.store import codec
from cache_engine.store.disk import DiskStore
from cache_engine.store.lock import file_lock
from tests.cache.test_cache import PROBLEM
from tests.helpers import make_entry, make_store


def _no_memory(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("module", "name"), [(os, "fstat"), (codec, "_checksum"), (codec, "_decompress"), (codec, "_decode_record")]
)
def test_an_entry_that_is_read_without_memory_stays_where_it_is(
    module: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(tmp_path / "store") as cache:
        stored = cache.get_or_compile(PROBLEM)
    with open_cache(tmp_path / "store") as cache:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, _no_memory)
            with pytest.raises(MemoryError):
                cache.get_or_compile(PROBLEM)
        assert cache.admin.verify() == []
        assert cache.admin.quarantined() == []
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, kernel.cubin) == ("disk", stored.cubin)
        assert cache.stats().totals.corruptions == 0


@pytest.mark.parametrize("name", ["write", "fsync", "rename"])
def test_what_is_replaced_without_memory_is_the_old_one_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no temporary stays."""
    store = make_store(tmp_path / "store", durable=True)
    key, artifact, describe = make_entry(0)
    store.publish(key, artifact, describe)
    files = {path: path.read_bytes() for path in _files(store)}
    with monkeypatch.context() as patch:
        patch.setattr(os, name, _no_memory)
        with pytest.raises(MemoryError):
            store.publish(key, artifact, describe)
    assert {path: path.read_bytes() for path in _files(store)} == files


def _files(store: DiskStore) -> list[Path]:
    return [
        path for folder in (store.layout.kernels, store.layout.temp) for path in folder.rglob("*") if path.is_file()
    ]


_ENDING = """
import sys
from cache_engine import GemmProblem, open_cache
from cache_engine.store import publish

def no_memory(*_, **__):
    raise MemoryError

cache = open_cache(sys.argv[1])
publish.OwnFile.close = no_memory
cache.get_or_compile(GemmProblem(64, 48, 80, dtype="fp32", arch="sm_90"))
"""


def test_a_process_that_ends_by_it_leaves_no_lock(tmp_path: Path) -> None:
    """Not even one that it could not release."""
    done = subprocess.run([sys.executable, "-c", _ENDING, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "MemoryError" in done.stderr
    store = make_store(tmp_path)
    locks = list(store.layout.locks.iterdir())
    assert any(path.name.startswith("key-") for path in locks)
    for path in locks:
        with file_lock(path, 0):
            pass
    with open_cache(tmp_path) as cache:
        assert cache.admin.verify() == []


_GETTING = """
import resource, sys
from cache_engine.errors import CorruptEntry
from tests.helpers import make_entry, make_store
from pathlib import Path

store, (key, artifact, _) = make_store(Path(sys.argv[1])), make_entry(0, cubin_bytes=int(sys.argv[2]))
store.get(make_entry(1, cubin_bytes=10)[0])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
seen = set()
for spare in range(0, 80 * 2**20, 2**19):
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, -1))
    try:
        loaded = store.get(key)
        seen.add("right" if loaded is not None and loaded.cubin == artifact.cubin else "wrong")
    except MemoryError:
        seen.add("MemoryError")
    except OSError as error:
        seen.add(str(error.errno))
    except CorruptEntry as error:
        seen.add(f"corrupt: {error}")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(sorted(seen))
"""


def test_a_library_that_gets_no_memory_finds_no_damage(tmp_path: Path) -> None:
    """The operating system refuses: the address space is limited to less and less than 30 MB of code need."""
    size = 30 * 2**20
    store = make_store(tmp_path / "store")
    key, artifact, describe = make_entry(0, cubin_bytes=size)
    store.publish(key, artifact, describe)
    command = [sys.executable, "-c", _GETTING, str(store.layout.root), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=100)
    assert done.stdout == "['MemoryError', 'right']\n", done.stdout + done.stderr
