"""What a farm says of itself: in bounded time, and whatever a broker says, it is text of a page and nothing else."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cache_engine.batch.tuning import all_candidates
from cache_engine.cache.cache import Cache
from cache_engine.cache.remote.clients import Objects
from cache_engine.errors import RemoteError, UsageError
from cache_engine.insight.coverage import cover
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.shapes import Shape, parse_sizes
from cache_engine.team import submission as team_submission
from cache_engine.team.board import (
    FAILURES,
    GONE_S,
    HOUR,
    MOST_FAILURES,
    RUN,
    RUNS,
    WORKER,
    WORKERS,
    Board,
    Present,
    Run,
    eta_s,
)
from cache_engine.team.broker import Broker, CompileMessage, Keys, connected, encode
from cache_engine.team.progress import (
    MOST_RUNS,
    MOST_WORKERS,
    NOT_FOLLOWED,
    RUNNING,
    Following,
    Watcher,
    by_demand,
    compile_times,
    look,
)
from cache_engine.team.submission import Submission
from cache_engine.usage.demand import Ledger
from tests.cli.test_cli import run
from tests.team.conftest import Redis

JOB = "a" * 32
REMOTE = "file:///farm"
KEYS = Keys.of(REMOTE)


def beats(url: str) -> None:
    """A worker of four processes, heard of in a moment that comes while a test runs, however slow the machine is."""
    board = Board(url, KEYS)
    board.beat("north:7", Present("north", 7, 4, 0.0))
    connected(url, 5.0).zadd(KEYS.name(WORKERS), {"north:7": board.now() + 600})


def _problem(n: int = 48) -> GemmProblem:
    return GemmProblem(16, n, 32, dtype=DType.FP32, arch="sm_80")


@pytest.fixture
def message(cache: Cache) -> CompileMessage:
    return CompileMessage.of(JOB, cache.select(_problem()))


def test_what_workers_say_is_seen(broker: Redis, message: CompileMessage) -> None:
    board = Board(broker.url, KEYS)
    beats(broker.url)
    board.begins("north:7", message)
    farm = look(broker.url, REMOTE)
    (worker,) = farm.here
    assert (worker.name, worker.present.processes, farm.processes) == ("north:7", 4, 4)
    assert [one.kernel for one in worker.doing] == ["16 × 48 × 32 fp32 sm_80, simt"]
    board.ends("north:7", message, compiled=True, error="")
    board.ends("north:7", message, compiled=False, error="")
    board.ends("north:7", message, compiled=False, error="ptxas ended")
    board.gone("south:1")
    farm = look(broker.url, REMOTE)
    assert farm.here[0].doing == ()
    last = farm.hours[-1]
    assert (last.compiled, last.found, last.failed) == (1, 1, 1)
    assert [(one.error, one.worker) for one in farm.failures] == [("ptxas ended", "north:7")]
    board.gone("north:7")
    assert look(broker.url, REMOTE).workers == ()


def test_a_process_that_ended_does_nothing_and_a_worker_not_heard_of_is_gone(
    broker: Redis, message: CompileMessage
) -> None:
    board, client = Board(broker.url, KEYS), connected(broker.url, 1.0)
    board.beat("north:7", Present("north", 7, 4, 0.0))
    client.hset(KEYS.name(WORKER, "north:7"), "999999999", '{"key":"","kernel":"lost","since":1}')
    assert len(look(broker.url, REMOTE).workers[0].doing) == 1
    board.beat("north:7", Present("north", 7, 4, 0.0))
    assert look(broker.url, REMOTE).workers[0].doing == ()
    client.zadd(KEYS.name(WORKERS), {"north:7": board.now() - GONE_S - 1})
    farm = look(broker.url, REMOTE)
    assert (len(farm.workers), farm.here) == (1, [])


def test_of_more_than_two_hundred_workers_those_last_heard_of_are_read(broker: Redis) -> None:
    board, client = Board(broker.url, KEYS), connected(broker.url, 5.0)
    board.beat("w0", Present("north", 7, 4, 0.0))
    text = client.hgetall(KEYS.name(WORKER, "w0"))
    for number in range(MOST_WORKERS + 1):
        client.hset(KEYS.name(WORKER, f"w{number}"), mapping=text)
        client.zadd(KEYS.name(WORKERS), {f"w{number}": board.now() + number})
    seen = [one.name for one in look(broker.url, REMOTE).workers]
    assert seen == [f"w{number}" for number in range(MOST_WORKERS, 0, -1)]


def test_of_more_runs_and_failures_than_are_shown_the_last_are_read(broker: Redis, message: CompileMessage) -> None:
    board, client = Board(broker.url, KEYS), connected(broker.url, 5.0)
    board.ends("north:7", message, compiled=False, error="ptxas ended")
    client.lpush(KEYS.name(FAILURES), *client.lrange(KEYS.name(FAILURES), 0, 0) * MOST_FAILURES)
    jobs = [f"{number:032x}" for number in range(MOST_RUNS + 1)]
    for number, job in enumerate(jobs):
        board.follows(job, Run("a model", ["sm_80"], 4, 0, 4, board.now(), 0))
        client.zadd(KEYS.name(RUNS), {job: board.now() + number})
    farm = look(broker.url, REMOTE)
    assert len(farm.failures) == MOST_FAILURES
    assert [one.job for one in farm.runs] == jobs[:0:-1]


def test_a_run_says_how_far_it_is_and_when_it_will_end(broker: Redis, cache: Cache) -> None:
    board = Board(broker.url, KEYS)
    beats(broker.url)
    times = compile_times(cache)
    selections = [cache.select(_problem(48 + 16 * n)) for n in range(4)]
    following = Following(board, JOB, "a model", selections, times)
    following.left(3)
    (seen,) = look(broker.url, REMOTE).runs
    assert (seen.run.kernels, seen.run.present, seen.run.left, seen.state) == (4, 1, 3, RUNNING)
    assert following.processes == 4
    assert seen.run.archs == ["sm_80"]
    assert 0 < following.left(0) + seen.run.eta_s <= 1.01 * sum(times.seconds(one) for one in map(_compile, selections))
    connected(broker.url, 1.0).zadd(KEYS.name(RUNS), {JOB: board.now() - GONE_S - 1})
    assert look(broker.url, REMOTE).runs[0].state == NOT_FOLLOWED
    following.end()
    assert look(broker.url, REMOTE).runs[0].state == "ended"
    Broker(broker.url, KEYS).cancel(JOB)
    assert look(broker.url, REMOTE).runs[0].state == "canceled"


def _compile(selection: Any) -> Any:
    from cache_engine.cache.miss import compile_of

    return compile_of(selection)


def test_the_end_is_predicted_by_processes_first_and_by_what_was_seen_later() -> None:
    assert eta_s(100, 0, 0, 4) == 25
    assert eta_s(100, 0, 0, 0) == 100
    # 1000 predicted seconds of work took 1000: one process's worth, whatever the workers claim.
    assert 90 < eta_s(100, 1000, 1000, 4) < 100
    assert eta_s(0, 100, 50, 4) == 0


HOSTILE = "<script>alert(1)</script> **bold** [x](javascript:1) \x1b[31m\u202e"


def fill_with_lies(url: str) -> None:
    """What a hostile broker may hold."""
    client = connected(url, 1.0)
    now = client.time()[0]
    present = json.dumps({"host": HOSTILE, "pid": 1, "processes": 2, "since": now})
    doing = json.dumps({"key": HOSTILE, "kernel": HOSTILE, "since": now})
    run_of = {"table": HOSTILE, "archs": [HOSTILE], "kernels": 5, "present": 0, "left": 9, "since": now, "eta_s": 1e9}
    for name, said in {HOSTILE: present, "b": "{}", "c": "[" * 3000, "d": "x" * 100_000, "e": present[:-1]}.items():
        client.zadd(KEYS.name(WORKERS), {name: now})
        client.hset(KEYS.name(WORKER, name), mapping={"main": said, "5": doing, "x": "y"})
    for job, said in {JOB: json.dumps(run_of), HOSTILE: json.dumps(run_of), "b" * 32: '{"left": -1}'}.items():
        client.zadd(KEYS.name(RUNS), {job: now})
        client.set(KEYS.name(RUN, job), said)
    failed = json.dumps({"at": now, "key": HOSTILE, "kernel": HOSTILE, "error": HOSTILE, "worker": HOSTILE})
    infinite = json.dumps({"at": 1e300, "key": "", "kernel": "", "error": "", "worker": ""})
    client.lpush(KEYS.name(FAILURES), failed, "null", infinite, "\xff" * 10)
    client.hset(KEYS.name(HOUR, str(now // 3600)), mapping={"compiled": "9" * 1000, "failed": -5, "found": 3})


def test_lies_are_left_out_and_hostile_text_is_plain(broker: Redis) -> None:
    fill_with_lies(broker.url)
    farm = look(broker.url, REMOTE)
    (worker,) = farm.workers
    assert worker.name == worker.present.host == worker.doing[0].kernel
    assert "\x1b" not in worker.name
    assert [one.job for one in farm.runs] == [JOB]
    assert len(farm.failures) == 1
    last = farm.hours[-1]
    assert (last.compiled, last.found, last.failed) == (0, 3, 0)


@pytest.mark.parametrize("name", [WORKERS, RUNS, FAILURES, "queue"])
def test_a_value_of_another_type_is_an_error_in_words(broker: Redis, name: str) -> None:
    connected(broker.url, 1.0).set(KEYS.name(name), "x")
    with pytest.raises(RemoteError, match="does not answer"):
        look(broker.url, REMOTE)


@contextmanager
def silent_broker() -> Iterator[str]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@contextmanager
def slow_broker() -> Iterator[str]:
    """Answers one byte of an endless number every tenth of a second: no answer ends, and none is late."""
    done = Event()

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as client:
            while not done.wait(0.1):
                client.send(b":" if not done.is_set() else b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer, args=(server,))
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize("kind", [silent_broker, slow_broker])
def test_a_broker_that_does_not_answer_makes_no_reader_wait(kind: Any) -> None:
    """The wait is a limit of the watcher's, not a speed."""
    with kind() as url:
        watcher = Watcher(url, REMOTE)
        farm, _, trouble = watcher.seen(wait_s=0.2)
        assert (farm, trouble) == (None, "the broker has not answered within 0.2 s")
        assert watcher.seen(wait_s=0.0)[0] is None


def test_an_answer_that_never_ends_is_given_up() -> None:
    with slow_broker() as url, pytest.raises(RemoteError, match="the answer takes too long"):
        look(url, REMOTE, 0.3)


def test_what_was_seen_is_shown_with_its_age_when_the_broker_dies(broker: Redis) -> None:
    watcher = Watcher(broker.url, REMOTE)
    farm, age_s, trouble = watcher.seen(wait_s=30)
    assert farm is not None
    assert trouble == ""
    assert watcher.seen(wait_s=30, fresh_s=1e6)[0] is farm
    broker.kill()
    try:
        found, later_s, trouble = watcher.seen(wait_s=30, fresh_s=0.0)
        assert found is farm
        assert later_s > age_s
        assert "does not answer" in trouble
    finally:
        broker.start()
    assert watcher.seen(wait_s=30, fresh_s=0.0)[2] == ""


def test_a_board_that_cannot_be_written_keeps_no_worker_from_its_work(message: CompileMessage) -> None:
    board = Board("redis://127.0.0.1:1/0", KEYS)
    board.beat("north:7", Present("north", 7, 4, 0.0))
    board.begins("north:7", message)
    board.ends("north:7", message, compiled=True, error="")
    assert board.follows(JOB, Run("t", [], 1, 0, 1, 0.0, 0.0)) == 0
    before = time.time()
    assert before <= board.now() <= time.time()


def test_what_a_submitter_withdraws_leaves_the_queue_and_nothing_else_does(
    broker: Redis, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_submission, "_QUIET_S", 0.1)
    remote = Objects(f"file://{tmp_path}/remote")
    other, selection = Broker(broker.url, Keys.of(remote.url)), cache.select(_problem())
    other.send([encode(CompileMessage.of(job, selection)) for job in ("b" * 32, JOB, "b" * 32, JOB)])
    connected(broker.url, 1.0).lpush(Keys.of(remote.url).queue, "no message", b"\xff", "x" * 5000)
    assert other.withdraw(JOB) == 2
    assert other.waiting() == 5
    assert other.withdraw(JOB) == 0
    # A run that is canceled from elsewhere ends, and withdraws its own.
    submission = Submission(broker.url, remote)
    other.cancel(submission.job)
    done = submission.run([selection])
    assert (done.canceled, done.compiled, done.failed) == (1, 0, {})
    assert other.waiting() == 5


def test_kernels_that_are_asked_for_most_come_first(cache: Cache) -> None:
    sizes = parse_sizes("1-4096")
    kernels = [one for n in (64, 128) for one in cover(cache.selector, _problem(n), sizes)]
    wide = next(one for one in kernels if one.selection.problem.n == 128 and any(3000 in ms for ms in one.ms))
    ledger = Ledger(3600.0)
    # Asked for on another target, which counts all the same.
    shape = Shape.of(GemmProblem(16, 128, 32, dtype=DType.FP32, arch="sm_90"))
    ledger.add(shape, 3000, 5.0, 1.0)
    ordered = by_demand(kernels, ledger)
    assert ordered[0].key == wide.key
    assert [one.key for one in ordered[1:]] == [one.key for one in kernels if one.key != wide.key]
    assert by_demand(kernels, Ledger(3600.0)) == kernels


def test_the_configs_to_tune_are_those_that_tune_would_time(cache: Cache) -> None:
    (kernel, *_) = cover(cache.selector, _problem(), parse_sizes("16"))
    found = all_candidates(cache, [kernel.selection, kernel.selection], 8)
    assert kernel.key in {one.key for one in found}
    assert 1 < len({one.key for one in found}) == len(found) <= 8
    assert len(all_candidates(cache, [kernel.selection], 2)) == 2
    assert {one.problem for one in found} == {kernel.selection.problem}


def test_the_verbs_say_what_the_farm_does(broker: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats(broker.url)
    monkeypatch.setenv("GEMM_CACHE_BROKER", broker.url)
    done = run("farm", "status", store=tmp_path / "none")
    assert "1, 4 processes" in done.stdout
    assert json.loads(run("farm", "status", "--json", store=tmp_path / "none").stdout)["workers"][0]["is_here"] is True
    monkeypatch.delenv("GEMM_CACHE_BROKER")
    refused = run("farm", "status", store=tmp_path / "none")
    assert refused.returncode == 2
    assert "setting broker" in refused.stderr


def test_a_setting_that_is_no_broker_is_refused_without_its_password() -> None:
    from cache_engine.settings import Settings

    with pytest.raises(UsageError, match="redis://host") as refused:
        Settings().with_overrides({"broker": "amqp://me:secret@host"})
    assert "secret" not in str(refused.value)
    settings = Settings().with_overrides({"broker": "redis://:secret@host:6379/0"})
    assert "secret" not in f"{settings!r} {settings.shown('broker')}"
