"""What all tests on a GPU share. They run under a GPU machine's own Python, with what needs.py asks for and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.gpu.probe import gpu
from cache_engine.model.fingerprint import DeviceFingerprint

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them; CuPy and PyTorch may warn of what they like on a machine that is not ours."""
    device, here = gpu(), f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not isinstance(device, DeviceFingerprint):
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {device}"))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """One cache for all tests, so that a kernel is compiled once."""
    with open_cache(tmp_path_factory.mktemp("gpu") / "store", durability="fast") as opened:
        yield opened
