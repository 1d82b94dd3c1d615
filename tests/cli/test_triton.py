"""Triton on the command line: asked for by family or compiler, and plainly refused where it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.settings.extras import how_to_install
from tests.cli.test_cli import document, run
from tests.helpers import require_triton

SHAPE = ("64", "128", "96", "--arch", "sm_90")


def test_a_triton_kernel_is_compiled_and_found_again_and_shown(tmp_path: Path) -> None:
    require_triton()
    place = tmp_path / "store"
    made = document("compile", *SHAPE, "--family", "triton", store=place)
    found = document("compile", *SHAPE, "--compiler", "triton", store=place)
    assert (made["tier"], found["tier"], made["key"]) == ("compiled", "disk", found["key"])
    assert (made["family"], made["compiler"]) == ("triton", "triton")
    assert "tl.dot(" in run("show", made["key"], "--part", "source", store=place).stdout
    shown = document("show", made["key"], store=place)["components"]
    assert shown["HIDDEN_PARAMETERS"] == "global_scratch profile_scratch"
    assert "TRITON_DISABLE_LINE_INFO=1" in shown["flags"]
    assert document("verify", store=place)["findings"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--family", "triton", "--compiler", "nvrtc"), "nvrtc cannot compile the triton family, triton can"),
        (("--family", "simt", "--compiler", "triton"), "triton cannot compile the simt family"),
        (("--compiler", "triton", "--dtype", "fp64"), "family triton does not compute fp64"),
        (("--compiler", "nvidia"), "unknown compiler 'nvidia'; use one of: nvrtc, "),
        (("--family", "nvidia"), "unknown family 'nvidia'; use one of: "),
    ],
)
def test_incompatible_options_are_refused_in_one_line(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = run("compile", *SHAPE, *options, store=tmp_path / "store")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_triton_is_exit_3_and_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom importlib import metadata\n"
        "def none(name): raise metadata.PackageNotFoundError(name)\nmetadata.distribution = none\n"
        "from cache_engine.cli.main import main\nmain()\n"
    )
    asked = ["--store", str(tmp_path / "store"), "compile", *SHAPE, "--compiler", "triton", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert how_to_install("triton") in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "CompilerMissing"
