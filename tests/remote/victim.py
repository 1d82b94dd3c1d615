"""All that a program does with a remote, each with a new store and a new client.

Run as ``python -m tests.remote.victim FOLDER URL``. Prints what came of each, what was served, and by how many MB the
memory of the program had grown.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.remote import client_process, verification
from cache_engine.cache.remote.base import Timeouts
from cache_engine.cache.remote.client_process import open_remote
from cache_engine.cache.remote.transfer import compare, pull, push
from cache_engine.errors import GemmCacheError
from cache_engine.store.signatures.signers import TrustedSigners
from tests.helpers import fill, make_store
from tests.trust.keys import Builder, signers_file

_QUICK = Timeouts(connect_s=1, request_s=1, tries=2)


class _Program:
    """A store with eight kernels, and what looks for them in the remote."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url, self._builder = folder, url, Builder(folder / "key")
        self._signers = signers_file(folder, f"builder {self._builder.line}")
        self._here = make_store(folder / "here")
        self._keys, self.served = fill(self._here, 8), list[str]()

    def look_up(self) -> object:
        with self._opened() as cache:
            self.served.extend([] if cache.get(self._keys[0]) is None else self._keys[:1])
            return cache.stats().totals.failures

    def preload(self) -> object:
        with self._opened() as cache:
            self.served.extend(set(self._keys) - set(cache.preload(self._keys).missing))
            return cache.stats().totals.failures

    def put(self) -> object:
        settings = {"remote": self._url, "remote_mode": "write", "signing_key": self._builder.file}
        with open_cache(self._here.layout.root, **settings) as cache:  # type: ignore[arg-type]
            cache._serving._team.published(self._keys[0])
        return cache.stats().totals.remote_dropped

    def commands(self) -> dict[str, Callable[[Any], object]]:
        prove, keys, here = TrustedSigners(self._signers).require, self._keys, self._here

        def pulled(remote: Any) -> object:
            with open_cache(self._folder / "pulls", durability="fast") as cache:
                return pull(cache.store, cache.journal, remote, keys, prove=prove).taken

        return {
            "push": lambda remote: push(here, remote, keys, sign=self._builder.key.sign).sent,
            "pull": pulled,
            "verify": lambda remote: [str(one) for one in verification.verify(remote, keys, prove=prove)],
            "status": lambda remote: compare(here, remote).both,
            "gc": lambda remote: verification.plan(remote, max_bytes=0).entries,
            "delete": lambda remote: remote.delete("a"),
        }

    def run(self, command: Callable[[Any], object]) -> str:
        with closing(open_remote(self._url, _QUICK)) as remote:
            try:
                return str(command(remote))[:200]
            except GemmCacheError as error:
                return f"{type(error).__name__}: {error}"

    def _opened(self) -> Cache:
        place = self._folder / str(time.monotonic_ns())
        return open_cache(place, durability="fast", remote=self._url, trusted_signers=self._signers)


def _memory_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(folder: Path, url: str) -> None:
    """Does all of it."""
    client_process.QUIET_S = 2
    program = _Program(folder, url)
    program.look_up()  # all is imported
    before = _memory_kb("VmRSS")
    done = {each.__name__: each() for each in (program.look_up, program.preload, program.put)}
    done |= {name: program.run(command) for name, command in program.commands().items()}
    print(json.dumps({"done": done, "served": program.served, "grown_mb": (_memory_kb("VmHWM") - before) >> 10}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
