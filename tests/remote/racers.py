"""Processes that race for the keys of a remote, forked by one that has not used it: obstore does not work after that.

Run as ``python -m tests.remote.racers PLACE URL PROCESSES``. Each process pushes every key with a signature of its
own, and at once looks it up as another machine. Prints for each process how many it sent and what it was served.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_engine.cache.cache import open_cache
from cache_engine.cache.remote.client_process import open_remote
from cache_engine.cache.remote.transfer import push
from cache_engine.store.base import Loaded
from cache_engine.store.signatures.signers import SigningKey
from tests.helpers import make_store
from tests.trust.keys import Builder, signers_file


def main(place: Path, url: str, processes: int) -> None:
    """Has them race for all keys of the store in ``place``."""
    store = make_store(place / "store")
    builders = [Builder(place / f"key-{number}") for number in range(processes)]
    signers = signers_file(place, *(f"builder-{number} {one.line}" for number, one in enumerate(builders)))

    def act(number: int) -> object:
        remote, sign = open_remote(url), SigningKey.read(builders[number].file).sign
        settings: dict[str, Any] = {"remote": url, "trusted_signers": signers, "durability": "fast"}
        with open_cache(place / f"machine-{number}", **settings) as cache:
            done = [
                (push(store, remote, [key], sign=sign).sent, _served(cache.get(key))) for key in sorted(store.keys())
            ]
            return {"done": done, "failures": cache.stats().totals.failures}

    print(json.dumps(_at_once(processes, act)))


def _served(loaded: Loaded | None) -> str:
    return "" if loaded is None else hashlib.sha256(loaded.cubin).hexdigest()


def _at_once(count: int, act: Callable[[int], object]) -> list[object]:
    """What each of so many processes answers, which all begin at one moment."""
    begin, go = os.pipe()
    children = []
    for number in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(go)
                os.read(begin, 1)  # until the parent closes it
                os.write(writing, json.dumps(act(number)).encode())
            except BaseException as error:
                os.write(writing, json.dumps(f"{type(error).__name__}: {error}").encode())
            finally:
                os._exit(0)
        os.close(writing)
        children.append((child, reading))
    os.close(begin)
    os.close(go)
    found = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as answer:
            found.append(json.loads(answer.read()))
        os.waitpid(child, 0)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
