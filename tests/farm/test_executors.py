"""Every engine keeps the same promises, with real brokers, schedulers and workers; and what Dask adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_engine.engine.cache import Cache
from cache_engine.errors import RemoteError, UsageError
from cache_engine.farm.executor import Executor, keys_there
from cache_engine.farm.messages import Answered, answered, encode
from cache_engine.farm.submitting import Submission
from cache_engine.remote.moving import pull
from cache_engine.remote.objects import Objects
from cache_engine.trust.signers import TrustedSigners
from tests.cli.test_cli import document, run
from tests.farm.conftest import Redis, Workers
from tests.farm.dask_cluster import Certificates, DaskWorkers, Scheduler, require_dask
from tests.farm.running import InBackground, table
from tests.trust.keys import Builder, signers_file


class Farm:
    """An engine: what carries the work, workers, and the options that name it."""

    def __init__(self, server: Redis | Scheduler, workers: Workers | DaskWorkers, remote: Objects) -> None:
        self.server, self.workers, self._remote = server, workers, remote

    @property
    def executor(self) -> Executor:
        """A new run."""
        if isinstance(self.server, Redis):
            return Submission(self.server.url, self._remote)
        from cache_engine.farm.dask_submitting import DaskSubmission

        return DaskSubmission(self.server.url, self._remote)

    @property
    def options(self) -> tuple[str, ...]:
        """Of ``farm compile``."""
        if isinstance(self.server, Redis):
            return "--broker", self.server.url
        return "--engine", "dask", "--scheduler", self.server.url


@pytest.fixture(scope="module")
def shared_scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    require_dask()
    server = Scheduler(tmp_path_factory.mktemp("dask"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def scheduler(shared_scheduler: Scheduler) -> Iterator[Scheduler]:
    """That of the module, whose certificates this process has as well."""
    with _using(shared_scheduler.certificates.environment):
        yield shared_scheduler


@pytest.fixture
def dask_workers(tmp_path: Path, scheduler: Scheduler, remote: Objects, builder: Builder) -> Iterator[DaskWorkers]:
    several = DaskWorkers(tmp_path, scheduler, remote, builder)
    yield several
    several.kill()


@pytest.fixture(params=["celery", "dask"])
def farm(request: pytest.FixtureRequest, remote: Objects) -> Farm:
    names = {"celery": ("redis_server", "workers"), "dask": ("scheduler", "dask_workers")}[request.param]
    server, workers = map(request.getfixturevalue, names)
    return Farm(server, workers, remote)


@contextmanager
def _using(variables: dict[str, str]) -> Iterator[None]:
    """For a body in which Dask in this process, and in commands that it starts, reads these variables."""
    import dask.config

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        dask.config.refresh()
        yield
    dask.config.refresh()


def test_what_carries_the_work_and_a_worker_are_killed_in_the_middle_and_the_table_completes(
    farm: Farm, cache: Cache, remote: Objects, builder: Builder, tmp_path: Path
) -> None:
    wanted = table(cache, 6)
    farm.workers.start()
    running = InBackground(farm.executor, wanted)
    assert running.some_done.wait(120), farm.workers.log.read_text()
    farm.server.kill()
    farm.workers.kill()
    farm.server.start()  # empty
    farm.workers.start()
    done = running.result(farm.workers.log)
    assert done.failed == {}
    assert done.resent > 0
    assert keys_there(remote) == {one.key for one in wanted}
    assert done.present == 0
    assert done.compiled + done.found == 6
    # What came is signed by the worker, and so another machine takes it.
    signers = TrustedSigners(signers_file(tmp_path, f"worker@farm {builder.line}"))
    taken = pull(cache.store, cache.journal, remote, [one.key for one in wanted], prove=signers.require)
    assert (taken.taken, taken.refused) == (6, ())
    assert farm.executor.run(wanted).present == 6  # nothing is asked for again


def test_a_model_is_compiled_by_a_worker_and_pulled_by_another_machine(
    farm: Farm, remote: Objects, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/team.md."""
    (tmp_path / "model.csv").write_text("n,k\n48,80\n")
    asked_for = (tmp_path / "model.csv", "--arch", "sm_80", "--m", "16", "--dtype", "fp32", "--remote", remote.url)
    farm.workers.start()
    done = document("farm", "compile", *asked_for, *farm.options, store=tmp_path / "none")
    assert (done["kernels"], done["compiled"], done["failed"], len(done["workers"])) == (1, 1, [], 1)
    assert not (tmp_path / "none").exists()
    again = run("farm", "compile", *asked_for, *farm.options, store=tmp_path / "none")
    assert "has 1 of 1 kernel: 1 before, 0 compiled" in again.stdout
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"worker@farm {builder.line}")))
    assert document("remote", "pull", remote.url, store=tmp_path / "other")["taken"] == 1


def test_what_is_interrupted_is_withdrawn_and_the_rest_is_not(farm: Farm, cache: Cache, remote: Objects) -> None:
    first, second = table(cache, 2)
    executor, told = farm.executor, list[int]()

    def on_left(left: int) -> None:
        told.append(left)
        if len(told) == 2:  # it is sent
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run([first], on_left)
    assert executor.cancel() == 1
    farm.workers.start()
    done = InBackground(farm.executor, [second]).result(farm.workers.log)
    assert done.compiled == 1
    assert keys_there(remote) == {second.key}  # one worker: the first was dropped before the second began


# ---- Dask ----


def test_the_work_of_a_worker_of_dask_that_is_killed_goes_to_another(
    cache: Cache, scheduler: Scheduler, dask_workers: DaskWorkers, remote: Objects
) -> None:
    from cache_engine.farm.dask_submitting import DaskSubmission

    wanted = table(cache, 4)
    dask_workers.start()
    running = InBackground(DaskSubmission(scheduler.url, remote), wanted)
    assert running.some_done.wait(120), dask_workers.log.read_text()
    dask_workers.kill()
    dask_workers.start()
    done = running.result(dask_workers.log)
    assert (done.failed, done.compiled + done.found, done.resent) == ({}, 4, 0)  # the scheduler did it by itself
    assert keys_there(remote) == {one.key for one in wanted}


def test_whoever_shares_a_scheduler_may_say_that_a_kernel_is_done_and_is_not_believed(
    cache: Cache, scheduler: Scheduler, dask_workers: DaskWorkers, remote: Objects
) -> None:
    """Under the very names that the submitter uses: the remote is asked, and does not have it."""
    from distributed import Client, Security

    from cache_engine.farm.dask_submitting import DaskSubmission

    first, second = table(cache, 2)
    lie = encode(Answered(first.key, "", "a liar", compiled=True, seconds=0.1))
    dask_workers.start()
    with Client(scheduler.url, security=Security(require_encryption=True), set_as_default=False) as liar:
        for one, text in ((first, lie), (second, "{}")):
            held = liar.submit(str, text, key=f"gemm-cache-{one.key}", pure=False)
            assert held.result(timeout=60) == text
            with pytest.raises(RemoteError, match="which does not have them"):
                DaskSubmission(scheduler.url, remote).run([one])
    assert keys_there(remote) == set()


def test_certificates_of_another_authority_are_refused_on_both_sides(
    cache: Cache, scheduler: Scheduler, remote: Objects, tmp_path: Path
) -> None:
    from cache_engine.farm.dask_submitting import _VARIABLES, DaskSubmission

    other = Certificates(tmp_path / "other")
    (one,) = table(cache, 1)
    own = scheduler.certificates
    for authority, machine in ((other.authority, own.machine), (own.authority, other.machine)):
        named = dict(zip(_VARIABLES.values(), (str(authority), str(machine)), strict=True))
        with _using(named), pytest.raises(RemoteError, match="do not trust each other's certificates"):
            DaskSubmission(scheduler.url, remote).run([one])


def test_a_scheduler_that_stays_away_is_an_error_in_words(
    cache: Cache, remote: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_dask()
    from cache_engine.farm import dask_submitting

    troubles: list[str] = []

    def on_trouble(trouble: str) -> None:
        troubles.append(trouble)
        monkeypatch.setattr(dask_submitting, "GIVE_UP_S", 0.0)  # it was away for long

    with _using(Certificates(tmp_path / "certificates").environment):
        submission = dask_submitting.DaskSubmission("tls://127.0.0.1:1", remote)
        with pytest.raises(RemoteError, match=r"the scheduler at 127\.0\.0\.1 does not answer"):
            submission.run(table(cache, 1), on_trouble=on_trouble)
    assert len(troubles) == 1


def test_dask_without_tls_or_without_certificates_is_refused(remote: Objects, tmp_path: Path) -> None:
    require_dask()
    asked_for = ("farm", "compile", "Llama-3.1-8B", "--remote", remote.url)
    refused = {
        ("--engine", "dask", "--scheduler", "tcp://host:8786"): "is no scheduler of Dask with TLS",
        ("--engine", "dask", "--scheduler", "tls://host:99999"): "name one such as tls://host:8786",
        ("--engine", "dask", "--scheduler", "tls://host:8786"): "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
        ("--engine", "dask"): "--scheduler",
        ("--engine", "dask", "--scheduler", "tls://host:8786", "--broker", "redis://host"): "leave out --broker",
        ("--scheduler", "tls://host:8786"): "add --engine dask",
    }
    for options, why in refused.items():
        done = run(*asked_for, *options, store=tmp_path / "none")
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr


def test_a_worker_of_dask_takes_a_message_and_nothing_else(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from cache_engine.farm import dask_worker
    from cache_engine.farm.messages import Asked

    for text in ("", "{}", b"x", "x" * 5000):
        with pytest.raises(UsageError):
            dask_worker.compile_kernel(text)
    monkeypatch.delenv("GEMM_CACHE_REMOTE", raising=False)
    monkeypatch.delenv("GEMM_CACHE_SIGNING_KEY", raising=False)
    dask_worker._maker.cache_clear()
    answer = answered(dask_worker.compile_kernel(encode(Asked.of("a" * 32, table(cache, 1)[0]))))
    assert answer.error.startswith("set GEMM_CACHE_REMOTE and GEMM_CACHE_SIGNING_KEY for the Dask workers of")
