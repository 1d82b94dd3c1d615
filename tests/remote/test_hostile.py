"""Servers that answer with what no server should: no answer ends its caller, takes its memory, or keeps it waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.cache.remote import client_process
from cache_engine.cache.remote.base import Timeouts
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.errors import RemoteError
from tests.remote.conftest import S3
from tests.remote.hostile_server import HTTP, REDIS, hostile_server

_MOST_MB = 64
"""Eight entries of 4 MiB at once, whose records are read before they are refused, and what is lost between them."""
_CASES = [
    *(("s3", name) for name in HTTP),
    *((kind, name) for kind in ("az", "gs") for name in ("200 of 100 GB", "404 of 100 GB", "redirects")),
    *(("redis", name) for name in REDIS),
]


@pytest.mark.parametrize("name", ["400 of 100 GB", "404 of 100 GB", "503 of 100 GB"])
def test_an_error_of_100_gb_is_a_failure_of_the_remote(name: str) -> None:
    """Obstore allocates its length, and aborts its process."""
    with hostile_server(HTTP[name]) as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", **S3}
        with closing(ClientProcess("s3://bucket/x", **options)) as remote:
            with pytest.raises(RemoteError, match=r"^the process that asked s3://bucket/x ended with status -6; .*MiB"):
                remote.get("a", 1)
            with pytest.raises(RemoteError, match="ended with status -6"):
                list(remote.sizes("a"))


@pytest.mark.parametrize("name", ["cursor", "cursor that repeats"])
def test_a_list_of_redis_without_an_end_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "QUIET_S", 0.5)
    with (
        hostile_server(REDIS[name], is_redis=True) as port,
        closing(ClientProcess(f"redis://127.0.0.1:{port}/0", Timeouts(1, 1, 1))) as remote,
        pytest.raises(RemoteError, match="does not come to an end of its list"),
    ):
        list(remote.sizes("gemm-cache/1"))


def test_a_list_that_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "LIST_S", 0.2)
    with hostile_server(HTTP["pages of new names"]) as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", **S3}
        with (
            closing(ClientProcess("s3://bucket/x", **options)) as remote,
            pytest.raises(RemoteError, match=r"of its list$"),
        ):
            list(remote.sizes("a"))


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "name"), _CASES)
def test_no_answer_ends_or_bloats_a_program_that_uses_the_remote(kind: str, name: str, tmp_path: Path) -> None:
    """Lookups, sending, and each command, each with a store that knows of no outage."""
    account = tmp_path / "account.json"
    with hostile_server((REDIS if kind == "redis" else HTTP)[name], is_redis=kind == "redis") as port:
        address = f"http://127.0.0.1:{port}"
        google = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": ""}
        account.write_text(json.dumps({**google, "private_key_id": ""}))
        environment = {
            **os.environ, "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x",
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AZURE_STORAGE_ENDPOINT": address,
            "AZURE_STORAGE_ACCOUNT_NAME": "x", "AZURE_STORAGE_ACCOUNT_KEY": "AAAA",
            "GOOGLE_SERVICE_ACCOUNT": str(account),
        }  # fmt: skip
        url = f"redis://127.0.0.1:{port}/0" if kind == "redis" else f"{kind}://bucket/x"
        command = [sys.executable, "-m", "tests.remote.victim", str(tmp_path), url]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, cwd=Path(__file__).parents[2]
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["served"] == []
    assert found["grown_mb"] <= _MOST_MB, found
