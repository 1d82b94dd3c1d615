"""All that a program does with a remote, each with a new store and a new client.

Run as ``python -m tests.remote.victim FOLDER URL``. Prints what came of each, what was served, and by how many MB the
memory of the program had grown.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_engine.engine.cache import Cache, open_cache
from cache_engine.errors import GemmCacheError
from cache_engine.remote import checking, client_process
from cache_engine.remote.base import Patience, Remote
from cache_engine.remote.moving import compare, pull, push
from cache_engine.remote.opening import open_remote
from cache_engine.trust.signers import TrustedSigners
from tests.helpers import fill, make_store
from tests.trust.keys import Builder, signers_file

_QUICK = Patience(connect_s=1, request_s=1, tries=2)


def _memory_kb(name: str) -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(f"{name}:"))


def main(folder: Path, url: str) -> None:
    """Does all of it."""
    client_process.QUIET_S = 2
    builder = Builder(folder / "key")
    signers = signers_file(folder, f"builder {builder.line}")
    prove = TrustedSigners(signers).require
    here = make_store(folder / "here")
    keys, served = fill(here, 8), list[str]()

    def opened(name: str, **settings: Any) -> Cache:
        return open_cache(folder / name, durability="fast", remote=url, trusted_signers=signers, **settings)

    def look_up() -> object:
        with opened(f"looks up {time.monotonic_ns()}") as cache:
            served.extend([] if cache.get(keys[0]) is None else keys[:1])
            return cache.stats().totals.failures

    def preload() -> object:
        with opened("preloads") as cache:
            served.extend(set(keys) - set(cache.preload(keys).missing))
            return cache.stats().totals.failures

    def send() -> object:
        with open_cache(folder / "here", remote=url, remote_mode="write", signing_key=builder.file) as cache:
            cache._serving._team.published(keys[0])
        return [cache.stats().totals.remote_sent, cache.stats().totals.remote_dropped]

    def command(work: Callable[[Remote], object]) -> Callable[[], object]:
        def run() -> object:
            remote = open_remote(url, _QUICK)
            try:
                return str(work(remote))[:200]
            except GemmCacheError as error:
                return f"{type(error).__name__}: {error}"
            finally:
                remote.close()

        return run

    def pulled(remote: Remote) -> object:
        with open_cache(folder / "pulls", durability="fast") as cache:
            return pull(cache.store, cache.journal, remote, keys, prove=prove).taken

    verbs = {
        "lookup": look_up,
        "preload": preload,
        "put": send,
        "push": command(lambda remote: push(here, remote, keys, sign=builder.key.sign).sent),
        "pull": command(pulled),
        "verify": command(lambda remote: [str(one) for one in checking.verify(remote, keys, prove=prove)]),
        "status": command(lambda remote: compare(here, remote).both),
        "gc": command(lambda remote: checking.plan(remote, max_bytes=0).entries),
        "ages": command(lambda remote: len(list(remote.ages("gemm-cache/1")))),
        "delete": command(lambda remote: remote.delete("a")),
    }
    look_up()  # all is imported
    before = _memory_kb("VmRSS")
    done = {name: verb() for name, verb in verbs.items()}
    print(json.dumps({"done": done, "served": served, "grown_mb": (_memory_kb("VmHWM") - before) >> 10}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
