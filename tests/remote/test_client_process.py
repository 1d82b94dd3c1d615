"""The process that asks a remote for another: it is bounded, it can be lost, and no answer goes to another question."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cache_engine.cache.remote import client_process
from cache_engine.cache.remote.base import LOOKUP, MOST_ENTRY_BYTES, Remote, Timeouts
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.errors import RemoteError, UsageError
from tests.remote.waiting import until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ClientProcess]:
    """A directory."""
    with closing(ClientProcess(f"file://{tmp_path}/remote", Timeouts(0.2, 0.2, 1))) as opened:
        yield opened


def _stop(pid: int) -> None:
    """Returns once it is stopped: on a busy machine it may go on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T")


def _number(remote: ClientProcess) -> int:
    assert remote._running is not None
    return remote._running.number


def _is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_its_memory_is_bounded_and_holds_the_largest_entries_that_are_moved_at_once(tmp_path: Path) -> None:
    data = os.urandom(MOST_ENTRY_BYTES)
    with closing(ClientProcess(f"file://{tmp_path}/remote")) as remote:
        assert resource.prlimit(_number(remote), resource.RLIMIT_DATA) == (client_process.MEMORY_BYTES,) * 2
        before = _number(remote)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda n: remote.create(f"a/{n}", data), range(8))) == [True] * 8
            assert all(pool.map(lambda n: remote.get(f"a/{n}", MOST_ENTRY_BYTES) == data, range(8)))
        assert _number(remote) == before


@pytest.mark.parametrize("seconds", [0.25, 1.5, 2.0])
def test_a_wait_for_an_answer_is_limited_to_the_microsecond(seconds: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client_process.Frames(ours).limit(seconds)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            whole, microseconds = struct.unpack("@ll", ours.getsockopt(socket.SOL_SOCKET, option, 16))
            assert whole + microseconds / 1e6 == pytest.approx(seconds, abs=0.01)  # the system rounds up to its ticks


def test_after_a_fork_parent_and_child_ask_on_each_through_its_own(remote: Remote) -> None:
    assert isinstance(remote, ClientProcess)
    remote.create("a", b"x")
    before = _number(remote)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, (remote.get("a", 1) or b"") + str(_number(remote)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as said:
        found = said.read().decode()
    assert found.startswith("x")
    assert int(found[1:]) != before
    assert (remote.get("a", 1), _number(remote)) == (b"x", before)
    until(lambda: not _is_alive(int(found[1:])))


def test_one_that_is_lost_is_a_failure_and_the_next_request_starts_another(place: ClientProcess) -> None:
    place.create("a", b"x")
    os.kill(_number(place), signal.SIGKILL)
    with pytest.raises(RemoteError, match=r"^the process that asked file://.* ended with status -9"):
        place.get("a", 1)
    assert place.get("a", 1) == b"x"


def test_one_that_hangs_is_waited_for_as_long_as_a_request_may_take_and_then_replaced(
    place: ClientProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create("a", b"x")
    stopped = _number(place)
    _stop(stopped)
    with pytest.raises(RemoteError, match=r"^file://.* has not answered within 0\.3 s$"):
        place.get("a", 1)
    assert _number(place) == stopped  # credentials that it gets are for the next request
    monkeypatch.setattr(client_process, "STUCK_S", 0.0)
    with pytest.raises(RemoteError, match="has not answered"):
        place.get("a", 1)
    assert place.get("a", 1) == b"x"
    assert not _is_alive(stopped)


def test_an_answer_that_comes_after_an_interruption_is_not_that_of_the_next_question(place: ClientProcess) -> None:
    place.create("a", b"x")
    place.create("b", b"y")

    class Interrupted(BaseException):
        """As ``KeyboardInterrupt``, which would end the tests where it comes late."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    _stop(_number(place))
    try:
        with pytest.raises(Interrupted):  # noqa: PT012 (the clock runs while it is asked)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            place.get("a", 1)
    finally:
        os.kill(_number(place), signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)
    assert place.get("b", 1) == b"y"


def test_it_ends_when_its_parent_is_killed_whatever_that_had_forked(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom cache_engine.cache.remote.client_process import open_remote\n"
        "remote = open_remote(sys.argv[1])\nremote.create('a', b'x')\n"
        "kept = remote._running  # as a thread does that asks\n"
        "if os.fork():\n    print(remote._running.number, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, f"file://{tmp_path}/remote"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        try:
            assert _is_alive(number)
            parent.kill()
            until(lambda: not _is_alive(number))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [ClientProcess.close, lambda remote: None])
def test_it_ends_when_its_remote_is_closed_or_freed(tmp_path: Path, end: Callable[[ClientProcess], None]) -> None:
    remote = ClientProcess(f"file://{tmp_path}/remote")
    number = _number(remote)
    end(remote)
    del remote
    assert not Path(f"/proc/{number}").exists()


def test_an_interruption_from_the_keyboard_reaches_only_the_program(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom cache_engine.cache.remote.client_process import open_remote\n"
        "signal.signal(signal.SIGINT, lambda *_: None)  # it ends what it has begun\n"
        "remote = open_remote(sys.argv[1])\nremote.create('a', b'x')\n"
        "os.killpg(0, signal.SIGINT)\nprint(remote.get('a', 1))\n"
    )
    command = [sys.executable, "-c", code, f"file://{tmp_path}/remote"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.stdout == "b'x'\n", done.stderr


def test_where_none_can_be_started_the_remote_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    remote = ClientProcess(f"file://{tmp_path}/remote", LOOKUP)
    with pytest.raises(RemoteError, match=r"^no process can be started to ask file://"):
        remote.get("a", 1)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(RemoteError, match=r"^no process can be started to ask file://"):
        remote.get("a", 1)


def test_a_setting_that_became_wrong_is_a_failure_of_the_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "account.json"
    account.write_text('{"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}')
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    with closing(ClientProcess("gs://bucket/x", LOOKUP)) as remote:
        remote.close()
        account.write_text("{}")
        with pytest.raises(UsageError, match="cannot be a remote"):
            ClientProcess("gs://bucket/x", LOOKUP)
        with pytest.raises(RemoteError, match="cannot be a remote"):
            remote.get("a", 1)


def test_a_list_that_is_left_half_way_harms_no_later_request(place: ClientProcess) -> None:
    for number in range(3):
        place.create(f"a/{number}", b"x")
    names = place.sizes("a")
    next(names)
    names.close()  # type: ignore[attr-defined]  # a generator
    assert len(list(place.sizes("a"))) == 3


def test_it_takes_no_time_of_a_lookup_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As importing a client did not: a slow machine would take every remote for one that fails."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 0.5\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    started = time.monotonic()
    with closing(ClientProcess(f"file://{tmp_path}/remote", Timeouts(0.2, 0.2, 1))) as remote:
        remote.close()
        assert remote.get("a", 1) is None
    assert time.monotonic() - started > 1.0
