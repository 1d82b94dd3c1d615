"""What the fault tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.inject import Zygote, needs_strace


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The process that forks a child for every trial."""
    needs_strace()
    with Zygote(tmp_path_factory.mktemp("zygote")) as running:
        yield running


@pytest.fixture
def campaign(zygote: Zygote, tmp_path: Path) -> Callable[[str], Campaign]:
    """Trials of an operation by its name."""
    return lambda name: Campaign(name, zygote, tmp_path)
