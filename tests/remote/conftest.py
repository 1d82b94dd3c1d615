"""Remotes: a directory, and real servers of S3 (moto) and of Redis, started once for each process of the tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.client_process import ClientProcess
from tests.remote.redis_server import redis_server

S3: dict[str, Any] = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server with no bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.remote.s3_server", str(port)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 120
            while not _answers(address):
                assert server.poll() is None, "the S3 server ended"
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.1)
            yield address
        finally:
            server.kill()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def make_bucket(address: str, name: str) -> None:
    """Creates a bucket, as moto lets everyone."""
    request = urllib.request.Request(f"{address}/{name}", method="PUT", headers={"Authorization": "x s3 x"})
    urllib.request.urlopen(request, timeout=30).close()


@pytest.fixture(scope="session")
def _redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis_url(_redis: str) -> str:
    """An empty database."""
    import redis

    with redis.Redis.from_url(_redis) as client:
        client.flushdb()
    return _redis


@pytest.fixture(params=["directory", "s3", "redis"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Remote]:
    """An empty one of each kind."""
    url, options = f"file://{tmp_path}/remote", dict[str, Any]()
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    if request.param == "s3":
        bucket, options = f"bucket-{abs(hash(str(tmp_path)))}", {"endpoint": request.getfixturevalue("s3_server"), **S3}
        make_bucket(options["endpoint"], bucket)
        url = f"s3://{bucket}/some/folder"
    with closing(ClientProcess(url, **options)) as opened:
        yield opened
