"""``gemm-cache dashboard``: Streamlit on one store, by default only for this machine."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from cache_engine.assets import assets_root, dashboard_script, dashboard_server
from cache_engine.cli.support import Verb, open_cache
from cache_engine.errors import UsageError
from cache_engine.settings import CONFIG_VARIABLE, Settings, variable
from cache_engine.settings.extras import require
from cache_engine.units import printable
from cache_engine.upkeep.admission import is_loopback

ADDRESS = "127.0.0.1"
PORT = 8501
_MOST_PORTS = 100
_OWN_NAMES = ("127.0.0.1", "localhost")
# What others who can reach the dashboard may do: without and with an admin token, and when it is read-only.
_REACH = {
    "none": "Anyone who can reach this address can view everything and compile. Deleting and importing need a login; "
    "without one they are off. To require a token for them, set GEMM_CACHE_ADMIN_TOKEN.",
    "token": "Anyone who can reach this address can view everything and compile. Deleting and importing need the admin "
    "token.",
    "read-only": "Anyone who can reach this address can view everything. Nothing can be changed here.",
}


@click.command(
    "dashboard",
    cls=Verb,
    examples=(
        "dashboard",
        "dashboard --store ./demo-store --port 8502 --browser",
        "dashboard --host 0.0.0.0 --read-only",
        "--store ./one dashboard --also ./two --also ./three",
    ),
    done="The dashboard is stopped.",
    missing="The extra dashboard is not installed.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help=f"Port to listen on. Default: {PORT}, else the next free one."
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default=ADDRESS,
    show_default=True,
    help="Address to bind (0.0.0.0 = all interfaces).",
)
@click.option("--name", multiple=True, help="Extra allowed host name (repeatable).")
@click.option(
    "--also",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A further store to show (repeatable); the pages have a switch. Default: the setting stores.",
)
@click.option("--read-only", is_flag=True, help="Change nothing: no compile, cancel, deletion or import.")
@click.option("--browser", is_flag=True, help="Open a browser.")
@click.pass_obj
def dashboard_verb(
    settings: Settings, /, port: int | None, host: str, name: tuple[str, ...], also: tuple[Path, ...], read_only: bool,
    browser: bool,
) -> None:  # fmt: skip
    """Serve the dashboard of the store, until Ctrl-C.

    By default it listens at 127.0.0.1: only this machine can reach it. With --host, deleting and importing need the
    admin token (GEMM_CACHE_ADMIN_TOKEN) or a login, and are off without either.
    """
    with open_cache(settings, create=not read_only) as cache:
        root = cache.layout.root
    guarded = settings.admin_token is not None
    environment = {} if settings.file is None else {CONFIG_VARIABLE: str(settings.file)}
    if settings.log is not None:
        environment[variable("log")] = settings.log
    if also:
        environment[variable("stores")] = os.pathsep.join(str(one.absolute()) for one in also)
    if read_only:
        environment[variable("dashboard_read_only")] = "yes"
    listens_at = port or _free_port(host)
    read_only = read_only or settings.dashboard_read_only
    serve(
        root,
        listens_at,
        headless=not browser,
        address=host,
        names=name,
        reach=_REACH["read-only" if read_only else "token" if guarded else "none"],
        environment=environment,
    )


def serve(
    store: Path,
    port: int,
    *,
    headless: bool,
    address: str = ADDRESS,
    names: Sequence[str] = (),
    reach: str = "",
    environment: Mapping[str, str] | None = None,
) -> NoReturn:
    """Replaces this process with the dashboard's.

    Args:
        address: the address to listen on.
        names: further host names under which requests are accepted. Requests under any other name are refused;
            otherwise a website could reach the dashboard through a host name of its own.
        reach: a sentence to print: what other people who can reach the dashboard may do.
        environment: further variables for the dashboard.

    Raises:
        ExtraMissing: when Streamlit, or another package of the extra, is not installed.
        UsageError: when the port or the address is unavailable.
    """
    require("dashboard", "the dashboard")
    error = _try_port(address, port)
    if error is not None:
        where = f"port {port}" if address == ADDRESS else f"port {port} of {address}"
        raise UsageError(f"{where} is unavailable ({error.strerror or error}); choose another with --port") from error
    variables = {
        **os.environ,
        "GEMM_CACHE_DIR": str(store),
        **(environment or {}),
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
    print(printable(f"Dashboard of {store} at http://{shown}:{port} (Ctrl-C ends it)"), file=sys.stderr, flush=True)
    if not is_loopback(address):
        print(reach, file=sys.stderr, flush=True)
    os.chdir(dashboard_script().parent)
    os.execve(sys.executable, command, variables)


def _free_port(address: str) -> int:
    """The default port or, if another program listens there, the first free port after it.

    If another program takes the port before Streamlit does, Streamlit ends with an error.
    """
    for port in range(PORT, PORT + _MOST_PORTS):
        error = _try_port(address, port)
        if error is None or error.errno != errno.EADDRINUSE:
            break
    if port != PORT:
        print(f"Port {PORT} is taken; using {port}.", file=sys.stderr)
    return port


def _try_port(address: str, port: int) -> OSError | None:
    """The error that listening at a port raises; ``None`` if a program can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return None
