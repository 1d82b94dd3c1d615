"""The remote that a URL names."""

from __future__ import annotations

from cache_engine.errors import UsageError
from cache_engine.remote import key_value, objects
from cache_engine.remote.base import COMMAND, Patience, Remote
from cache_engine.units import printable

KINDS = (*objects.KINDS, *key_value.KINDS)


def open_remote(url: str, patience: Patience = COMMAND) -> Remote:
    """The remote of a URL; nothing is asked of it yet.

    Raises:
        UsageError: when it is no such URL.
        ExtraMissing: when the package that it needs is not installed.
    """
    if url.startswith(key_value.KINDS):
        return key_value.KeyValue(url, patience)
    if url.startswith(objects.KINDS):
        return objects.Objects(url, patience)
    raise UsageError(f"{printable(url[:200])!r} is not a remote; it starts with one of: {', '.join(KINDS)}")
