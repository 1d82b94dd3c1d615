"""The DuckDB copy of a store, and every query on it. The only user of DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

    __all__ = ["Connection"]
