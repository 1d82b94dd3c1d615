"""What whoever writes to the broker can do: have kernels of ours compiled, or leave workers idle, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.cache.remote.clients import Objects
from cache_engine.errors import RemoteError, UsageError
from cache_engine.team.board import FAILURES, RUN, RUNS, WORKER, WORKERS, Board, Heart, Present, Run
from cache_engine.team.broker import (
    LEASE_S,
    MOST_ANSWER_BYTES,
    Answered,
    Broker,
    CompileMessage,
    Keys,
    answered,
    connected,
    encode,
)
from cache_engine.team.progress import look
from cache_engine.team.submission import Submission, keys_there
from tests.cli.test_cli import document, run
from tests.team.conftest import Redis, Workers
from tests.team.running import InBackground, table
from tests.team.test_board import JOB, KEYS, REMOTE
from tests.team.test_kills import is_dead


def _celery(body: object, **headers: object) -> str:
    """A message as Celery writes it."""
    encoded = base64.b64encode(json.dumps(body).encode()).decode()
    delivery = {"exchange": "", "routing_key": "farm"}
    properties = {"delivery_info": delivery, "body_encoding": "base64", "delivery_tag": "t", "correlation_id": "x"}
    return json.dumps(
        {
            "body": encoded, "content-type": "application/json", "content-encoding": "utf-8",
            "headers": {"lang": "py", "task": "gemm_cache.compile", "id": "x", **headers}, "properties": properties,
        }
    )  # fmt: skip


_NO_MESSAGES = [
    "null", "[]", "x", "\x00", "[" * 100_000, json.dumps({"job": JOB}), _celery(None), _celery([[], {}, {}], id=[1]),
    _celery([[], {}, {}], timelimit="x"), _celery([["x"], {}, {}], task="os.system"), "y" * 50_000_000,
]  # fmt: skip


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_what_is_no_message_is_refused_and_counted_and_the_worker_goes_on(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    """In Celery's format, a null body, a list as id or a text as timelimit end its consumer each time it starts."""
    (one,) = table(cache, 1)
    client, keys = connected(redis_server.url, 60.0), Keys.of(remote.url)
    for text in _NO_MESSAGES:
        client.lpush(keys.queue, text)
    worker = workers.start()
    done = InBackground(Submission(redis_server.url, remote), [one]).result(workers.log)
    assert (done.compiled, done.failed, worker.poll()) == (1, {}, None)
    assert look(redis_server.url, remote.url).hours[-1].refused == len(_NO_MESSAGES)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert look(redis_server.url, remote.url).workers == ()
    log = workers.log.read_text()
    assert log.count("refused, the last: ") == 4  # the first, second, fourth and eighth
    assert "16 × 48 × 32 fp32 sm_80, simt: compiled in" in log
    assert re.search("SIGTERM: the worker finishes [01] kernels? and ends.", log)
    assert "Traceback" not in log


def test_a_worker_ends_with_the_queue_and_says_that_it_is_well(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects, tmp_path: Path
) -> None:
    """What Kubernetes and SLURM need. One message asks for a key that its problem does not have."""
    first, second = table(cache, 2)
    broker, good = Broker(redis_server.url, Keys.of(remote.url)), encode(CompileMessage.of(JOB, first))
    broker.send([good.replace(first.key, second.key), good])
    assert workers.start("--until-empty", "--health-file", str(tmp_path / "well")).wait(120) == 0
    wrong, made = map(answered, broker.answers(JOB, 5))
    assert wrong.error.startswith("this worker makes another key of it")
    assert made.compiled
    assert keys_there(remote) == {first.key}
    assert (tmp_path / "well").exists()
    assert "The queue is empty, and the worker ends." in workers.log.read_text()


@pytest.mark.soak
def test_a_second_signal_ends_a_worker_that_a_kernel_holds(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    broker = Broker(redis_server.url, Keys.of(remote.url))
    worker = workers.start()
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    _until(lambda: bool(children.read_text()))
    (child,) = children.read_text().split()
    os.kill(int(child), signal.SIGSTOP)
    broker.send([encode(CompileMessage.of(JOB, table(cache, 1)[0]))])
    _until(lambda: broker.waiting() == 0)
    worker.send_signal(signal.SIGTERM)
    _until(lambda: "SIGTERM: the worker finishes 1 kernel and ends." in workers.log.read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 1
    _until(lambda: is_dead(child))


@pytest.mark.soak
def test_a_signal_is_obeyed_while_messages_are_refused(redis_server: Redis, workers: Workers, remote: Objects) -> None:
    client, keys = connected(redis_server.url, 60.0), Keys.of(remote.url)
    client.lpush(keys.queue, *["x"] * 300_000)
    worker = workers.start()
    _until(lambda: workers.log.exists() and "1 message refused" in workers.log.read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert client.llen(keys.queue) > 0


def test_a_worker_that_does_not_go_on_is_neither_well_nor_heard_of(broker: Redis, tmp_path: Path) -> None:
    board, file, is_well = Board(broker.url, KEYS), tmp_path / "well", [False]
    heart = Heart(board, "north:7", Present("north", 7, 1, 0.0), lambda: is_well[0], file)
    heart.beat()
    assert not file.exists()
    assert look(broker.url, REMOTE).workers == ()
    is_well[0] = True
    heart.beat()
    assert file.exists()
    assert [one.name for one in look(broker.url, REMOTE).workers] == ["north:7"]
    heart.stop()
    assert look(broker.url, REMOTE).workers == ()


@pytest.mark.parametrize("name", [KEYS.name(RUN, JOB), KEYS.name(WORKER, "w"), KEYS.name(FAILURES)])
def test_the_board_is_read_with_a_bound(broker: Redis, name: str) -> None:
    """A text of 400 MB took 1.2 GB."""
    client = connected(broker.url, 60.0)
    client.zadd(KEYS.name(RUNS), {JOB: client.time()[0]})
    client.zadd(KEYS.name(WORKERS), {"w": client.time()[0]})
    text = b"x" * (12 * MOST_ANSWER_BYTES)
    if name == KEYS.name(RUN, JOB):
        client.set(name, text)
    elif name == KEYS.name(FAILURES):
        client.lpush(name, text)
    else:
        client.hset(name, "main", text)
    before = _peak_bytes()
    with suppress(RemoteError):  # said in words, or left out
        assert look(broker.url, REMOTE).runs == ()
    assert _peak_bytes() - before < 5 * MOST_ANSWER_BYTES


def test_a_board_that_is_too_large_is_an_error_in_words(broker: Redis) -> None:
    connected(broker.url, 60.0).lpush(KEYS.name(FAILURES), "x" * (MOST_ANSWER_BYTES + 1))
    with pytest.raises(RemoteError, match=r"answers with more than 8\.0 MiB, which nothing of a farm is"):
        look(broker.url, REMOTE)


def test_answers_end_while_others_push_and_one_that_is_too_long_is_dropped(broker: Redis) -> None:
    client, own, stop = connected(broker.url, 60.0), Broker(broker.url, KEYS), Event()
    name = KEYS.name("answers", JOB)
    client.rpush(name, "x" * (MOST_ANSWER_BYTES + 1), *map(str, range(1200)))
    found = [own.answers(JOB, 1.0) for _ in range(4)]
    assert [len(some) for some in found] == [0, 501, 501, 198]
    assert [one for some in found for one in some] == list(map(str, range(1200)))

    def push() -> None:
        other = connected(broker.url, 60.0)
        while not stop.is_set():
            other.rpush(name, *["x"] * 1000)

    pushing = Thread(target=push)
    pushing.start()
    try:
        assert 0 < len(own.answers(JOB, 60.0)) < 1000
    finally:
        stop.set()
        pushing.join()


def test_a_forged_error_ends_no_kernel_that_the_remote_has(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    """Nor one that is in the queue; test_kernels_whose_answers_are_lost has one that comes before its kernel."""
    (one,) = table(cache, 1)
    broker = Broker(redis_server.url, Keys.of(remote.url))
    running = InBackground(Submission(redis_server.url, remote), [one])
    forged = encode(Answered(one.key, "forged", "a liar", compiled=False, seconds=0.1))
    broker.answer(running.submission.job, forged)
    answers = Keys.of(remote.url).name("answers", running.submission.job)
    _until(lambda: not connected(redis_server.url, 5.0).exists(answers))
    workers.start()
    done = running.result(workers.log)
    assert (done.failed, done.compiled + done.found) == ({}, 1)
    assert keys_there(remote) == {one.key}


def test_an_error_of_a_worker_is_believed_of_what_the_remote_lacks(
    cache: Cache, redis_server: Redis, remote: Objects, tmp_path: Path
) -> None:
    (one,) = table(cache, 1)
    broker = Broker(redis_server.url, Keys.of(remote.url))
    running = InBackground(Submission(redis_server.url, remote), [one])
    while broker.message(1.0) is None:
        pass
    broker.answer(running.submission.job, encode(Answered(one.key, "ptxas ended", "w", compiled=False, seconds=0.1)))
    assert running.result(tmp_path).failed == {one.key: "ptxas ended"}


@pytest.mark.parametrize("ex", [None, 10 * LEASE_S])
def test_a_lease_without_an_end_stops_nothing(broker: Redis, ex: int | None) -> None:
    """Nor one that is longer than any of ours, nor a value that is no lease at all."""
    client, own, key = connected(broker.url, 5.0), Broker(broker.url, KEYS), "a" * 64
    client.set(KEYS.name("lease", key), "forged", ex=ex)
    assert own.leased([key]) == set()
    assert own.take(key, "one")
    assert not own.take(key, "two")
    assert own.leased([key, "b" * 64]) == {key}
    assert 0 < client.ttl(KEYS.name("lease", key)) <= LEASE_S
    client.delete(KEYS.name("lease", key))
    client.lpush(KEYS.name("lease", key), "x")
    assert own.take(key, "two")


@pytest.mark.soak
def test_a_lease_of_another_stops_no_other_key_and_waiting_is_said(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    first, second = table(cache, 2)
    broker = Broker(redis_server.url, Keys.of(remote.url))
    assert broker.take(first.key, "another")
    workers.start()
    running = InBackground(Submission(redis_server.url, remote), [first, second])
    assert running.some_done.wait(120)
    while keys_there(remote) != {second.key}:
        time.sleep(0.05)
    broker.renew(first.key, "another")
    _until(lambda: "waiting for 1 kernel that workers compile" in running.troubles)
    assert "another process compiles it" in workers.log.read_text()
    broker.release(first.key, "another")
    done = running.result(workers.log)
    assert (done.failed, done.compiled, done.resent) == ({}, 2, 1)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_farms_on_one_broker_are_seen_apart(broker: Redis, tmp_path: Path) -> None:
    """A farm is known by its remote, whatever the login and options of the URL."""
    mine, theirs = Keys.of(REMOTE), Keys.of("file:///other")
    Board(broker.url, mine).follows(JOB, Run("mine", [], 1, 0, 0, 0.0, 90.0))
    assert look(broker.url, None).runs == look(broker.url, REMOTE).runs
    Board(broker.url, theirs).follows(JOB, Run("theirs", [], 1, 0, 1, 0.0, 90.0))
    with pytest.raises(UsageError, match="several farms use this broker"):
        look(broker.url, None)
    client = connected(broker.url, 5.0)
    client.zadd(mine.name(RUNS), {JOB: client.time()[0] + 600})  # heard of lately, however slow this machine is
    options = ("--broker", broker.url, "--remote", REMOTE)
    done = run("farm", "status", *options, store=tmp_path / "none")
    assert "mine: 1 of 1 kernel, running, 1 min 30 s left (predicted)" in done.stdout
    assert "theirs" not in done.stdout
    assert document("farm", "status", *options, store=tmp_path / "none")["runs"][0]["predicted_s"] == 90.0
    assert Keys.of("s3://me:secret@bucket/kernels/?region=x") == Keys.of("s3://bucket/kernels")
    assert Keys.of("s3://bucket/kernels") != Keys.of("s3://bucket/others")


@pytest.mark.soak
def test_a_worker_takes_nothing_of_a_farm_with_another_remote(
    cache: Cache, redis_server: Redis, workers: Workers, tmp_path: Path
) -> None:
    other = Objects(f"file://{tmp_path}/other")
    (one,) = table(cache, 1)
    workers.start()
    waiting = InBackground(Submission(redis_server.url, other), [one])
    assert InBackground(Submission(redis_server.url, workers.remote), [one]).result(workers.log).compiled == 1
    _until(lambda: any("no worker of this remote takes 1 kernel" in each for each in waiting.troubles))
    assert Broker(redis_server.url, Keys.of(other.url)).waiting() == 1
    waiting.submission.cancel()
    assert waiting.result(workers.log).canceled == 1


@pytest.mark.soak
def test_a_run_that_waits_is_ended_by_ctrl_c(redis_server: Redis, remote: Objects, tmp_path: Path) -> None:
    (tmp_path / "model.csv").write_text("n,k\n48,80\n")
    command = [
        sys.executable, "-m", "cache_engine", "farm", "compile", tmp_path / "model.csv", "--arch", "sm_80", "--m", "16",
        "--dtype", "fp32", "--remote", remote.url, "--broker", redis_server.url,
    ]  # fmt: skip
    with subprocess.Popen(list(map(str, command)), stdout=-1, stderr=-1, text=True) as process:
        _until(lambda: Broker(redis_server.url, Keys.of(remote.url)).waiting() == 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "1 kernel withdrawn" in said
    assert Broker(redis_server.url, Keys.of(remote.url)).waiting() == 0


@pytest.mark.parametrize("answer", [b"*-5\r\n", b"+OK\r\n", b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n+a\r\n:1\r\n"])
@pytest.mark.parametrize("ask", [Broker.waiting, lambda broker: broker.message(1), lambda broker: broker.leased(["a"])])
def test_answers_that_are_not_those_of_redis_are_no_answers(ask: Callable[[Broker], object], answer: bytes) -> None:
    def serve() -> None:
        with server.accept()[0] as client:
            while client.recv(65536):
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve)
        thread.start()
        broker = Broker(f"redis://127.0.0.1:{server.getsockname()[1]}/0", KEYS, 5.0)
        with pytest.raises(RemoteError):
            ask(broker)
        broker._redis.close()
        thread.join()
