"""make gpu reports what a GPU machine's own Python lacks, before anything fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.gpu.probe import gpu
from tests.gpu import needs
from tests.helpers import needs_host_compiler

ROOT = Path(__file__).parent.parent


def _ask(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "tests/gpu/needs.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def test_this_python_has_all_that_is_needed() -> None:
    assert _ask().returncode == 0


def test_a_bare_python_reports_everything_missing_and_what_to_do() -> None:
    done = _ask("-S")  # without any installed package
    assert done.returncode == 3
    for name in needs.NEEDED:
        assert f"  {name}: " in done.stderr
    assert "-m pip install cupy-cuda13x numpy" in done.stderr
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"make gpu-packages GPU_PYTHON_VERSION={version}" in done.stderr
    assert "not here, and left out: triton, for the triton family" in done.stderr


@needs_host_compiler
def test_for_a_driver_for_cuda_12_packages_for_cuda_12_are_named(driver: Path) -> None:
    done = _ask("-S", LD_LIBRARY_PATH=str(driver), DRIVER="12040")
    assert "-m pip install cupy-cuda12x numpy" in done.stderr


def test_the_gpu_packages_are_those_that_make_fetches() -> None:
    (carried,) = re.findall(r"^CARRIED := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert carried.split() == [*needs.CARRIED, needs.CUOBJDUMP]


@pytest.mark.skipif(not isinstance(gpu(), str), reason="a GPU is here")
def test_without_a_gpu_its_tests_are_skipped_with_the_reason() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CI": ""})
    assert done.returncode == 0, done.stdout
    assert f"needs a GPU: {gpu()}" in done.stdout
    assert re.search(r"\d{3} skipped in", done.stdout)
    assert "passed" not in done.stdout
