"""Pinned keys, whose entries no automatic cleaning deletes.

Each pin is an empty file, so two processes or two versions of the program never overwrite each other's pins.
"""

from __future__ import annotations

import os
from contextlib import suppress

from cache_engine.errors import StoreError
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import sync_folder

MOST_PINS = 10_000

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def pinned_keys(layout: StoreLayout) -> frozenset[CacheKey]:
    """All pinned keys, whether or not the store has their entries."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return frozenset(CacheKey(name) for name in os.listdir(layout.pins) if is_key(name))
    return frozenset()


def is_pinned(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether a key is pinned."""
    return os.path.lexists(layout.pin_path(key))


def pin(layout: StoreLayout, key: CacheKey) -> None:
    """Pins a key; after this returns, a power cut does not remove the pin.

    Raises:
        StoreError: when the store already has the largest number of pins.
        OSError: when the disk cannot be written.
    """
    if len(pinned_keys(layout) - {key}) >= MOST_PINS:
        raise StoreError(f"{MOST_PINS:,} kernels are pinned, and no more can be; gemm-cache pin --remove ends some")
    with suppress(FileExistsError):
        layout.pins.mkdir(mode=0o700)
        sync_folder(str(layout.root))
    os.close(os.open(layout.pin_path(key), _FLAGS, 0o600))
    sync_folder(str(layout.pins))


def unpin(layout: StoreLayout, key: CacheKey) -> None:
    """Unpins a key, if it is pinned.

    Raises:
        OSError: when the disk cannot be written.
    """
    with suppress(FileNotFoundError):
        os.unlink(layout.pin_path(key))
        sync_folder(str(layout.pins))
