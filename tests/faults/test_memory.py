"""There is no memory for a moment: one allocation of the interpreter is refused, or some in a row.

A lookup returns the kernel or raises ``MemoryError``; no valid entry counts as damaged, nothing is torn, and no lock or
temporary stays open. SQLite tests itself so; https://sqlite.org/malloc.html. Refusing all from one allocation on is
left out: CPython 3.11 itself does not survive that.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign, spread
from tests.faults.result_operations import EVERY_OPERATION
from tests.helpers import make_entry, make_store

Start = Callable[[str], Campaign]
IN_A_ROW = (1, 20)
# Each needs about as many trials as it makes allocations; the mirror's are 20,000, most of them in libraries.
OFTEN = ("get, there", "get, missing", "get, damaged", "publish", "replace", "fold", "count")


def _windows(first: int, last: int, most: int) -> list[tuple[int, int]]:
    """Runs of allocations that begin evenly spread."""
    return [(start, start + length) for length in IN_A_ROW for start in spread(range(first, last + 1), most)]


@pytest.mark.parametrize("name", [*OFTEN, "sync"])
def test_memory_that_is_refused_does_no_harm(name: str, starving: Start) -> None:
    trials = starving(name)
    troubles = trials.starve(_windows(1, trials.allocations(), 1 if name == "sync" else 4))
    assert not troubles, "\n".join(troubles)


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_any_allocation_that_is_refused_does_no_harm(name: str, starving: Start) -> None:
    trials = starving(name)
    most = 2500 if name in OFTEN else 300
    troubles = trials.starve(_windows(1, trials.allocations(), most))
    assert not troubles, "\n".join(troubles)


def test_the_count_of_allocations_reaches_the_last_one(starving: Start) -> None:
    """An operation fails where its last ones are refused, and does not where those behind them are."""
    trials = starving("pin")
    last = trials.allocations()
    refused = [bool(trials._starved(number, number + 1).error) for number in range(last - 8, last + 9)]
    assert any(refused[:8])
    assert not any(refused[-4:])


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
