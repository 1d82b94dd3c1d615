"""Serving the dashboard: Streamlit, on this machine only, on one store."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from cache_engine.assets import assets_root, dashboard_script, dashboard_server
from cache_engine.errors import NotHereError, UsageError

ADDRESS = "127.0.0.1"


def serve(store: Path, port: int, *, headless: bool) -> NoReturn:
    """Becomes the dashboard's process; ends with it.

    The settings that keep it to this machine are in ``app/.streamlit/config.toml``: given on the command line, the list
    of allowed hosts would reject every request (Streamlit 1.67).

    Raises:
        NotHereError: when Streamlit is not installed.
        UsageError: when the port is taken.
    """
    if find_spec("streamlit") is None:
        raise NotHereError("the dashboard needs Streamlit; run: pip install streamlit")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise UsageError(f"port {port} cannot be had ({error.strerror}); give another with --port") from error
    environment = {
        **os.environ,
        "GEMM_CACHE_DIR": str(store),
        # Streamlit puts the script's own folder on the path; the pages import from the one above.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(assets_root()), os.environ.get("PYTHONPATH")))),
    }
    options = [f"--server.port={port}", f"--server.headless={str(headless).lower()}"]
    command = [sys.executable, str(dashboard_server()), "run", str(dashboard_script()), *options]
    print(f"Dashboard of {store} at http://{ADDRESS}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    os.chdir(dashboard_script().parent)
    os.execve(sys.executable, command, environment)
