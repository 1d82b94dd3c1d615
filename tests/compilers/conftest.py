"""What tests of several compilers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cache_engine.compilers import triton


@pytest.fixture
def fresh() -> Iterator[triton.Triton]:
    """A compiler of the test's own, which has started nothing yet."""
    compiler = triton.Triton()
    yield compiler
    for worker in compiler._idle:
        worker.end()
