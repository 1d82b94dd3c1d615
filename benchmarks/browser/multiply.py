"""An index of more rows than there are records, for benchmarks: a million files would take longer to write."""

from __future__ import annotations

from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock

_WRITE_TIMEOUT_S = 30.0


def multiply_rows(layout: StoreLayout, rows: int) -> None:
    """Copies the kernels of an index that is in sync until there are ``rows``, each with its own key and n.

    One in five is marked as used. Rows of demand are copied likewise, into earlier days: an index has at most 4,096
    shapes, but many periods. A sync keeps the copies as long as no folder of records and no demand changes.

    Raises:
        LockTimeout: when another process keeps the index busy.
    """
    import duckdb

    with file_lock(layout.index_lock, _WRITE_TIMEOUT_S), duckdb.connect(str(layout.index)) as connection:
        (present,) = connection.execute("SELECT count(*) FROM kernels").fetchone() or (0,)
        connection.execute(
            """
            INSERT INTO kernels
            SELECT kernels.* REPLACE (
                sha256(key || '/' || copy) AS key, n + 8 * copy AS n, created_at - copy AS created_at,
                search_text || ' ' || sha256(key || '/' || copy) AS search_text
            )
            FROM kernels, range(1, 1 + ?) AS copies(copy) LIMIT ?
            """,
            [-(-rows // max(1, present)), max(0, rows - present)],
        )
        (asked,) = connection.execute("SELECT count(*) FROM demand").fetchone() or (0,)
        connection.execute(
            """
            INSERT INTO demand
            SELECT demand.* REPLACE (start - 86400 * copy AS start)
            FROM demand, range(1, 1 + ?) AS copies(copy) LIMIT ?
            """,
            [-(-rows // max(1, asked)), max(0, rows - asked)],
        )
        connection.execute(
            """
            INSERT INTO usage BY NAME
            SELECT key, created_at AS made_at, 2 AS memory_hits, 0 AS pack_hits, 3 AS disk_hits, 0 AS remote_hits,
                   created_at + 60 AS last_used_at
            FROM kernels WHERE hash(key) % 5 = 0
            """
        )
