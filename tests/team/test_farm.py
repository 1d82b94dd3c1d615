"""A farm with a real broker and real workers, of which each may die at any moment or lie."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache import miss
from cache_engine.cache.cache import Cache
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.transfer import pull, push
from cache_engine.cache.selection import Selection
from cache_engine.errors import RemoteError, UsageError
from cache_engine.settings import Settings
from cache_engine.store.signatures.signers import TrustedSigners
from cache_engine.team import broker as broker_module
from cache_engine.team import submission
from cache_engine.team import worker as team_worker
from cache_engine.team.broker import Answered, Broker, CompileMessage, Keys, answered, connected, encode
from cache_engine.team.submission import MOST_SENT, Submission, keys_there
from tests.cli.test_cli import document, run
from tests.team.conftest import Redis, Workers
from tests.team.running import InBackground, table
from tests.trust.keys import Builder, signers_file


def test_a_broker_that_says_kernels_are_done_is_not_believed(
    cache: Cache, redis_server: Redis, remote: Objects, tmp_path: Path
) -> None:
    """The remote is asked, and stays empty; what answers say counts for nothing, and not for ever."""
    (one,) = table(cache, 1)
    running = InBackground(Submission(redis_server.url, remote), [one])
    broker, lie = Broker(redis_server.url, Keys.of(remote.url)), Answered(one.key, "", "a liar", True, 0.1)
    for _ in range(MOST_SENT):
        while broker.message(1.0) is None:
            pass
        for text in ("{}", encode(lie)):
            broker.answer(running.submission.job, text)
    with pytest.raises(RemoteError, match="which does not have them"):
        running.result(tmp_path)


def test_kernels_whose_answers_are_lost_are_found_in_the_remote(
    cache: Cache,
    redis_server: Redis,
    remote: Objects,
    builder: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "_QUIET_S", 0.1)
    wanted = table(cache, 3)
    running = InBackground(Submission(redis_server.url, remote), wanted)
    broker = Broker(redis_server.url, Keys.of(remote.url))
    for one in wanted[:2]:
        assert broker.message(60.0) is not None
        cache.get_or_compile(one.problem)
    # Another says that one failed: it is believed until the remote has it.
    forged = Answered(wanted[0].key, "forged", "a liar", compiled=False, seconds=0.1)
    broker.answer(running.submission.job, encode(forged))
    while running.left[-1] > 2:
        time.sleep(0.01)
    push(cache.store, remote, [one.key for one in wanted[:2]], sign=builder.key.sign)
    while running.left[-1] > 1:
        time.sleep(0.01)
    broker.cancel(running.submission.job)
    done = running.result(tmp_path)
    assert (done.found, done.compiled, done.present, done.canceled, done.failed) == (2, 0, 0, 1, {})


def test_a_canceled_job_is_dropped_and_another_is_not(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    first, second = table(cache, 2)
    broker, job = Broker(redis_server.url, Keys.of(remote.url)), "e" * 32
    broker.send([encode(CompileMessage.of(job, first))])
    broker.cancel(job)
    workers.start()
    done = InBackground(Submission(redis_server.url, remote), [second]).result(workers.log)
    assert (done.compiled, len(done.workers)) == (1, 1)
    assert keys_there(remote) == {second.key}  # one worker: the first was dropped before the second began


def test_one_compiles_a_key_at_a_time_and_its_lease_ends(redis_server: Redis) -> None:
    broker = Broker(redis_server.url, Keys(""))
    key = "a" * 64
    assert broker.take(key, "one")
    assert not broker.take(key, "two")
    broker.release(key, "two")
    client = connected(redis_server.url, 5.0)
    client.expire(Keys("").name("lease", key), 5)
    broker.renew(key, "two")
    assert client.ttl(Keys("").name("lease", key)) <= 5
    assert not broker.take(key, "two")
    redis_server.kill()
    redis_server.start()
    broker.renew(key, "one")  # the broker has lost that
    assert not broker.take(key, "two")
    broker.release(key, "one")
    assert broker.take(key, "two")


def test_a_message_that_comes_twice_is_compiled_once_however_long_that_takes(
    cache: Cache, redis_server: Redis, remote: Objects, builder: Builder, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each process has a lease of its own, and renews it."""
    monkeypatch.setattr(broker_module, "LEASE_S", 1)
    monkeypatch.setattr(team_worker, "LEASE_S", 1)
    compiled, make = list[str](), miss.make_artifact

    def slowly(selection: Selection, *rest: Any) -> Any:
        compiled.append(selection.key)
        time.sleep(3)
        return make(selection, *rest)

    monkeypatch.setattr(miss, "make_artifact", slowly)
    (one,) = table(cache, 1)
    text = encode(CompileMessage.of("d" * 32, one))
    several = [
        team_worker.Worker(
            Settings.load(dir=tmp_path / name, durability="fast"), redis_server.url, remote.url, builder.key
        )
        for name in ("first", "second")
    ]
    threads = [threading.Thread(target=worker.work, args=(text,)) for worker in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [answered(text) for text in Broker(redis_server.url, Keys.of(remote.url)).answers("d" * 32, 5)]
    assert [answer.compiled for answer in answers] == [True]
    assert compiled == [one.key]


def test_the_broker_and_a_worker_are_killed_in_the_middle_and_the_table_completes(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects, builder: Builder, tmp_path: Path
) -> None:
    wanted = table(cache, 6)
    workers.start()
    running = InBackground(Submission(redis_server.url, remote), wanted)
    assert running.some_done.wait(120), workers.log.read_text()
    redis_server.kill()
    workers.kill()
    redis_server.start()  # empty
    workers.start()
    done = running.result(workers.log)
    assert done.failed == {}
    assert done.resent > 0
    assert keys_there(remote) == {one.key for one in wanted}
    assert done.present == 0
    assert done.compiled + done.found == 6
    # What came is signed by the worker, and so another machine takes it.
    signers = TrustedSigners(signers_file(tmp_path, f"worker@farm {builder.line}"))
    taken = pull(cache.store, cache.journal, remote, [one.key for one in wanted], prove=signers.require)
    assert (taken.taken, taken.refused) == (6, ())
    assert Submission(redis_server.url, remote).run(wanted).present == 6  # nothing is asked for again


def test_a_model_is_compiled_by_a_worker_and_pulled_by_another_machine(
    redis_server: Redis,
    workers: Workers,
    remote: Objects,
    builder: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commands of docs/farm.md."""
    (tmp_path / "model.csv").write_text("n,k\n48,80\n")
    asked_for = (tmp_path / "model.csv", "--arch", "sm_80", "--m", "16", "--dtype", "fp32", "--remote", remote.url)
    workers.start()
    done = document("farm", "compile", *asked_for, "--broker", redis_server.url, store=tmp_path / "none")
    assert (done["kernels"], done["compiled"], done["failed"], len(done["workers"])) == (1, 1, [], 1)
    assert not (tmp_path / "none").exists()
    again = run("farm", "compile", *asked_for, "--broker", redis_server.url, store=tmp_path / "none")
    assert "has 1 of 1 kernel: 1 before, 0 compiled" in again.stdout
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"worker@farm {builder.line}")))
    assert document("remote", "pull", remote.url, store=tmp_path / "other")["taken"] == 1


def test_what_is_interrupted_is_withdrawn_and_the_rest_is_not(
    cache: Cache, redis_server: Redis, workers: Workers, remote: Objects
) -> None:
    first, second = table(cache, 2)
    executor, told = Submission(redis_server.url, remote), list[int]()

    def on_left(left: int) -> None:
        told.append(left)
        if len(told) == 2:  # it is sent
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run([first], on_left)
    assert executor.cancel() == 1
    workers.start()
    done = InBackground(Submission(redis_server.url, remote), [second]).result(workers.log)
    assert done.compiled == 1
    assert keys_there(remote) == {second.key}  # one worker: the first was dropped before the second began


def test_dask_is_refused_in_words(tmp_path: Path) -> None:
    for options in (("--engine", "dask"), ("--scheduler", "tls://host:8786")):
        done = run("farm", "compile", "Llama-3.1-8B", *options, store=tmp_path / "none")
        assert (done.returncode, "Dask is no longer supported, and Celery is what to use" in done.stderr) == (2, True)
    done = run("farm", "compile", "Llama-3.1-8B", "--engine", "celery", store=tmp_path / "none")
    assert "Dask" not in done.stderr


@pytest.mark.parametrize("url", ["http://host", "rediss://host", "", "redis", "amqp://host//"])
def test_what_is_no_broker_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="starts with redis://"):
        connected(url, 1.0)
