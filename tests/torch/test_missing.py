"""Without PyTorch, and in the ordinary suite."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed; make torch installs and tests it")
def test_the_other_modules_of_this_folder_are_tested() -> None:
    import cache_engine.torch as ours

    assert {"linear", "swap"} <= set(ours.__all__)


def test_without_pytorch_the_import_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['torch'] = None\nimport cache_engine.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ExtraMissing: cache_engine.torch needs PyTorch, which is not installed; run: pip install" in done.stderr
