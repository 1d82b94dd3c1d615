"""Which version of each framework is installed, by the metadata of its package: nothing is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = {
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
    "tilelang": ("tilelang",),
    "flashinfer": ("flashinfer-python",),
}
"""The packages of the frameworks whose version is part of what is known of an entry, the usual one first."""


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
