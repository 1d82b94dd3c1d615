"""Helion's results of tuning in our store: a backend of its remote cache.

``HELION_REMOTE_CACHE_BACKEND=cache_engine.adapters.helion.Backend``, with Helion's ``RemoteAutotuneCache``. Each result
is a bundle, so packs, remotes, signatures and pins work on it as on kernels. Helion takes any error of this module for
a miss, and tunes. Interface: ``helion/autotuner/remote_cache.py`` of Helion 1.5.1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from helion.autotuner.remote_cache import RemoteCacheBackend

from cache_engine.adapters.shelf import Shelf, shelf
from cache_engine.errors import StoreError
from cache_engine.frameworks.bundle_packs import CONFIG, HELION, check
from cache_engine.frameworks.bundles import Group


class Backend(RemoteCacheBackend):  # type: ignore[misc]  # Helion is not installed where types are checked
    """Reads and writes Helion's results of tuning in the store that the settings name."""

    def get(self, key: str) -> str | None:
        """The result of tuning for a key, as JSON; ``None`` where the store has none."""
        found = _shelf().get(HELION, key, CONFIG)
        return None if found is None else found.group.files[CONFIG].decode()

    def put(self, key: str, data: str) -> None:
        """Stores the result of tuning for a key; raises ``CorruptEntry`` where ``data`` is no such result."""
        group = Group(HELION, key, CONFIG, {CONFIG: data.encode()}, time.time())
        check(group)
        _shelf().put(group)

    def list(self, max_results: int | None = None) -> Iterable[str]:
        """The results of tuning in the store, the newest first."""
        found = sorted(_shelf().groups(HELION), key=lambda group: -group.made_at)
        return [group.files[CONFIG].decode() for group in found[:max_results]]


def _shelf() -> Shelf:
    found = shelf()
    if found is None:
        raise StoreError("the store cannot be used")
    return found
