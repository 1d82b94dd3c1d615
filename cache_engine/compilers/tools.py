"""Finds NVIDIA's files: first in the PyPI packages, then on the system; and which versions of CUDA may compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from cache_engine.compilers.base import Cuda
from cache_engine.errors import ToolMissing
from cache_engine.model.architecture import ARCHITECTURES, CUDA_VERSIONS

HOW_TO_CHOOSE = "set GEMM_CACHE_CUDA to the version of CUDA that is to compile"
_LOCAL = Path("/usr/local")


@lru_cache(maxsize=256)
def cuda_for(asked: str, driver: tuple[int, int] | None, arch: str) -> Cuda:
    """The major versions of CUDA that may compile for a target.

    Args:
        asked: the setting ``cuda``.
        driver: the version of CUDA that the driver supports, if there is a driver; it loads no code of a later one.
        arch: a target that is not known excludes none.
    """
    versions: tuple[int, ...] = CUDA_VERSIONS
    why = []
    if asked != "auto":
        versions = (int(asked),)
        why.append(f"the setting cuda is {asked}")
    elif driver is not None and driver[0] < versions[0]:
        versions = tuple(version for version in versions if version <= driver[0])
        why.append(f"the driver is for CUDA {driver[0]}.{driver[1]}")
    known = ARCHITECTURES[arch].cuda_versions if arch in ARCHITECTURES else CUDA_VERSIONS
    if known != CUDA_VERSIONS:
        why.append(f"only CUDA {' or '.join(map(str, known))} compiles for {arch}")
    return Cuda(tuple(version for version in versions if version in known), " and ".join(why))


def package_files(pattern: str, folder: str = "cu13") -> Iterator[Path]:
    """Files of installed ``nvidia-*`` packages that match, such as ``lib/libnvrtc.so.*``.

    Args:
        folder: those for CUDA 13 share ``cu13``; for CUDA 12 each has its own, such as ``cuda_nvrtc``.
    """
    spec = find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location, folder).glob(pattern))


def toolkit_files(cuda: int, pattern: str) -> Iterator[Path]:
    """Files that match in the toolkit that ``CUDA_HOME`` names, then in those of a version in ``/usr/local``."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    installed = sorted(_LOCAL.glob(f"cuda-{cuda}*"), key=lambda path: (len(path.name), path.name), reverse=True)
    for toolkit in (*([Path(named)] if named else ()), *installed):
        yield from sorted(toolkit.glob(pattern))


def find_tool(name: str, package: str) -> Path:
    """The executable called ``name``: the package's, else the one on the path, else a toolkit's.

    Raises:
        ToolMissing: naming the package that has it.
    """
    for path in find_tools(name):
        return path
    raise ToolMissing(f"{name} is not installed; run: pip install {package}")


def find_tools(name: str) -> Iterator[Path]:
    """Every executable called ``name``, as ``find_tool`` prefers them."""
    yield from package_files(f"bin/{name}")
    on_path = shutil.which(name)
    if on_path is not None:
        yield Path(on_path)
    for version in CUDA_VERSIONS:
        yield from toolkit_files(version, f"bin/{name}")
