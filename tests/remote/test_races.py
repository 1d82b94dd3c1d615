"""Many processes and one key, and a server that comes and goes: nothing raises, and nothing wrong is served."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.tier import Breaker
from cache_engine.cache.remote.transfer import push
from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store
from tests.remote.conftest import S3
from tests.remote.waiting import until
from tests.trust.keys import Builder, signers_file

_KINDS = ("directory", "s3", "redis")
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": S3["access_key_id"], "AWS_SECRET_ACCESS_KEY": S3["secret_access_key"],
    "AWS_REGION": S3["region"], "AWS_ALLOW_HTTP": "true",
}  # fmt: skip


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> str:
    """Of the server of S3, where the remote is one."""
    kind = request.node.callspec.params["remote"]
    return str(request.getfixturevalue("s3_server")) if kind == "s3" else ""


@pytest.mark.parametrize(("keys", "processes"), [(1, 6), pytest.param(100, 16, marks=pytest.mark.soak)])
def test_processes_push_keys_and_are_served_one_entry_of_each(
    store: DiskStore, remote: Remote, endpoint: str, tmp_path: Path, keys: int, processes: int
) -> None:
    wanted = fill(store, keys)
    environment = {**os.environ, **_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}
    command = [sys.executable, "-m", "tests.remote.racers", str(tmp_path), remote.url, str(processes)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert all(isinstance(answer, dict) for answer in answers), answers
    loaded = [store.get(key) for key in sorted(wanted)]
    right = [hashlib.sha256(one.cubin).hexdigest() for one in loaded if one is not None]
    for answer in answers:
        served = [digest for _, digest in answer["done"]]
        # A server that keeps a lookup waiting for a second is a failure, which is counted.
        missed = [one for one, code in zip(served, right, strict=True) if one != code]
        assert missed == [""] * len(missed)
        assert bool(missed) <= bool(answer["failures"])
    assert any(digest for answer in answers for _, digest in answer["done"])
    sent = [sum(each) for each in zip(*([count for count, _ in answer["done"]] for answer in answers), strict=True)]
    assert sent == [1] * keys


@pytest.mark.parametrize("years", [-1, 1])
def test_a_clock_that_is_off_by_a_year_changes_no_answer(
    store: DiskStore, remote: Remote, endpoint: str, tmp_path: Path, builder: Builder,
    monkeypatch: pytest.MonkeyPatch, years: int,
) -> None:  # fmt: skip
    """Of the machine that sends, and then of the one that asks."""
    for name, value in {**_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint or "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    now = time.time
    settings: dict[str, Any] = {
        "remote": remote.url, "trusted_signers": signers_file(tmp_path, f"builder {builder.line}"),
        "durability": "fast",
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + years * 365 * 86_400)
        ahead, here = fill(store, 1)[0], make_store(tmp_path / "here")
        assert push(store, remote, [ahead], sign=builder.key.sign).sent == 1
    behind = fill(here, 1, start=1)[0]
    assert push(here, remote, [behind], sign=builder.key.sign).sent == 1
    with open_cache(tmp_path / "now", **settings) as cache:
        assert cache.get(ahead) == store.get(ahead)
    monkeypatch.setattr(time, "time", lambda: now() + years * 365 * 86_400)
    with open_cache(tmp_path / "off", **settings) as cache:
        assert cache.get(behind) == here.get(behind)
        assert cache.get(ahead) == store.get(ahead)


class _Door:
    """A way to a server that is closed and opened: what passes it is cut in the middle."""

    def __init__(self, port: int) -> None:
        self._server, self._open = port, threading.Event()
        self._passing: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()
        for one in tuple(self._passing):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._open.is_set():
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._server))
                self._passing |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2048):
                target.sendall(data)
        for one in (source, target):
            self._passing.discard(one)
            one.close()


def _flap(shut: Callable[[], None], open_: Callable[[], None], served: Mapping[bool, int]) -> None:
    """Down and up again, eight times, each time until something was not served, or was."""
    generator = random.Random(19)
    for change, wanted in ((shut, False), (open_, True)) * 8:
        before = served[wanted]
        change()
        until(lambda: served[wanted] > before)  # noqa: B023 (it is called here)
        time.sleep(generator.uniform(0, 0.1))


def test_of_a_remote_that_comes_and_goes_every_answer_is_right_or_none(
    store: DiskStore, remote: Remote, tmp_path: Path, builder: Builder, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And nothing raises, and once it stays, it is asked again."""
    keys = fill(store, 4)
    push(store, remote, keys, sign=builder.key.sign)
    monkeypatch.setitem(Breaker.__init__.__kwdefaults__ or {}, "first_pause_s", 0.05)
    url, kind = remote.url, request.node.callspec.params["remote"]
    if kind == "directory":
        there, away = tmp_path / "remote", tmp_path / "away"
        shut, open_ = partial(os.rename, there, away), partial(os.rename, away, there)
    else:
        address = request.getfixturevalue("s3_server") if kind == "s3" else url
        door = _Door(urlsplit(address).port or 0)
        request.addfinalizer(door.close)
        door.open()
        shut, open_ = partial(door.shut), partial(door.open)
        url = url if kind == "s3" else f"redis://127.0.0.1:{door.port}/0"
        for name, value in {**_ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{door.port}"}.items():
            monkeypatch.setenv(name, value)
    settings: dict[str, Any] = {"remote": url, "trusted_signers": signers_file(tmp_path, f"builder {builder.line}")}
    served = Counter[bool]()
    # Without a store and memory every lookup asks the remote.
    with open_cache(enable_caching="packs", memory_bytes=0, **settings) as cache:
        flapping = threading.Thread(target=_flap, args=(shut, open_, served))
        flapping.start()
        while flapping.is_alive():
            for key in keys:
                loaded = cache.get(key)
                assert loaded in (None, store.get(key))
                served[loaded is not None] += 1
            time.sleep(0.002)
        flapping.join()
        assert min(served[True], served[False]) >= 8, served
        until(lambda: cache.get(keys[0]) == store.get(keys[0]))
