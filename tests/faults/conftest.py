"""What the fault tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.inject import Zygote, needs_strace


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The process that forks a child for every trial."""
    with Zygote(tmp_path_factory.mktemp("zygote")) as running:
        yield running


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where the machine has one: each trial makes a store, syncs it and deletes it."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 256 * 2**20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def campaign(zygote: Zygote, in_memory: Path) -> Callable[[str], Campaign]:
    """Trials of an operation by its name."""
    needs_strace()
    return lambda name: Campaign(name, zygote, in_memory)
