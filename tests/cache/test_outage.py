"""A remote that is down: one process finds out, and those that start soon after it do not wait for the remote."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.tier import Breaker, SendQueue
from cache_engine.cache.remote.transfer import push
from cache_engine.cache.serving import remote_client
from cache_engine.errors import RemoteError
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP
from cache_engine.model.key import CacheKey
from cache_engine.process import weak
from cache_engine.store.journal import Journal
from tests.helpers import fill, make_store
from tests.remote.waiting import until
from tests.trust.keys import Builder, signers_file

Open = Callable[..., Cache]


@pytest.fixture
def there(tmp_path: Path) -> CacheKey:
    """A kernel that the remote has."""
    store, builder = make_store(tmp_path / "elsewhere"), Builder(tmp_path / "key")
    signers_file(tmp_path, f"builder@example.com {builder.line}")
    (key,) = fill(store, 1)
    push(store, Objects(f"file://{tmp_path}/remote"), [key], sign=builder.key.sign)
    return key


@pytest.fixture
def machine(tmp_path: Path, there: CacheKey) -> Open:
    """Opens a store whose lookups ask the remote."""

    def opened(**given: object) -> Cache:
        settings = {"remote": f"file://{tmp_path}/remote", "trusted_signers": tmp_path / "trusted_signers", **given}
        return open_cache(tmp_path / "store", durability="fast", **settings)  # type: ignore[arg-type]

    return opened


@pytest.fixture
def said(tmp_path: Path, machine: Open) -> Callable[..., None]:
    """Writes an event into the journal of that store, as of another process."""
    machine().close()

    def write(age_s: float, kind: str = REMOTE_DOWN, waited_s: float = 1.0, remote: str = "") -> None:
        with closing(Journal(tmp_path / "store/journal", 3600.0, now=lambda: time.time() - age_s)) as journal:
            url = remote or f"file://{tmp_path}/remote"
            took = {"detail": "it is down", "waited_us": round(waited_s * 1e6)} if kind == REMOTE_DOWN else {}
            journal.event(kind, remote=url, **took)

    return write


def _is_asked(cache: Cache, key: CacheKey) -> bool:
    return cache.get(key) is not None


@contextmanager
def _silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """The port of a server that never answers, and its connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield server.getsockname()[1], connections
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize("kind", ["redis", "s3"])
def test_of_processes_that_start_one_after_another_the_first_alone_waits(
    tmp_path: Path, there: CacheKey, kind: str
) -> None:
    code = (
        "import logging, sys\nlogging.basicConfig(format='%(message)s')\n"
        "from cache_engine import open_cache\n"
        "with open_cache(sys.argv[1], remote=sys.argv[2], trusted_signers=sys.argv[3]) as cache:\n"
        "    print(cache.get(sys.argv[4]), cache.stats().totals.failures)\n"
    )
    with _silent() as (port, connections):
        url = {"redis": f"redis://127.0.0.1:{port}/0", "s3": "s3://bucket/x"}[kind]
        access = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "x"}
        access |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        asked, warned = [], []
        for _ in range(2):
            given = (tmp_path / "store", url, tmp_path / "trusted_signers", there)
            done = subprocess.run(
                [sys.executable, "-c", code, *map(str, given)], capture_output=True, text=True, timeout=120,
                env={**os.environ, **access},
            )  # fmt: skip
            assert done.stdout == "None {'remote': 1}\n", done.stderr
            asked.append(len(connections))
            warned.append(done.stderr.count("not asked"))
    assert asked[0] > 0
    assert asked == asked[:1] * 2
    assert warned == [1, 0]


@pytest.mark.parametrize(
    ("events", "is_asked"),
    [
        ([{"age_s": 1}], False),
        ([{"age_s": 62}], True),
        ([{"age_s": -3600}], True),
        ([{"age_s": 1, "remote": "file:///another"}], True),
        ([{"age_s": 1, "waited_s": 0.01}], True),
        ([{"age_s": 2}, {"age_s": 1, "kind": REMOTE_UP}], True),
        ([{"age_s": 1}, {"age_s": 2, "kind": REMOTE_UP}], False),
        ([{"age_s": 2}, {"age_s": 1, "waited_s": 0.0}], False),
        ([{"age_s": 2}, {"age_s": -3600, "kind": REMOTE_UP}], False),
    ],
    ids=[
        "just now",
        "long ago",
        "in the future",
        "another",
        "at once",
        "answered",
        "again",
        "a fork too",
        "clock",
    ],
)
def test_a_failure_holds_others_back_while_it_is_young_and_was_waited_for(
    machine: Open, there: CacheKey, said: Callable[..., None], events: list[dict[str, float]], is_asked: bool
) -> None:
    for event in events:
        said(**event)
    with machine() as cache:
        assert _is_asked(cache, there) is is_asked
        assert cache.stats().totals.failures == {}


def test_what_a_journal_has_that_is_no_event_holds_no_one_back(
    machine: Open, there: CacheKey, said: Callable[..., None], tmp_path: Path
) -> None:
    said(1)
    (file,) = (tmp_path / "store/journal").glob("*.jsonl")
    event = json.loads(file.read_bytes().splitlines()[-1])
    bad = [
        b"\0" * 5000, b'"remote down"', b'{"kind":"remote down"}', b'{"kind":"remote down","at":1e400}',
        json.dumps({**event, "remote": [event["remote"]]}).encode(),
        json.dumps({**event, "waited_us": -1}).encode(), json.dumps({**event, "at": "now"}).encode(),
        b'{"a":' * 100_000, b'{"kind":"\xff","x":"remote down"}',
    ]  # fmt: skip
    file.write_bytes(b"\n".join(bad) + b"\n")
    (file.parent / f"{0:016x}-1-ab.jsonl").mkdir()
    (file.parent / f"{1:016x}-1-ab.jsonl").symlink_to(file)
    os.mkfifo(file.parent / f"{2:016x}-1-ab.jsonl")
    with machine() as cache:
        assert _is_asked(cache, there)


def test_who_is_held_back_asks_behind_the_callers_and_tells_the_others_when_it_answers(
    machine: Open, there: CacheKey, said: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    said(1)
    with machine() as cache:
        assert not _is_asked(cache, there)
        with machine() as other:
            assert not _is_asked(other, there)
        assert caplog.records == []
        _, breaker = cache._serving._team._connection or (None, None)
        assert breaker is not None
        breaker._queue.put(weak(breaker._ask_again))  # five seconds early
        until(lambda: not breaker.why)
        assert _is_asked(cache, there)
        until(lambda: [one.kind for one in cache.tally().recent][:1] == [REMOTE_UP])
    with machine() as other:
        assert _is_asked(other, there)


def test_what_is_wrong_with_the_settings_is_said_all_the_same(
    machine: Open, there: CacheKey, said: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    said(1)
    with machine(trusted_signers=None) as cache:
        assert cache.get(there) is None
        assert cache.stats().totals.failures == {REMOTE: 1}
    assert "the remote is not asked: " in caplog.text


def test_one_outage_is_one_warning_without_the_query_of_the_url(
    machine: Open, there: CacheKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail(*_: object) -> bytes:
        raise RemoteError("it is down")

    monkeypatch.setattr(ClientProcess, "get", fail)
    with machine(remote=f"file://{tmp_path}/remote?sig=secret") as cache:
        assert len(cache.preload([f"{number:064x}" for number in range(20)]).missing) == 20
        (event,) = [one for one in cache.tally().recent if one.kind == REMOTE_DOWN]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in warnings if "preloaded" not in text] == [
        f"file://{tmp_path}/remote is not asked until it answers: {event.detail}"
    ]
    assert "secret" not in caplog.text
    journal = b"".join(file.read_bytes() for file in (tmp_path / "store/journal").iterdir())
    assert b"it is down" in journal
    assert b"secret" not in journal


def test_the_end_waits_for_all_that_asks_and_sends_at_the_same_time(
    machine: Open, there: CacheKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However the client hangs: the thread that asks again, and the one that sends."""
    hang = threading.Event()
    hanging: list[None] = []
    waited: list[float] = []

    def ask(*_: object) -> None:
        hanging.append(None)
        hang.wait(60)
        raise RemoteError("it hung")

    def close(closed: SendQueue | Breaker, until: float) -> None:
        waited.append(until)
        ends[type(closed)](closed, until)

    ends: dict[type, Callable[..., None]] = {one: one.close for one in (SendQueue, Breaker)}
    for one in ends:
        monkeypatch.setattr(one, "close", close)
    monkeypatch.setattr(ClientProcess, "get", ask)
    monkeypatch.setattr(ClientProcess, "create", ask)
    monkeypatch.setattr(remote_client, "_SEND_S", 0.05)
    monkeypatch.setattr(remote_client, "_END_S", 0.2)
    cache = machine(remote_mode="both", signing_key=tmp_path / "key")
    try:
        client = cache._serving._team
        (key,) = fill(cache.store, 1, start=1)
        client.published(key)
        until(lambda: len(hanging) == 1)
        _, breaker = client._connection or (None, None)
        assert breaker is not None
        breaker.failed("it hangs")
        breaker._queue.put(weak(breaker._ask_again))
        until(lambda: len(hanging) == 2)
        client.close(wait=True)
        assert len(waited) == 2
        assert len(set(waited)) == 1  # one time for both, and not one after another
    finally:
        hang.set()
        cache.close()
    assert cache.stats().totals.remote_dropped == 1
