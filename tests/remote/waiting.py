"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_so: Callable[[], bool]) -> None:
    """Waits for it, however busy the machine is; ten minutes mean that it hangs."""
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
