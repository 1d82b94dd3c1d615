"""Notes and tags on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import document, run
from tests.helpers import make_store


def test_notes_and_tags_are_written_shown_and_found(compiled_store: Path) -> None:
    first, second, *_ = sorted(make_store(compiled_store).keys())
    told = document(
        "pin", first[:12], second, "--tag", "prod", "--tag", "b", "--note", "slow on B200", store=compiled_store
    )
    assert told == {"changed": [first, second], "pinned": []}, "nothing is pinned"
    assert document("show", first, store=compiled_store)["note"] == "slow on B200 #b #prod"
    rows = document("ls", "tag=prod", "note=*b200*", store=compiled_store)["rows"]
    assert {(row["key"], row["tags"], row["note"]) for row in rows} == {
        (key, "b prod", "slow on B200") for key in (first, second)
    }
    document("pin", first, "--remove", "--tag", "b", store=compiled_store)
    document("pin", first, "--note", "", store=compiled_store)
    assert document("show", first, store=compiled_store)["note"] == "#prod"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--tag", "prod"), "give the keys"),
        (("{key}", "--note", "x", "--remove"), "--remove goes with --tag"),
        (("{key}", "--note", "a\nb"), "one line"),
        (("{key}", "--note", "x" * 501), "at most 500 letters"),
        (("{key}", "--tag", "A B"), "is not a tag"),
    ],
)
def test_what_is_not_allowed_is_refused(compiled_store: Path, arguments: tuple[str, ...], why: str) -> None:
    key = next(iter(make_store(compiled_store).keys()))
    done = run("pin", *(each.replace("{key}", key) for each in arguments), store=compiled_store)
    assert done.returncode == 2
    assert why in done.stderr
    assert not (compiled_store / "notes").exists()
