"""Two stores with a remote between them, as two machines of a team."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cache_engine.batch.warm import warm
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.transfer import push
from cache_engine.errors import LockTimeout
from cache_engine.model.events import REMOTE, REMOTE_DOWN
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.store.signatures.signers import TrustedSigners
from tests.trust.keys import Builder, signers_file

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")
Open = Callable[..., Cache]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Builder]:
    """The folder of a remote with the kernel of ``PROBLEM``, and who signed it."""
    folder = tmp_path_factory.mktemp("built")
    builder = Builder(folder / "key")
    with open_cache(folder / "store", durability="fast") as cache:
        key = cache.get_or_compile(PROBLEM).key
        push(cache.store, Objects(f"file://{folder}/remote"), [key], sign=builder.key.sign)
    return folder / "remote", builder


@pytest.fixture
def machine(tmp_path: Path, built: tuple[Path, Builder]) -> Open:
    """Opens the store of another machine, whose lookups ask the remote."""
    remote, builder = built
    signers = signers_file(tmp_path, f"builder@example.com {builder.line}")

    def opened(**given: object) -> Cache:
        place = {"dir": tmp_path / "store", "remote": f"file://{remote}", "trusted_signers": signers}
        settings = {**place, "durability": "fast", **given}
        return open_cache(**settings)  # type: ignore[arg-type]

    return opened


def test_what_one_machine_compiled_the_other_is_served_signed(
    machine: Open, compiles: list[str], tmp_path: Path
) -> None:
    with machine() as cache:
        served = cache.get_or_compile(PROBLEM)
        assert (served.tier, cache.get_or_compile(PROBLEM).tier, compiles) == ("remote", "memory", [])
        stored = cache.store.stored(served.key)
        assert stored is not None
        assert str(TrustedSigners(tmp_path / "trusted_signers").check(stored[0])) == "good, by builder@example.com"
        stats = cache.stats()
    assert (stats.totals.hits, stats.totals.misses) == ({"remote": 1, "memory": 1}, 0)
    assert stats.totals.saved_us > 0
    assert stats.tier_hit_rates["remote"] == 1.0
    with machine(remote=None) as later:
        assert later.get_or_compile(PROBLEM).tier == "disk"


def test_the_caller_does_not_wait_for_the_disk_and_whoever_looks_does(
    machine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    place = DiskStore.place

    def slow(*arguments: object) -> None:
        assert disk.wait(60)
        place(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskStore, "place", slow)
    with machine() as cache:
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, cache.get_or_compile(PROBLEM).tier) == ("remote", "memory")
        assert not list((tmp_path / "store/metadata").rglob("*.json"))
        lock = StoreLayout(tmp_path / "store").key_lock(kernel.key)
        with pytest.raises(LockTimeout), file_lock(lock, 0):  # another process waits, and then finds it on disk
            pass
        threading.Timer(0.05, disk.set).start()
        assert cache.section(kernel.record, "cubin") == kernel.cubin
        assert cache.count()[0] == 1
        with file_lock(lock, 0):
            pass


def test_where_storing_fails_the_lock_is_released(
    machine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(DiskStore, "place", fail)
    with machine() as cache:
        kernel = cache.get_or_compile(PROBLEM)
        with file_lock(cache.layout.key_lock(kernel.key), 0):
            assert (kernel.tier, list(cache.store.keys())) == ("remote", [])


def test_of_too_many_that_wait_for_the_disk_the_caller_stores_its_own(
    machine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_engine.cache.serving.remote_client.MOST_STORING", 0)
    with machine() as cache:
        key = cache.get_or_compile(PROBLEM).key
        layout = StoreLayout(tmp_path / "store")
        assert Path(layout.record_path(key)).is_file()
        with file_lock(layout.key_lock(key), 0):
            pass


def test_what_was_served_is_on_disk_when_the_process_ends_without_closing(
    machine: Open, tmp_path: Path, built: tuple[Path, Builder]
) -> None:
    with machine() as cache:
        settings = {name: str(getattr(cache.settings, name)) for name in ("dir", "remote", "trusted_signers")}
    code = f"""
import time
from cache_engine import GemmProblem, open_cache
from cache_engine.store.disk import DiskStore
place = DiskStore.place
DiskStore.place = lambda *given: (time.sleep(0.5), place(*given))  # a slow disk
cache = open_cache(**{settings!r})
problem = GemmProblem(64, 48, 80, dtype="fp32", arch="sm_90")
assert cache.get_or_compile(problem).tier == "remote"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with machine(remote=None) as later:
        assert later.get_or_compile(PROBLEM).tier == "disk"


def test_a_key_is_got_from_the_remote_and_stored_here(machine: Open, built: tuple[Path, Builder]) -> None:
    """As a colleague's key is: without a problem, and without a compile."""
    (key,) = (path.name for path in (built[0] / "gemm-cache/1").rglob("*") if path.is_file())
    with machine() as cache:
        assert cache.look_up(CacheKey(key)) is None  # which says what is here
        loaded = cache.get(CacheKey(key))
        assert loaded is not None
        assert cache.get(CacheKey(key)) == loaded
        assert cache.get(CacheKey("0" * 64)) is None
        assert cache.stats().totals.hits == {"remote": 1, "memory": 1}
    with machine(remote=None) as later:
        assert later.get(CacheKey(key)) == loaded


def test_what_another_process_is_at_is_got_without_waiting_for_it(machine: Open, built: tuple[Path, Builder]) -> None:
    """It may be compiling. The kernel is served, and that process stores it."""
    (key,) = (path.name for path in (built[0] / "gemm-cache/1").rglob("*") if path.is_file())
    with machine(lock_timeout_s=60) as cache, file_lock(cache.layout.key_lock(CacheKey(key)), 0):
        assert cache.get(CacheKey(key)) is not None
        assert (cache.stats().totals.lock_waits, list(cache.records())) == (0, [])


def test_preloading_asks_the_remote_for_what_no_tier_has(machine: Open, built: tuple[Path, Builder]) -> None:
    (key,) = (path.name for path in (built[0] / "gemm-cache/1").rglob("*") if path.is_file())
    with machine() as cache:
        done = cache.preload(["0" * 64, key])
        assert (done.loaded, done.missing) == ({key: "remote"}, ("0" * 64,))
        assert cache.get_or_compile(PROBLEM).tier == "memory"
        assert [record.key for record in cache.records()] == [key]
    with machine(memory_bytes=0) as cache:
        assert cache.preload([key]).no_room == (key,)
    with machine(dir=None, enable_caching="packs") as cache:
        assert cache.preload([key]).loaded == {key: "remote"}


def test_warming_takes_what_the_remote_has(machine: Open, compiles: list[str]) -> None:
    with machine() as cache:
        (done,) = warm(cache, [PROBLEM])
        assert done.kernel is not None
        assert (done.kernel.tier, compiles) == ("remote", [])


def test_of_a_remote_that_hangs_all_keys_together_wait_for_a_second(machine: Open) -> None:
    """One wait of those that are asked for at a time, and then it is not asked."""
    asked: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with machine(remote=url) as cache:
            assert len(cache.preload([f"{number:064x}" for number in range(300)]).missing) == 300
            assert cache.get(CacheKey("0" * 64)) is None
            with suppress(BlockingIOError):
                while True:
                    asked.append(silent.accept()[0])
            assert 1 <= len(asked) <= 8
            assert [event.kind for event in cache.tally().recent].count(REMOTE_DOWN) == 1
    for connection in asked:
        connection.close()


def test_a_cache_without_a_store_is_served_too(machine: Open, compiles: list[str]) -> None:
    with machine(enable_caching="packs") as cache:
        assert (cache.get_or_compile(PROBLEM).tier, cache.has_store, compiles) == ("remote", False, [])
        assert cache.stats().totals.hits == {"remote": 1}


@pytest.mark.parametrize("given", [{"remote_mode": "off"}, {"enable_caching": False}])
def test_a_remote_is_not_asked_where_the_settings_say_so(
    machine: Open, compiles: list[str], given: dict[str, object]
) -> None:
    with machine(**given) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"


def test_without_trusted_signers_nothing_is_served_and_the_reason_said_once(
    machine: Open, compiles: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with machine(trusted_signers=None) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        cache.get_or_compile(GemmProblem(64, 64, 80, dtype=DType.FP32, arch="sm_90"))
        assert cache.stats().totals.failures == {REMOTE: 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "name the keys that you trust in the setting trusted_signers" in warnings[0]


def test_a_kernel_of_a_stranger_is_compiled_instead(machine: Open, tmp_path: Path, compiles: list[str]) -> None:
    signers_file(tmp_path, f"someone@example.com {Builder(tmp_path / 'other').line}")
    with machine() as cache:
        kernel = cache.get_or_compile(PROBLEM)
        assert (kernel.tier, compiles, kernel.unpublished) == ("compiled", ["sm_90"], None)
        assert cache.stats().totals.failures == {REMOTE: 1}


def test_a_remote_that_is_down_is_a_miss_that_the_journal_names(
    machine: Open, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with machine(remote="s3://bucket/x") as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        assert cache.get_or_compile(PROBLEM).tier == "memory"
        (event,) = [event for event in cache.tally().recent if event.kind == REMOTE_DOWN]
        assert "s3://bucket/x" in event.detail
        assert event.remote == "s3://bucket/x"
        assert cache.stats().totals.failures == {REMOTE: 1}
        assert cache.stats().tier_hit_rates[REMOTE] == 0.0


def test_what_cannot_be_written_here_is_served_all_the_same(
    machine: Open, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine() as cache:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(cache.store), "place", full)
        assert (cache.get_or_compile(PROBLEM).tier, compiles) == ("remote", [])
        assert cache.stats().totals.failures == {"disk": 1}


def test_a_damaged_entry_is_fetched_again(machine: Open, compiles: list[str]) -> None:
    with machine() as cache:
        key = cache.get_or_compile(PROBLEM).key
        (blob,) = (cache.layout.kernels / key[:2]).iterdir()
    blob.write_bytes(blob.read_bytes()[:200])
    with machine() as cache:
        assert (cache.get_or_compile(PROBLEM).tier, compiles) == ("remote", [])
        assert cache.stats().totals.corruptions == 1
    with machine() as cache:
        assert cache.get_or_compile(PROBLEM).tier == "disk"


def test_a_local_hit_imports_nothing_of_a_remote(machine: Open, tmp_path: Path, built: tuple[Path, Builder]) -> None:
    with machine() as cache:
        cache.get_or_compile(PROBLEM)
    code = (
        "import sys\nfrom cache_engine import GemmProblem, open_cache\n"
        "with open_cache(sys.argv[1], remote=sys.argv[2], trusted_signers=sys.argv[3]) as cache:\n"
        "    problem = GemmProblem(64, 48, 80, dtype='fp32', arch='sm_90')\n"
        "    print(cache.get_or_compile(problem).tier, cache.get_or_compile(problem).tier)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('obstore', 'cryptography')\n"
        "             or name.startswith(('cache_engine.cache.remote', 'cache_engine.store.signatures.'))))"
    )
    given = (tmp_path / "store", f"file://{built[0]}", tmp_path / "trusted_signers")
    done = subprocess.run([sys.executable, "-c", code, *map(str, given)], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["disk memory", "[]"], done.stderr


def test_what_is_compiled_is_sent_signed_and_the_next_machine_is_served(
    machine: Open, tmp_path: Path, compiles: list[str]
) -> None:
    """As two machines of a team, each with a store of its own; one builds."""
    builder, url = Builder(tmp_path / "key"), f"file://{tmp_path}/shared"
    signers_file(tmp_path, f"ci@example.com {builder.line}")
    with machine(remote=url, remote_mode="write", signing_key=builder.file) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
    with machine(remote=url) as cache:
        assert cache.stats().totals.remote_sent == 1
        assert cache.stats().totals.remote_dropped == 0
    with machine(remote=url, dir=tmp_path / "other") as other:
        kernel = other.get_or_compile(PROBLEM)
        assert (kernel.tier, len(compiles)) == ("remote", 1)


@pytest.mark.parametrize("signing_key", [None, "none"])
def test_without_a_key_to_sign_with_a_builder_serves_and_counts(
    machine: Open, tmp_path: Path, compiles: list[str], signing_key: str | None
) -> None:
    key = None if signing_key is None else tmp_path / signing_key
    with machine(remote=f"file://{tmp_path}/shared", remote_mode="both", signing_key=key) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
    with machine() as cache:
        assert (cache.stats().totals.remote_sent, cache.stats().totals.remote_dropped) == (0, 1)
