"""The document of ``migrate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from cache_engine.store.codec import FORMAT

if TYPE_CHECKING:
    from cache_engine.batch.migration import MigrationPlan
    from cache_engine.model.key import CacheKey


class MigrationRow(msgspec.Struct, kw_only=True):
    """Entries of which the same becomes; see ``batch.migration.Kind``."""

    fate: str
    reason: str
    format: int
    key_schema: str
    created_by: str
    entries: int
    stored_bytes: int


class Migration(msgspec.Struct, kw_only=True):
    """What ``migrate`` prints.

    Attributes:
        to_compile: how many kernels are compiled again.
        failed: why some of them are not stored, by key.
    """

    dry_run: bool
    store_format: int
    rows: list[MigrationRow]
    to_compile: int
    failed: dict[str, str]


def migration(plan: MigrationPlan, failed: Mapping[CacheKey, str] | None) -> Migration:
    """The document of a migration, or of its dry run, without ``failed``."""
    return Migration(
        dry_run=failed is None,
        store_format=FORMAT,
        rows=[MigrationRow(**asdict(kind), **asdict(plan.sums[kind])) for kind in sorted(plan.sums)],
        to_compile=len(plan.again),
        failed={str(key): cause for key, cause in (failed or {}).items()},
    )
