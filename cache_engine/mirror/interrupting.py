"""Interrupts queries that take too long, and those that Ctrl-C interrupts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


@contextmanager
def interrupted_after(connection: duckdb.DuckDBPyConnection, limit_s: float | None) -> Iterator[None]:
    """Interrupts the connection if the body of the ``with`` takes longer."""
    if limit_s is None:
        yield
        return
    is_over = False
    lock = threading.Lock()  # a connection that is being closed must not be interrupted

    def interrupt() -> None:
        with lock:
            if not is_over:
                connection.interrupt()

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True


@contextmanager
def passing_on_ctrl_c() -> Iterator[None]:
    """Raises ``KeyboardInterrupt`` where DuckDB raises ``RuntimeError`` instead of what a signal handler raised."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != "Query interrupted":
            raise
        raise KeyboardInterrupt from error
