"""Where NVIDIA's files are: those of the PyPI packages first, then the system's."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from cache_engine.errors import CompilerMissing, ToolMissing


def package_files(pattern: str) -> Iterator[Path]:
    """Files of installed ``nvidia-*`` packages for CUDA 13 that match, such as ``lib/libnvrtc.so.*``."""
    spec = find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location, "cu13").glob(pattern))


def find_tool(name: str, package: str) -> Path:
    """The executable called ``name``.

    Raises:
        ToolMissing: saying which package has it.
    """
    for path in package_files(f"bin/{name}"):
        return path
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not installed; run: pip install {package}")
    return Path(found)


def identities(paths: Iterable[Path]) -> tuple[tuple[int, ...], ...]:
    """What tells whether files are still the same, without reading them.

    Raises:
        CompilerMissing: when one has gone.
    """
    try:
        return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in (path.stat() for path in paths))
    except FileNotFoundError as error:
        raise CompilerMissing(f"{error.filename} has gone; install its package again, and start again") from error
