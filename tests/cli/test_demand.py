"""The verb ``demand``: tables for people, a document for programs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache_engine import GemmProblem, open_cache
from tests.cli.test_cli import run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store that was asked for two shapes, and holds no kernel."""
    with open_cache(tmp_path / "store") as cache:
        for m, n in ((16, 4096), (16, 4096), (8, 4096), (1, 14336)):
            cache.journal.asked(GemmProblem(m, n, 4096, arch="sm_90"))
    return tmp_path / "store"


def found(*arguments: object, store: Path) -> Any:
    done = run("demand", *arguments, "--json", store=store)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_document_has_the_shares_of_each_shape(place: Path) -> None:
    document = found("--since", "24h", store=place)
    assert (document["by"], document["launches"], document["half_life_hours"]) == ("shape", 4, None)
    by_n = {row["shape"]["n"]: row for row in document["shares"]}
    assert (by_n[4096]["launch_share"], by_n[14336]["launch_share"]) == (0.75, 0.25)
    assert (by_n[4096]["timed_share"], by_n[4096]["measured_share"]) == (1, 0)
    assert sum(row["time_share"] for row in document["shares"]) == pytest.approx(1)
    assert (document["gpus"], document["unpredicted"]) == ({"sm_90": {"predicted": "H100"}}, "")
    assert found(store=place)["half_life_hours"] == 168


@pytest.mark.parametrize(("by", "name"), [("kernel", "gemm_tensor_core"), ("model", "Llama-3.1-8B"), ("arch", "sm_90")])
def test_the_terminal_shows_shares_and_where_times_are_from(place: Path, by: str, name: str) -> None:
    done = run("demand", "--by", by, store=place)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout
    assert "half-life 168 h" in done.stdout
    assert "GPU times of sm_90: predicted for H100." in done.stdout


def test_a_store_that_was_asked_for_nothing_says_so(tmp_path: Path) -> None:
    open_cache(tmp_path).close()
    assert run("demand", store=tmp_path).stdout == "Nothing was asked for.\n"
    assert found(store=tmp_path)["shares"] == []


def test_what_belongs_to_no_model_says_so(tmp_path: Path) -> None:
    with open_cache(tmp_path) as cache:
        cache.journal.asked(GemmProblem(1, 8, 24, arch="sm_90"))
    assert run("demand", "--by", "model", store=tmp_path).stdout == "What was asked for belongs to no model.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "24"), "such as 24h"),
        (("--since", "0h"), "such as 24h"),
        (("--since", "-1h"), "such as 24h"),
        (("--by", "chip"), "'shape', 'kernel', 'model', 'arch'"),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(place: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("demand", *arguments, store=place)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_directory_that_is_no_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    assert run("demand", store=tmp_path / "none").returncode == 2
    assert not (tmp_path / "none").exists()
