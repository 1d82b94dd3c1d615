"""Which version of each framework is installed, by the metadata of its package: nothing is imported."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

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
