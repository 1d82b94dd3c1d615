"""Verbs that have left the program say in one sentence where to go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.cli.main import commands
from tests.cli.test_cli import run

PLACE = "in a checkout of the source, run: python -m benchmarks"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("bench", f"{PLACE}\n"),
        ("bench store --entries 10", f"{PLACE}\n"),
        ("bench --help", f"{PLACE}\n"),
        ("bench fleet --nodes 5", "docs/scale.md"),
        ("replay azure2023_code --load 4", f"{PLACE} replay\n"),
        ("report --replay replay.json -o replay.html", f"{PLACE} report\n"),
    ],
)
def test_a_verb_that_has_moved_says_where(arguments: str, where: str, place: Path) -> None:
    done = run(*arguments.split(), store=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert where in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not place.exists()


def test_programs_that_ask_for_json_get_the_sentence_as_an_error(place: Path) -> None:
    done = run("bench", "store", "--json", store=place)
    assert done.returncode == 2
    assert PLACE in json.loads(done.stdout)["error"]["message"]


def test_they_are_not_in_the_help() -> None:
    assert [name for name, verb in commands.commands.items() if verb.hidden] == ["bench", "replay"]
