"""Prints what the long tests counted: ``python -m tests.faults.summary FILE [PAGE]``.

FILE is the one that FAULT_REPORT named. The table of counts in PAGE, such as docs/reliability.md, is written anew if
every campaign has run.
"""

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
    "Random kills": "test_kills_lose",
    "A farm under kills": "test_two_hundred_kills",
    "Readers while others evict": "test_readers_during",
    "Contention": "test_(processes_that_ask|the_turns)",
    "Damage to files": "test_no_(?!bytes)",
    "Kernels executed as PTX": "test_every_(kind|config)",
    "Mistakes in kernels": "test_every_mistake",
}

CAMPAIGNS = {
    "system calls killed": "test_killed_at_any_system_call",
    "system calls refused": "test_any_refusal_of_any_system_call",
    "writers killed at random": "test_kills_lose",
    "a farm's processes killed": "test_two_hundred_kills",
    "bits flipped, files cut and exchanged": "test_no_(?!bytes)",
}
"""The rows of the table in the documents, and the names of their tests."""
_BEGIN, _END = "<!-- counts -->\n", "<!-- /counts -->"


def with_table(page: str, tests: Mapping[str, Counts]) -> str:
    """The page with these counts in its table; as it is where a campaign has not run.

    A trial that serves wrong bytes or loses an entry fails its test, and ``make soak`` gets here only if none failed.
    """
    rows = ["| campaign | trials | wrong bytes served, entries lost |", "|---|--:|--:|"]
    for name, pattern in CAMPAIGNS.items():
        found = [counts for test, counts in tests.items() if re.match(pattern, test.partition("::")[2])]
        trials = sum(n for counts in found if isinstance(n := counts.get("trials", counts.get("kills")), int))
        if not trials:
            return page
        rows.append(f"| {name} | {trials:,} | 0 |")
    before, _, rest = page.partition(_BEGIN)
    return "".join([before, _BEGIN, "\n".join(rows), "\n", _END, rest.partition(_END)[2]]) if rest else page


def tables(tests: Mapping[str, Counts]) -> Iterator[str]:
    """A line for each test, under its heading and its file where there are several; trials are added up.

    Args:
        tests: by their ids, such as ``tests/faults/test_kills.py::test_kills_lose``.
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
    counted = json.loads(Path(sys.argv[1]).read_text())
    print("\n".join(tables(counted)))
    for page in map(Path, sys.argv[2:]):
        page.write_text(with_table(page.read_text(), counted))
