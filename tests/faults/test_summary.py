"""What `make soak` prints at its end."""

from __future__ import annotations

from pathlib import Path

from tests.faults.summary import CAMPAIGNS, tables, with_table


def test_counts_stand_under_their_headings_and_trials_are_added_up() -> None:
    killed = "tests/faults/test_system_calls.py::test_killed_at_any_system_call_it_loses_nothing"
    lines = list(
        tables(
            {
                f"{killed}[publish]": {"trials": 1000, "reached": 999},
                f"{killed}[evict]": {"trials": 500, "reached": 500},
                "tests/faults/test_damage.py::test_no_truncation[blob]": {"damage": "every truncation", "trials": 7},
                "tests/ptx/test_a.py::test_every_mistake_is_seen[no wait]": {"trials": 1},
                "tests/ptx/test_b.py::test_every_mistake_is_seen[no wait]": {"trials": 1},
                "tests/test_b.py::test_something_else": {"trials": 10**6},
            }
        )
    )
    assert [line for line in lines if not line.startswith("  ")] == [
        "\nKilled at each system call",
        "\nDamage to files",
        "\nMistakes in kernels",
    ]
    assert [" ".join(line.split()) for line in lines if line.startswith("  ")] == [
        "evict trials 500, reached 500",
        "publish trials 1,000, reached 999",
        "together trials 1,500",
        "every truncation (blob) trials 7",
        "together trials 7",
        "a: no wait trials 1",
        "b: no wait trials 1",
        "together trials 2",
    ]


def test_the_table_of_the_documents_is_written_when_every_campaign_has_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    tests = {f"tests/f.py::{pattern.replace('(?!bytes)', 'truncation')}[{n}]": {"trials": 10**n} for n, pattern in
             enumerate(CAMPAIGNS.values())} | {"tests/f.py::test_kills_lose[more]": {"kills": 7}}  # fmt: skip
    written = with_table(page, tests)
    rows = [line for line in written.splitlines() if line not in page.splitlines()]
    assert [row.split("|")[2].strip() for row in rows] == ["1", "10", "107", "1,000", "10,000"]
    assert [row.split("|")[1].strip() for row in rows] == list(CAMPAIGNS)
    assert len(written.splitlines()) == len(page.splitlines())
    assert with_table(written, dict(list(tests.items())[1:])) == written, "a campaign is missing"
