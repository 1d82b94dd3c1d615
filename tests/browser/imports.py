"""Imports what a dashboard does, for ``forked.py``."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil

import app
from tests.cli.forked import IMPORTED

# What Streamlit and the pages import when they need it.
_NEEDED = (
    "altair", "plotly.graph_objects", "pyarrow.dataset", "streamlit.web.server.starlette.starlette_app",
    "uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
)  # fmt: skip

for _name in (*IMPORTED, *_NEEDED, "cache_engine.cli.dashboard"):
    importlib.import_module(_name)
for _module in pkgutil.walk_packages(app.__path__, "app."):
    if _module.name not in ("app.main", "app.serve"):  # programs
        importlib.import_module(_module.name)
assert len(os.listdir("/proc/self/task")) == 1, "what has threads cannot be forked"
gc.collect()
gc.freeze()  # or a collection in a child would copy all that is imported


def _end_at_once() -> None:
    """DuckDB would complain of what the collector did not collect."""
    if os.getpid() == _HERE:
        os._exit(0)


_HERE = os.getpid()
atexit.register(_end_at_once)
