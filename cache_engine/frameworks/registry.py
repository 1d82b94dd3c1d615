"""All sources: one for each framework here, and those of plug-ins; and which versions of the frameworks are installed.

A plug-in is a package with an entry point of the group ``gemm_cache.sources`` that loads a ``Source``, or a class that
makes one without arguments. Versions are those that the metadata of packages say: nothing is imported.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cache_engine.errors import UsageError
from cache_engine.frameworks.base import Source, Surroundings
from cache_engine.frameworks.values import Fault, Finding, Place
from cache_engine.settings import parse_place

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gemm_cache.sources"
"""The group of entry points of plug-ins."""

_HERE = (
    "triton:Triton", "vllm:VLLM", "cupy:CuPy", "cutile:CuTile", "tilelang:TileLang", "cuda_core:CudaCore",
    "flashinfer:FlashInfer", "deepgemm:DeepGemm", "sized:Jax", "sized:Inductor", "sized:ComputeCache", "sized:TensorRT",
)  # fmt: skip
"""The sources of this package: the module of ``frameworks``, and its class."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources by kind, and a finding for each plug-in that could not be loaded."""

    by_kind: Mapping[str, Source]
    findings: tuple[Finding, ...] = ()

    def places(self, where: Surroundings) -> Iterator[Place]:
        """The places that there are, each once; also those that the user names and that are not there.

        Those that are not in use here, because a variable names another, have ``replaced_by``.

        Raises:
            UsageError: when the user names a kind that there is no source for.
        """
        for kind, path in where.given:
            if kind not in self.by_kind:
                raise UsageError(f"{kind}={path}: there is no cache of this kind; there are: {', '.join(self.by_kind)}")
        seen = set()
        for source in self.by_kind.values():
            for place in source.discover(where):
                known = (place.kind, os.path.realpath(place.path))
                if known not in seen and (place.origin == "given" or os.path.lexists(place.path)):
                    seen.add(known)
                    yield place


def load_sources() -> Sources:
    """All sources. A plug-in that fails to load is a finding, and cannot replace a source of this package."""
    found: dict[str, Source] = {}
    for module, _, name in (each.partition(":") for each in _HERE):
        ours: Source = getattr(import_module(f"{__package__}.readers.{module}"), name)()
        found[ours.kind] = ours
    findings = []
    for plug_in in _plug_ins():
        try:
            loaded = plug_in.load()
            source = cast("Source", loaded() if isinstance(loaded, type) else loaded)
            if found.setdefault(source.kind, source) is not source:
                raise ValueError(f"there is a source {source.kind} already")
        except Exception as error:  # whatever a plug-in raises
            detail = f"{plug_in.value}: {type(error).__name__}: {error}; update it or remove its package"
            findings.append(Finding(Fault.PLUGIN, plug_in.name, detail))
    return Sources(found, tuple(findings))


def surroundings(given: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> Surroundings:
    """Where this user's caches are on this machine.

    Args:
        given: directories that the user names, as ``KIND=DIR``.
        environment: used instead of the process's.

    Raises:
        UsageError: when one is not of that form.
    """
    import getpass

    environment = os.environ if environment is None else environment
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.geteuid())
    home = environment.get("HOME") or os.path.expanduser("~")
    return Surroundings(
        environment, Path(home), Path(tempfile.gettempdir()), user, tuple(parse_place(text) for text in given)
    )


def _plug_ins() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


PACKAGES = {
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
    "tilelang": ("tilelang",),
    "flashinfer": ("flashinfer-python",),
}
"""The packages of the frameworks whose version is part of what is known of an entry, the usual one first."""


IN_MEMORY = {"CuTe DSL": "nvidia-cutlass-dsl"}
"""Frameworks that keep what they compile in the memory of their process alone, and the package of each.

After ``cute.compile`` of CuTe DSL 4.8.1 the directory of ``CUTE_DSL_CACHE_DIR`` was empty.
"""


def in_memory_here() -> list[str]:
    """The frameworks of ``IN_MEMORY`` in this Python environment, each with its version."""
    found = []
    for title, package in IN_MEMORY.items():
        with suppress(PackageNotFoundError):
            found.append(f"{title} {version(package)}")
    return found


def installed_version(kind: str) -> str | None:
    """The version of a framework in this Python environment; ``None`` where it is not there, or no entry has one."""
    for package in PACKAGES.get(kind, ()):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_stale(made_by: str, installed: str | None) -> bool:
    """Whether another version than the installed one made an entry; builds of one version count as the same."""
    return installed is not None and _release(made_by) != _release(installed)


def _release(text: str) -> str:
    return text.partition("+")[0]
