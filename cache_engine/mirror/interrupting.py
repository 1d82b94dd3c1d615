"""Queries that take too long, ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


@contextmanager
def interrupted_after(connection: duckdb.DuckDBPyConnection, limit_s: float | None) -> Iterator[None]:
    """Interrupts what the connection does, should the body of the ``with`` take longer."""
    if limit_s is None:
        yield
        return
    is_over = False
    lock = threading.Lock()  # nothing may interrupt a connection that is being closed

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
