"""Maintenance of a store: cleaning, checking, quarantine, packs, and permissions.

A hit needs none of ``decisions``, ``integrity``, ``packs`` and ``quarantine``, so they are imported at their first use.
``admin`` offers all of this for one store, as ``Cache.admin``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cache_engine.upkeep import decisions, integrity, packs, quarantine

__all__ = ["decisions", "integrity", "packs", "quarantine"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
