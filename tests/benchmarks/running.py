"""Running ``python -m benchmarks``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cli import forked


def run(*arguments: object, store: Path) -> subprocess.CompletedProcess[str]:
    """What it prints, and its exit code."""
    return forked.run(["--store", str(store), *map(str, arguments)], cwd=None, timeout=600, module="benchmarks")
