"""Without PyTorch, and in the ordinary suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache

ROOT = Path(__file__).parents[2]
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed; make torch installs and tests it"
)


@needs_torch
def test_the_other_modules_of_this_folder_are_tested() -> None:
    import cache_engine.torch as ours

    assert {"linear", "swap"} <= set(ours.__all__)


def test_without_pytorch_the_import_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['torch'] = None\nimport cache_engine.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ExtraMissing: cache_engine.torch needs PyTorch, which is not installed; run: pip install" in done.stderr


@needs_torch
def test_the_readmes_snippet_runs_as_printed(tmp_path: Path) -> None:
    (snippet,) = re.findall(
        r"^```python\n(import torch\n.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    program = snippet.replace("torch.compile(model)", "torch.compile(model, backend='aot_eager')")
    assert program != snippet  # without the C++ compiler that Inductor needs
    environment = {**os.environ, "GEMM_CACHE_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout == "2 linear layers swapped, 0 left\n", done.stderr
    with open_cache(tmp_path / "store", create=False) as cache:
        assert len(list(cache.records())) == 2  # warmed


@needs_torch
def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "pytorch_model.py"), "2", "5"]
    environment = {**os.environ, "HOME": str(tmp_path), "GEMM_CACHE_DIR": str(tmp_path / "store")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    swapped, warmed, served, trained, exported = done.stdout.splitlines()
    assert swapped == "4 linear layers swapped, 0 left"
    assert warmed == "8 products warmed"
    with open_cache(tmp_path / "store", create=False) as cache:
        assert {record.arch for record in cache.records()} == {"sm_90a"}
    assert re.fullmatch(r"2 requests served, largest difference \d(e-0[5-9])?.*", served), served
    assert trained == "one step of training: loss falls"
    assert exported == "exported for any number of tokens, with 4 of our operators; 4 layers unswapped"
