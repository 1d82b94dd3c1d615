"""Every query on adapted kernels in the mirror: those of other frameworks in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.mirror.queries import CAPABILITY, OLD_SORTS
from cache_engine.mirror.queries import SORTS as OF_OURS
from cache_engine.mirror.rows import Part, all_of, compared, fetch, matching

if TYPE_CHECKING:
    import duckdb

    from cache_engine.catalogue.fields import Condition
    from cache_engine.catalogue.searching import Search

Row = dict[str, Any]

_HITS = "coalesce(memory_hits, 0) + coalesce(pack_hits, 0) + coalesce(disk_hits, 0)"
_LAST_USED = "greatest(coalesce(last_used_at, 0), created_at)"
_USED = "adapted LEFT JOIN usage ON usage.key = adapted.key AND usage.made_at = adapted.created_at"
_COLUMNS = f"adapted.* EXCLUDE (stamp, search_text, unread), ({_HITS})::BIGINT AS hits, {_LAST_USED} AS last_used_at"

SORTS = {
    **dict.fromkeys(OF_OURS, "name"),  # by what these kernels do not have, such as a shape
    "last used": _LAST_USED,
    "created": "created_at",
    "hits": _HITS,
    "compile time": "compile_ms",
    "size": "code_bytes",
    "size on disk": "stored_bytes",
    "registers": "registers",
    "name": "name",
    "target": CAPABILITY,
    "config": "config",
    "shared memory": "shared_bytes",
    "compiler": "compiler",
}
"""Sort orders of lists: displayed name, as of ``queries.SORTS``, → SQL expression."""

_FIELDS = {
    "registers": "registers", "shared": "shared_bytes", "size": "code_bytes", "disk": "stored_bytes", "hits": _HITS,
    "compile": "compile_ms", "created": "created_at", "used": _LAST_USED, "target": "arch", "compiler": "compiler",
    "config": "config", "name": "name", "key": "adapted.key",
}  # fmt: skip
"""Fields of searches that these kernels have too: name → SQL expression."""


@dataclass(frozen=True, slots=True)
class AdaptedFilter:
    """Selects kernels that contain every word of ``text`` and, of each list that is not empty, one of its values.

    ``patterns`` and ``conditions`` are as in ``KernelFilter``. A kernel fulfils no condition on a fact that is unknown.
    """

    text: str = ""
    archs: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    targets: tuple[tuple[str, ...], ...] = ()
    patterns: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, search: Search, archs: tuple[str, ...] = (), frameworks: tuple[str, ...] = ()) -> AdaptedFilter | None:
        """The filter of a search; ``None`` if it asks for shapes, or for fields that these kernels do not have."""
        if search.shapes or any(one.field not in _FIELDS for one in search.conditions):
            return None
        return cls(search.words, archs, frameworks, search.targets, search.patterns, search.conditions)

    def where(self) -> tuple[str, list[Any]]:
        """As an SQL condition and its parameters."""
        chosen = (("arch", self.archs), ("framework", self.frameworks), *(("arch", each) for each in self.targets))
        found: list[Part] = [
            *(("contains(search_text, ?)", [word]) for word in self.text.lower().split()),
            *(part for pattern in self.patterns for part in matching(pattern)),
            *(compared(one, _FIELDS[one.field]) for one in self.conditions),
            *((f"list_contains(?, {column})", [list(values)]) for column, values in chosen if values),
        ]
        return all_of(found)


def adapted_count(connection: duckdb.DuckDBPyConnection, chosen: AdaptedFilter) -> int:
    """How many adapted kernels a filter selects."""
    condition, parameters = chosen.where()
    row = connection.execute(f"SELECT count(*) FROM {_USED} WHERE {condition}", parameters).fetchone()
    return int(row[0]) if row else 0


def adapted_kernels(
    connection: duckdb.DuckDBPyConnection,
    chosen: AdaptedFilter,
    *,
    sort: str = "last used",
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> list[Row]:
    """One page of adapted kernels; those of which the sorted fact is not known last.

    Raises:
        UsageError: when ``sort`` is not one of ``SORTS``.
    """
    sort = OLD_SORTS.get(sort, sort)
    if sort not in SORTS:
        raise UsageError(f"cannot sort by {sort!r}; use one of: {', '.join(SORTS)}")
    condition, parameters = chosen.where()
    return fetch(
        connection,
        f"SELECT {_COLUMNS} FROM {_USED} WHERE {condition} "
        f"ORDER BY {SORTS[sort]} {'DESC' if descending else 'ASC'} NULLS LAST, adapted.key LIMIT ? OFFSET ?",
        [*parameters, limit, offset],
    )


def adapted_kernel(connection: duckdb.DuckDBPyConnection, key: str) -> Row | None:
    """The row of one adapted kernel; ``None`` when there is none."""
    rows = fetch(connection, f"SELECT {_COLUMNS} FROM {_USED} WHERE adapted.key = ?", [key])
    return rows[0] if rows else None


def frameworks(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """How many adapted kernels each framework has."""
    counted = "SELECT framework, count(*) FROM adapted GROUP BY framework ORDER BY framework"
    return dict(connection.execute(counted).fetchall())
