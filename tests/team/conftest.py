"""A real Redis, workers in processes of their own, and a directory as the remote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from cache_engine.cache.remote.clients import Objects
from cache_engine.team.broker import connected
from tests.remote.redis_server import program
from tests.trust.keys import Builder


class Redis:
    """A server without persistence, so that one that is killed has lost everything."""

    def __init__(self, folder: Path) -> None:
        if find_spec("celery") is None:
            assert not os.environ.get("CI"), "Celery is not installed"
            pytest.skip("Celery is not installed")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, empty."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "Redis did not start"
                time.sleep(0.05)

    def kill(self) -> None:
        """Kills it, and with it all that it had."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One server for the tests of a module."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def broker(shared_redis: Redis) -> Redis:
    """The server of the module, empty."""
    connected(shared_redis.url, 5.0).flushall()
    return shared_redis


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    server.start()
    yield server
    server.kill()


class Workers:
    """``gemm-cache farm worker`` processes, each killed with all its children."""

    def __init__(self, folder: Path, broker: str, remote: Objects, builder: Builder) -> None:
        self._folder, self._broker, self.remote, self._builder = folder, broker, remote, builder
        self._running: list[subprocess.Popen[bytes]] = []
        self.log = folder / "workers.log"
        self._started = 0

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Starts one more, with a store of its own."""
        self._started += 1
        store = self._folder / f"worker-{self._started}"
        command = [
            sys.executable, "-m", "cache_engine", "--store", store, "farm", "worker", "--broker", self._broker,
            "--remote", self.remote.url, "--sign", self._builder.file, "--jobs", "1", *options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)
        return process

    def kill(self) -> None:
        """Kills all of them."""
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        self._running.clear()


@pytest.fixture
def remote(tmp_path: Path) -> Objects:
    return Objects(f"file://{tmp_path}/remote")


@pytest.fixture
def workers(tmp_path: Path, redis_server: Redis, remote: Objects, builder: Builder) -> Iterator[Workers]:
    several = Workers(tmp_path, redis_server.url, remote, builder)
    yield several
    several.kill()
