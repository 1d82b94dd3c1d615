"""Serving the dashboard: Streamlit, on one store, for this machine only unless told otherwise."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from cache_engine.assets import assets_root, dashboard_script, dashboard_server
from cache_engine.errors import NotHereError, UsageError
from cache_engine.upkeep.admission import is_loopback

ADDRESS = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost")
# What whoever opens it to others should know, without and with an admin token.
_REACH = (
    "Whoever reaches it can look at everything and compile; deleting and importing need a login, or are off. "
    "Set GEMM_CACHE_ADMIN_TOKEN to have it ask for a token.",
    "Whoever reaches it can look at everything and compile; deleting and importing ask for the admin token.",
)


def serve(
    store: Path, port: int, *, headless: bool, address: str = ADDRESS, names: Sequence[str] = (), guarded: bool = False
) -> NoReturn:
    """Becomes the dashboard's process; ends with it.

    The settings that keep it to this machine are in ``app/.streamlit/config.toml``; what is given here goes before.

    Args:
        address: where to listen.
        names: under which others ask for it, besides the address itself; a request for any other name is refused, or a
            page on the web could reach it under a name of its own.
        guarded: whether an admin token is set; only told.

    Raises:
        NotHereError: when Streamlit is not installed.
        UsageError: when it cannot listen there.
    """
    if find_spec("streamlit") is None:
        raise NotHereError("the dashboard needs Streamlit; run: pip install streamlit")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            where = f"port {port}" if address == ADDRESS else f"port {port} of {address}"
            raise UsageError(f"{where} cannot be had ({error.strerror or error}); give another with --port") from error
    environment = {
        **os.environ,
        "GEMM_CACHE_DIR": str(store),
        # Streamlit puts the script's own folder on the path; the pages import from the one above.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(assets_root()), os.environ.get("PYTHONPATH")))),
    }
    options = {
        "server.port": port,
        "server.headless": headless,
        "server.address": address,
        "server.allowedHosts": list(dict.fromkeys((*_OWN_NAMES, address, *names))),
    }
    command = [sys.executable, str(dashboard_server()), json.dumps(options)]
    shown = f"[{address}]" if ":" in address else address
    print(f"Dashboard of {store} at http://{shown}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if not is_loopback(address):
        print(_REACH[guarded], file=sys.stderr, flush=True)
    os.chdir(dashboard_script().parent)
    os.execve(sys.executable, command, environment)
