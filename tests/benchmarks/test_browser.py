"""The benchmark of the dashboard measures what it says, in a real Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.index import queries
from cache_engine.index.queries import KernelFilter

# In a process of its own: there is one Playwright in a process, and the other tests have theirs.
MEASURE = """
import json, sys
from pathlib import Path
from benchmarks.browser.dashboard import dashboard
lines = []
dashboard(lines.append, Path(sys.argv[1]), 150, titles=("Kernels",), samples=1)
values = ("seconds", "value", "size_bytes")
told = [(type(line).__name__, line.name, next(getattr(line, v) for v in values if hasattr(line, v))) for line in lines]
print(json.dumps(told))
"""


@pytest.mark.browser
@pytest.mark.soak
def test_visits_letters_shifts_and_memory_are_measured_on_as_many_kernels_as_it_says(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, page, shift, letter, memory = json.loads(done.stdout)
    assert first[:2] == ["Result", "first visit of a cold server, 150 kernels"]
    assert shift[:2] == ["Score", "layout shift of Kernels, 150 kernels"]
    assert 0 <= shift[2] < 10
    assert 0.1 < first[2] < 120
    assert page[:2] == ["Result", "Kernels, 150 kernels"]
    assert letter[:2] == ["Result", "a letter typed in the search, 150 kernels"]
    assert memory[:2] == ["Size", "memory of the dashboard, 150 kernels"]
    assert 0.01 < page[2] < 60
    assert 0.01 < letter[2] < 60
    assert memory[2] > 50e6
    with open_cache(tmp_path / "many") as cache, cache.index.read() as connection:
        assert queries.count(connection, KernelFilter()) == 150
