"""Loaded by Python as it starts, where this folder is on its path: keeps the process from talking to other machines.

What it wanted is noted, for the test to see. CLOCK_STARTS_AT moves the clock, for pages that say how old things are.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_LOG = os.environ.get("CONNECTIONS_LOG")
_OURSELVES = ("127.0.0.1", "::1", "localhost", None)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # else the path of a local socket
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in _OURSELVES and _LOG is not None:
        with open(_LOG, "a", encoding="utf-8") as log:
            log.write(f"{event} {host!r}\n")
        raise OSError(f"{event} {host!r} is forbidden in tests")


if _LOG is not None:
    sys.addaudithook(_note)

if "CLOCK_STARTS_AT" in os.environ:
    _read, _by_s = time.time, float(os.environ["CLOCK_STARTS_AT"]) - time.time()
    time.time = lambda: _read() + _by_s
