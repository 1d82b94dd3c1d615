"""While the browser starts, imports the modules that pages need, in more than a second, and reads the store's index.

The modules of the first page come first. Those of other pages wait until the first page is drawn, because their import
would slow down both the server and the browser.
"""

from __future__ import annotations

import ast
import logging
import pkgutil
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Event

import app
from cache_engine.assets import assets_root
from cache_engine.errors import GemmCacheError

_FIRST = ("app/main.py", "pages/overview.py")
_LAZY = ("duckdb", "cache_engine.index.sync")  # which every page imports when it asks the index
_LATER = ("pandas", "pyarrow.compute")  # by Streamlit, for tables
_PROGRAMS = ("app.main", "app.serve")
_OURS = ("app", "cache_engine")
_SAYS_IT_IS_NO_PAGE = "streamlit.runtime.scriptrunner_utils.script_run_context"
# A reader who comes later than that finds everything imported.
_LONGEST_WAIT_S = 10.0
# Once a page has been sent, the browser asks for what draws it.
_BROWSER_S = 1.0

_drawn = Event()


def page_is_drawn() -> None:
    """Notes that a first page was sent to a browser, after which the other imports may begin."""
    _drawn.set()


def import_pages() -> None:
    """Imports the modules of the first page; then, once a page is drawn or none was requested, those of the others."""
    # That this thread draws no page is right, and nothing to print when a dashboard is started.
    logging.getLogger(_SAYS_IT_IS_NO_PAGE).setLevel(logging.ERROR)
    for script in _FIRST:
        _import(imported_by(assets_root() / script))
    _import(_LAZY)
    with suppress(GemmCacheError):  # the page will say it
        import_module("app.context").generation()
    if _drawn.wait(_LONGEST_WAIT_S):
        time.sleep(_BROWSER_S)
    _import(_LATER)
    names = (module.name for module in pkgutil.walk_packages(app.__path__, f"{app.__name__}."))
    _import(name for name in names if name not in _PROGRAMS)


def imported_by(script: Path) -> Iterator[str]:
    """The names of our modules that a script imports at its start, and of each object that it imports from them."""
    for node in ast.parse(script.read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _OURS:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _import(names: Iterator[str] | tuple[str, ...]) -> None:
    for name in names:
        with suppress(ImportError):  # of an extra that is not installed; the page that needs it says so
            import_module(name)
