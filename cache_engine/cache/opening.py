"""The parts of a cache, by its settings: a store or none, its journal, and packs."""

from __future__ import annotations

import logging
from functools import partial

from cache_engine import logs
from cache_engine.errors import ExtraMissing, PackUnusable, StoreUnusable, UsageError
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import DecisionLog, Journal, NoJournal, fold_when_long
from cache_engine.store.pack import Pack, find_packs
from cache_engine.store.signatures import proof_for

_log = logging.getLogger(__name__)

SWITCHED_OFF = "caching is switched off"
"""Why a cache has no store, unless something else is said."""
PACKS_ALONE = "only packs are used (enable_caching = packs)"
"""Why a cache of packs alone has no store."""


def store_of(settings: Settings, *, create: bool) -> tuple[DiskStore | None, Settings, str]:
    """The store to open a ``Cache`` with, or none, the settings, and the reason why there is none.

    A directory that cannot be found, made or written, as in a read-only container, is no error where the settings name
    packs.

    Args:
        create: whether to make a store where there is none.

    Raises:
        StoreUnusable: when the directory cannot serve as a store.
    """
    if settings.log is not None:
        logs.configure(settings.log)
    if not settings.uses_directory:
        return None, settings, PACKS_ALONE if settings.enable_caching else SWITCHED_OFF
    try:
        layout = open_store(settings.directory(), trust=settings.trust_store, create=create)
    except StoreUnusable as error:
        if not (create and settings.packs and isinstance(error.__cause__, (OSError, RuntimeError))):
            raise
        _log.warning("packs are served, and kernels are cached in this process alone: %s", error)
        return None, settings, str(error)
    return DiskStore(layout, durable=settings.is_durable), settings, ""


def journal_of(store: DiskStore | None) -> Journal:
    """The journal of a store; without one, counts in memory."""
    if store is None:
        return NoJournal()
    return Journal(
        store.layout.journal,
        fold=partial(fold_when_long, store.layout),
        log=DecisionLog(store.layout),
    )


def limit_device_memory(settings: Settings) -> None:
    """Limits the pool of device memory, which all caches of the process share, where the settings say how much."""
    if settings.device_memory_bytes is not None:
        from cache_engine.gpu.memory_pool import shared_limit

        shared_limit.size_bytes = int(settings.device_memory_bytes)


def packs_of(settings: Settings, journal: Journal) -> tuple[list[Pack], list[str]]:
    """Opens the packs, if caching is on: those that can be used, and why the others cannot, warned of and counted."""
    packs, refused = [], []
    paths = find_packs(settings.packs if settings.enable_caching else ())
    if paths:
        from cache_engine.upkeep.survey import check_code
    for path in paths:
        try:
            packs.append(Pack(path, trust=settings.trust_store, check=check_code, prove=proof_for(settings)))
        except (PackUnusable, UsageError, ExtraMissing) as error:
            journal.failure(Pack.name)
            refused.append(str(error))
            _log.warning("%s", error)
    return packs, refused
