"""``compile --wait`` and ``warm --specialise dynamic``: something serves while a kernel is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import document, run

FP32 = ("--dtype", "fp32", "--arch", "sm_80")


def test_a_floor_serves_a_cold_shape_at_once_and_the_kernel_is_made_behind(place: Path, tmp_path: Path) -> None:
    table = tmp_path / "shapes.csv"
    table.write_text("n,k\n192,128\n256,128\n")
    warmed = document("warm", str(table), "--specialise", "dynamic", *FP32, store=place)
    assert (warmed["kernels"], warmed["compiled"]) == (1, 1)
    served = document("compile", 40, 192, 128, *FP32, "--wait", 0, store=place)
    assert (served["tier"], served["specialisation"], served["behind_failure"]) == ("disk", "dynamic", "")
    own = document("compile", 40, 192, 128, *FP32, store=place)
    assert (own["key"], own["stands_in_for"]) == (served["stands_in_for"], "")
    text = run("compile", "48", "256", "128", *FP32, "--wait", "0", store=place).stdout
    assert "serves for" in text
    assert "which is being compiled" in text


def test_with_nothing_there_the_verb_waits(place: Path) -> None:
    made = document("compile", 40, 192, 128, *FP32, "--wait", 0, store=place)
    assert (made["tier"], made["stands_in_for"]) == ("compiled", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compile", "8", "8", "8", "--wait", "4e6"), "0<=x<=3600000"),
        (("compile", "8", "8", "8", "--wait", "0", "--force"), "exclude each other"),
    ],
)
def test_what_contradicts_is_refused_before_anything_is_made(
    place: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = run(*arguments, store=place)
    assert (done.returncode, place.exists()) == (2, False)
    assert told in done.stderr
