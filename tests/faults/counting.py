"""What long tests count, for ``tests.faults.summary`` to print."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from cache_engine.store.lock import file_lock


def report(counts: Mapping[str, object]) -> None:
    """Adds a test's counts to the file that FAULT_REPORT names, which several processes may write at a time."""
    path = os.environ.get("FAULT_REPORT")
    if not path:
        return
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    with file_lock(Path(f"{path}.lock"), 10.0):
        tests = json.loads(Path(path).read_text()) if Path(path).exists() else {}
        tests[test] = dict(counts)
        Path(path).write_text(json.dumps(tests, indent=1, sort_keys=True) + "\n")
