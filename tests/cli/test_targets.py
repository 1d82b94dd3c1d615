"""``--arch``: targets by their names, chips by theirs, and what is said where neither is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing
from cache_engine.evaluator.catalogue.search import target_of
from cache_engine.gpu.probe import local_arch
from tests.cli.test_cli import document, run


@pytest.mark.parametrize(
    ("chip", "target"),
    [("H100", "sm_90a"), ("h200", "sm_90a"), ("B200", "sm_100"), ("A100", "sm_80"), ("sm_90", "sm_90"), ("X1", "X1")],
)
def test_a_chip_is_compiled_for_with_its_own_instructions(chip: str, target: str) -> None:
    assert target_of(chip) == target


def test_a_kernel_is_compiled_and_listed_by_the_name_of_a_chip(tmp_path: Path) -> None:
    made = document("compile", "8", "8", "8", "--dtype", "fp32", "--arch", "l40s", store=tmp_path)
    assert made["arch"] == "sm_89"
    document("compile", "8", "8", "8", "--dtype", "fp32", "--arch", "sm_80", store=tmp_path)
    # An L40S runs code for sm_80 too.
    assert [document("ls", "--arch", name, store=tmp_path)["total"] for name in ("L40S", "A100", "H100")] == [2, 1, 0]


def test_a_target_that_nobody_knows_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    done = run("compile", "8", "8", "8", "--arch", "H1000", store=tmp_path)
    assert done.returncode == 2
    assert "unknown architecture 'H1000'" in done.stderr
    assert "sm_107a" in done.stderr


@pytest.mark.parametrize("target", ["sm_107", "sm_107a", "sm_107f"])
def test_rubin_is_a_target(tmp_path: Path, target: str) -> None:
    assert document("compile", "64", "64", "64", "--arch", target, store=tmp_path)["arch"] == target


def test_without_a_target_and_a_gpu_the_default_is_said_in_one_line(tmp_path: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    document("compile", "8", "8", "8", "--dtype", "fp32", "--arch", "sm_80", store=tmp_path)
    done = run("explain", "64", "64", "64", store=tmp_path)
    assert done.stderr == "No --arch and no GPU here: the target is sm_90.\n"
    assert run("explain", "64", "64", "64", "--arch", "sm_90", store=tmp_path).stderr == ""


def test_nvrtc_says_which_targets_it_has() -> None:
    with pytest.raises(CompilerMissing, match=r"compiles for sm_75, .*sm_121, and not for sm_70; install"):
        COMPILERS["nvrtc"].compile("", "sm_70")
