"""The DuckDB copy of a store, and every query on it. The only user of DuckDB."""
