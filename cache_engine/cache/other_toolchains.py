"""Finds kernels that other toolchains made: packs and the store name these toolchains.

A key contains the build of the compiler. If this machine has another build, or no compiler, a key with the build that
the pack names finds the pack's kernel. All other parts of the key (problem, config, template, flags, target) are those
of this program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.logs import Log
from cache_engine.model.artifact import Record
from cache_engine.model.fingerprint import Provenance, ToolchainFingerprint
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore

if TYPE_CHECKING:
    from cache_engine.store.pack import Pack

_log = Log(__name__)

STORE = "store"
"""The origin of a toolchain that is named by records of the store."""
MOST_TOOLCHAINS = 32
"""The largest number of toolchains of each compiler that a lookup tries, those of packs first."""

_MOST_RECORDS = 10_000


class Stated(msgspec.Struct, frozen=True):
    """A toolchain, and where it is named as the maker of kernels: ``pack NAME`` or ``store``."""

    toolchain: ToolchainFingerprint
    source: str


class OtherToolchains:
    """The packs and the store of a process, and the toolchains that made their kernels.

    Safe to use from several threads.

    Packs are read when a lookup first needs them. The store's first 10,000 records are read once in a process, when no
    pack has a kernel.

    Attributes:
        packs: the open packs, in the order of the settings.
        refused: the reason for each pack that could not be opened.
        useless: by path, the reason why an open pack can serve no kernel here; ``pack_state.check_packs`` sets it.
    """

    def __init__(self, packs: Sequence[Pack], store: DiskStore | None, refused: Sequence[str] = ()) -> None:
        """Reads nothing yet."""
        self.packs, self.refused, self._store = tuple(packs), tuple(refused), store
        self.useless: dict[Path, str] = {}
        self._by_packs: dict[str, tuple[Stated, ...]] | None = None
        self._by_store: dict[str, tuple[Stated, ...]] | None = None

    def of_packs(self, compiler: str) -> tuple[Stated, ...]:
        """The toolchains of a compiler that made kernels of the packs."""
        if self._by_packs is None:
            self._by_packs = _by_compiler(self._in_packs())
        return self._by_packs.get(compiler, ())

    def of_store(self, compiler: str) -> tuple[Stated, ...]:
        """The toolchains of a compiler that made kernels of the store."""
        if self._by_store is None:
            self._by_store = _by_compiler(self._in_store())
        return self._by_store.get(compiler, ())

    def has(self, key: CacheKey) -> bool:
        """Whether a pack or the store has the key. Does not read or check the entry."""
        for pack in self.packs:
            with suppress(CorruptEntry, OSError):
                if pack.has(key):
                    return True
        return self._store is not None and os.path.exists(self._store.layout.record_path(key))

    def packed(self) -> Iterator[Record]:
        """Records of the packs, the first 10,000 of each, without those that cannot be read."""
        for pack in self.packs:
            try:
                yield from pack.records()
            except OSError as error:
                _log.warning("pack %s cannot be read: %s", pack.path, error.strerror or error)

    def _in_packs(self) -> Iterator[Stated]:
        for pack in self.packs:
            try:
                for made in pack.made_with:
                    yield Stated(made.toolchain, f"pack {pack.path.name}")
            except OSError as error:
                _log.warning("pack %s cannot be read: %s", pack.path, error.strerror or error)

    def _in_store(self) -> Iterator[Stated]:
        try:
            for record in islice(self._store.records() if self._store is not None else (), _MOST_RECORDS):
                yield Stated(Provenance.of(record.components).toolchain, STORE)
        except (OSError, StoreError) as error:
            _log.warning("the store's records cannot be read: %s", error)


def _by_compiler(stated: Iterable[Stated]) -> dict[str, tuple[Stated, ...]]:
    """The toolchains by compiler, each listed once, with the place that first named it.

    Leaves out toolchains that no key can contain.
    """
    found: dict[str, dict[ToolchainFingerprint, Stated]] = {}
    for each in stated:
        one = each.toolchain
        if one.compiler and one.version and one.build:
            found.setdefault(one.compiler, {}).setdefault(one, each)
    return {compiler: tuple(islice(each.values(), MOST_TOOLCHAINS)) for compiler, each in found.items()}
