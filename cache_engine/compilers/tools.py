"""Finds NVIDIA's files: first in the PyPI packages, then on the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from cache_engine.errors import ToolMissing


def package_files(pattern: str) -> Iterator[Path]:
    """Files of installed ``nvidia-*`` packages for CUDA 13 that match, such as ``lib/libnvrtc.so.*``."""
    spec = find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location, "cu13").glob(pattern))


def find_tool(name: str, package: str) -> Path:
    """The executable called ``name``.

    Raises:
        ToolMissing: naming the package that has it.
    """
    for path in package_files(f"bin/{name}"):
        return path
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not installed; run: pip install {package}")
    return Path(found)
