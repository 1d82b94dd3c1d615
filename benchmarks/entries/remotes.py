"""The cost of a remote: nothing on a hit here, and on a hit there little more than fetching the bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.entries.subjects import PROBLEM, new_signer
from benchmarks.results import LeftOut, Report, Result
from benchmarks.timing import compare
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import ExtraMissing
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.settings.extras import require

if TYPE_CHECKING:
    from cache_engine.cache.remote.base import Remote

LOCAL_GOAL, FETCH_GOAL, COMPILE_GOAL, SIGNATURE_GOAL_S = 1.05, 1.8, 0.2, 0.4e-3
"""A hit here with a remote and without; a hit there and a bare get; a hit there and compiling; checking a signature."""
_NEAR_S = 0.2e-3
"""The time after which a server of the same data centre answers: a bare get then takes about 0.4 ms."""
_PULLED, _AT_ONCE, _PULLS = 32, 8, 9


def remotes(report: Report, place: Path) -> None:
    """Hits with a remote that is up and one that is down, and what is fetched from a directory."""
    try:
        require("team", "a remote", "obstore", "redis")
        require("team", "signatures", "cryptography")
    except ExtraMissing as error:
        report(LeftOut("remote", str(error)))
        return
    place.mkdir()
    signers = new_signer(place)
    with open_cache(place / "store", durability="fast") as alone:
        kernel = alone.get_or_compile(PROBLEM)
        url = f"file://{place}/remote"
        _send(alone, url, place, kernel.key)
        for name, remote in (("up", url), ("down", "redis://127.0.0.1:1/0")):
            with open_cache(place / "store", durability="fast", remote=remote, trusted_signers=signers) as cache:
                cache.get_or_compile(PROBLEM)
                if name == "down":  # so that it has found out
                    cache.get_or_compile(PROBLEM.on("sm_80"))
                local = partial(cache.get_or_compile, PROBLEM)
                without = partial(alone.get_or_compile, PROBLEM)
                what = f"memory hit, remote {name}"
                report(compare(what, local, "without a remote", without, goal_ratio=LOCAL_GOAL, calls=200))
                hit, plain = partial(cache.store.get, kernel.key), partial(alone.store.get, kernel.key)
                what = f"disk hit, remote {name}"
                report(compare(what, hit, "without a remote", plain, goal_ratio=LOCAL_GOAL, calls=10))
        _fetches(report, alone, url, signers, kernel.key)
        _fetches_over_http(report, place, signers, kernel.key)


def _fetches_over_http(report: Report, place: Path, signers: Path, key: CacheKey) -> None:
    """From another process of this machine: what a network adds makes the part of the checks smaller."""
    from obstore.store import from_url

    from cache_engine.cache.remote.base import LOOKUP, MOST_ENTRY_BYTES, name_of
    from cache_engine.cache.remote.client_process import ClientProcess
    from cache_engine.cache.remote.tier import RemoteTier
    from cache_engine.store.signatures.signers import TrustedSigners

    name = name_of(key)
    for where, answers_after_s in (("on this machine", 0.0), ("0.2 ms away", _NEAR_S)):
        with _http_server(place, answers_after_s) as address:
            options: Any = {"endpoint": address, "skip_signature": True, "region": "us-east-1"}
            client = from_url("s3://remote", client_options={"allow_http": True}, **options)
            with closing(ClientProcess("s3://remote", LOOKUP, **options)) as remote:
                tier = RemoteTier(remote, TrustedSigners(signers).require)
                fetch = partial(remote.get, name, MOST_ENTRY_BYTES)
                bare = partial(_bare, client, name)
                goal = FETCH_GOAL if answers_after_s else None
                what, beside = f"over HTTP, server {where}", "the client's bare get"
                report(
                    compare(f"remote hit {what}, all checked", partial(tier.get, key), beside, bare, goal_ratio=goal)
                )
                report(compare(f"the same unchecked, {what}", fetch, beside, bare))
                if not answers_after_s:
                    _pulls(report, place, signers, remote, client)
                tier.breaker.close(time.monotonic() + 1)


def _pulls(report: Report, place: Path, signers: Path, remote: Remote, client: Any) -> None:
    """Pulls small kernels into an empty store, compared with as many bare gets, as many at a time."""
    from cache_engine.cache.remote.base import name_of
    from cache_engine.cache.remote.client_process import open_remote
    from cache_engine.cache.remote.transfer import pull, push
    from cache_engine.store.signatures.signers import SigningKey, TrustedSigners

    with open_cache(place / "many", durability="fast") as many:
        sizes = range(16, 16 * _PULLED + 1, 16)
        small = [GemmProblem(64, size, 80, dtype=DType.FP32, arch="sm_90") for size in sizes]
        keys = [many.get_or_compile(problem).key for problem in small]
        push(many.store, open_remote(f"file://{place}/remote"), keys, sign=SigningKey.read(place / "key").sign)
    prove = TrustedSigners(signers).require
    times: list[tuple[float, float]] = []
    with open_cache(place / "empty", durability="fast") as empty, ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in range(_PULLS):
            started = time.perf_counter()
            list(pool.map(partial(_bare, client), map(name_of, keys)))
            got = time.perf_counter()
            pull(empty.store, empty.journal, remote, keys, prove=prove)
            times.append((time.perf_counter() - got, got - started))
            for key in keys:
                empty.store.delete(key)
    pulled, bare = (median(each) / len(keys) for each in zip(*times[1:], strict=True))
    report(Result("pull of a small kernel, all checked and stored", pulled, f"bare gets, {_AT_ONCE} at a time", bare))


def _bare(client: Any, name: str) -> bytes:
    import obstore

    return bytes(obstore.get(client, name).bytes())


@contextmanager
def _http_server(folder: Path, answers_after_s: float) -> Iterator[str]:
    """The address of a server of the files in a folder, which answers after so long."""
    import subprocess
    import sys

    code = (
        "import functools, http.server, sys, time\n"
        "class Quiet(http.server.SimpleHTTPRequestHandler):\n"
        "    protocol_version = 'HTTP/1.1'\n"
        "    disable_nagle_algorithm = True\n"
        "    wbufsize = -1\n"
        "    def log_message(self, *_): pass\n"
        "    def do_GET(self):\n"
        "        time.sleep(float(sys.argv[2]))\n"
        "        super().do_GET()\n"
        "serving = functools.partial(Quiet, directory=sys.argv[1])\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), serving)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(answers_after_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{next(server.stdout or iter(())).strip()}"
        finally:
            server.kill()


def _fetches(report: Report, cache: Cache, url: str, signers: Path, key: CacheKey) -> None:
    from cache_engine.cache.remote.base import LOOKUP, MOST_ENTRY_BYTES, name_of, unpacked
    from cache_engine.cache.remote.client_process import open_remote
    from cache_engine.cache.remote.tier import RemoteTier
    from cache_engine.store.signatures.signers import TrustedSigners

    remote, trusted = open_remote(url, LOOKUP), TrustedSigners(signers)
    tier = RemoteTier(remote, trusted.require)
    get, bare = partial(tier.get, key), partial(remote.get, name_of(key), MOST_ENTRY_BYTES)
    # Without a goal: the file is read in less time than its signature takes.
    report(compare("remote hit from a directory, all checked", get, "a bare get", bare))
    with open_cache(signers.parent / "served", remote=url, trusted_signers=signers, memory_bytes=0) as served:

        def compiling() -> None:
            served.store.delete(key)  # so that the next lookup asks the remote
            cache.get_or_compile(PROBLEM, force=True)

        name, look_up = "lookup that a directory serves", partial(served.get_or_compile, PROBLEM)
        report(compare(name, look_up, "compiling", compiling, goal_ratio=COMPILE_GOAL, samples=9))
    record_data, _ = unpacked(key, bare() or b"")
    check, digest = partial(trusted.require, record_data), partial(_digest, record_data)
    report(
        compare("check of a signature", check, "sha256 of the record", digest, goal_seconds=SIGNATURE_GOAL_S, calls=10)
    )
    tier.breaker.close(time.monotonic() + 1)


def _digest(data: bytes) -> None:
    hashlib.sha256(data).digest()


def _send(cache: Cache, url: str, place: Path, key: CacheKey) -> None:
    from cache_engine.cache.remote.client_process import open_remote
    from cache_engine.cache.remote.transfer import push
    from cache_engine.store.signatures.signers import SigningKey

    push(cache.store, open_remote(url), [key], sign=SigningKey.read(place / "key").sign)
