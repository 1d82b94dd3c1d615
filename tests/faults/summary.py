"""Prints what the long tests counted: ``python -m tests.faults.summary FILE``, the file that FAULT_REPORT named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

Counts = Mapping[str, object]

# Headings, and the names of the tests below each.
_TABLES = {
    "Killed at each system call": "test_killed_at_any_system_call",
    "Each system call refused": "test_any_refusal_of_any_system_call",
    "Parsers fuzzed": "test_no_bytes_that",
    "Random kills": "test_a_thousand_kills",
    "A farm under kills": "test_two_hundred_kills",
    "Readers while others evict": "test_two_minutes_of_reading",
    "Contention": "test_(sixteen|the_turns)",
    "Damage to files": "test_no_(?!bytes)",
    "Kernels executed as PTX": "test_every_(kind|config)",
    "Mistakes in kernels": "test_every_mistake",
}


def tables(tests: Mapping[str, Counts]) -> Iterator[str]:
    """A line for each test, under its heading and its file where there are several; trials are added up.

    Args:
        tests: by their ids, such as ``tests/faults/test_kills.py::test_a_thousand_kills``.
    """
    for heading, pattern in _TABLES.items():
        found = {test: counts for test, counts in sorted(tests.items()) if re.match(pattern, test.partition("::")[2])}
        if not found:
            continue
        yield f"\n{heading}"
        several = len({_file(test) for test in found}) > 1
        for test, counts in found.items():
            _, bracket, which = test.rstrip("]").partition("[")
            label = str(counts.get("damage") or counts.get("contention") or counts.get("lock") or which)
            label += f" ({which})" if bracket and label != which else ""
            numbers = (f"{what} {n:,}" for what, n in counts.items() if isinstance(n, int | float))
            yield f"  {f'{_file(test)}: {label}' if several else label:<60} {', '.join(numbers)}"
        trials = [n for counts in found.values() if isinstance(n := counts.get("trials"), int)]
        if trials:
            yield f"  {'together':<60} trials {sum(trials):,}"


def _file(test: str) -> str:
    return Path(test.partition("::")[0]).stem.removeprefix("test_")


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
