"""The remote that a URL names."""

from __future__ import annotations

from cache_engine.cache.remote import key_value, objects
from cache_engine.cache.remote.base import COMMAND, Timeouts
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.errors import UsageError
from cache_engine.units import printable

KINDS = (*objects.KINDS, *key_value.KINDS)


def open_remote(url: str, patience: Timeouts = COMMAND) -> ClientProcess:
    """The remote of a URL; nothing is asked of it yet.

    Raises:
        UsageError: when it is no such URL.
        ExtraMissing: when the package that it needs is not installed.
    """
    if url.startswith(KINDS):
        return ClientProcess(url, patience)
    raise UsageError(f"{printable(url[:200])!r} is not a remote; it starts with one of: {', '.join(KINDS)}")
