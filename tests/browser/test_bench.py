"""The benchmark of the dashboard measures what it says, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.bench.dashboard import dashboard
from cache_engine.bench.results import Line, Result, Size
from cache_engine.engine import open_cache
from cache_engine.mirror import queries
from cache_engine.mirror.queries import KernelFilter


@pytest.mark.browser
def test_pages_letters_and_memory_are_measured_on_as_many_kernels_as_it_says(tmp_path: Path) -> None:
    lines: list[Line] = []
    dashboard(lines.append, tmp_path, 150, titles=("Kernels",), samples=1)
    page, letter, memory = lines
    assert isinstance(page, Result)
    assert isinstance(letter, Result)
    assert isinstance(memory, Size)
    assert [line.name for line in lines] == [
        "Kernels, 150 kernels",
        "a letter typed in the search, 150 kernels",
        "memory of the dashboard, 150 kernels",
    ]
    assert 0.01 < page.seconds < 60
    assert 0.01 < letter.seconds < 60
    assert memory.size_bytes > 50e6
    with open_cache(tmp_path / "many") as cache, cache.mirror.read() as connection:
        assert queries.count(connection, KernelFilter()) == 150
