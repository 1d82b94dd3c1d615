"""Workers, the broker and submitters killed at random moments lose nothing, and what is compiled twice was killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.remote import verification
from cache_engine.cache.remote.base import FOLDER, key_in
from cache_engine.cache.remote.clients import Objects
from cache_engine.store.signatures.signers import TrustedSigners
from tests.faults.counting import report
from tests.helpers import code_of
from tests.remote.waiting import until
from tests.team.conftest import Redis
from tests.team.machines import table
from tests.trust.keys import Builder, signers_file

_MACHINES = 3
_IDLE_S, _STUCK_S = 10.0, 900.0


class _Farm:
    """Three machines with a worker each, a broker, and a submitter that asks for one table after another."""

    def __init__(self, folder: Path, broker: Redis, remote: Objects, builder: Builder) -> None:
        self._folder, self._broker = folder, broker
        self.log, self.errors = folder / "said", folder / "errors"
        arguments = (self.log, broker.url, remote.url, builder.file)
        self._errors = self.errors.open("ab")
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.team.machines", *map(str, arguments)], cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self.tables, self._is_done = 0, False
        self.workers = [self._worker(machine) for machine in range(_MACHINES)]
        self.submitter = self._submit()

    def kill_worker(self, machine: int) -> None:
        """Kills a worker with its processes, as when a machine loses its power, and starts it again."""
        self._ask("kill", pid=self.workers[machine])
        self._say(f"killed {machine}")
        self.workers[machine] = self._worker(machine)

    def kill_process(self, machine: int) -> None:
        """Kills a process of a worker, which starts another."""
        worker = self.workers[machine]
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
            until(lambda child=child: is_dead(child))  # type: ignore[misc]
            self._say(f"killed {machine} {child}")

    def kill_broker(self) -> None:
        """Kills the broker, which loses all that it had, and starts it again."""
        self._say("lost")
        self._broker.kill()
        self._broker.start()
        self._say("lost")

    def kill_submitter(self) -> None:
        """Kills who asks for the table, and asks again."""
        self._ask("kill", pid=self.submitter)
        self.submitter = self._submit()

    def is_done(self) -> bool:
        """Whether the table is."""
        if not self._is_done:
            status = self._ask("poll", pid=self.submitter)
            assert status in (None, 0), self.errors.read_text()[-3000:]
            self._is_done = status == 0
            self.tables += self._is_done
        return self._is_done

    def wait_for_steps(self, count: int) -> None:
        """Until workers have said so many lines, or it takes too long for another reason, such as a lease."""
        wanted, until_s = self._lines() + count, time.monotonic() + _IDLE_S
        while self._lines() < wanted and time.monotonic() < until_s and not self.is_done():
            time.sleep(0.01)

    def next_table(self) -> None:
        """Asks for the next one."""
        self.submitter = self._submit()
        self._is_done = False

    def close(self) -> None:
        """Kills all that is left."""
        self._zygote.communicate()
        self._errors.close()

    def _worker(self, machine: int) -> int:
        return int(self._ask("worker", machine=machine, store=str(self._folder / f"machine-{machine}")))

    def _submit(self) -> int:
        return int(self._ask("submitter", table=self.tables, store=str(self._folder / "submitter")))

    def _say(self, line: str) -> None:
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, f"{line}\n".encode())
        os.close(handle)

    def _lines(self) -> int:
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def _ask(self, do: str, **given: object) -> Any:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())


@pytest.fixture
def farm(tmp_path: Path, redis_server: Redis, remote: Objects, builder: Builder) -> Iterator[_Farm]:
    made = _Farm(tmp_path, redis_server, remote, builder)
    yield made
    made.close()


def _compiled(log: Path) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How often each key was compiled whole, how often a kill took a whole compile, or could have two begin at once.

    A kill takes a compile that is finished and not yet sent. A broker that loses its leases can have another worker
    begin what one is at.
    """
    finished, taken, unlocked = Counter[str](), Counter[str](), Counter[str]()
    at: dict[tuple[str, str], tuple[str, str]] = {}  # what each process of a machine is at: a key, and how far
    is_lost = False
    for line in log.read_text().splitlines():
        what, *rest = line.split()
        if what == "killed":
            for one in [one for one in at if list(one[: len(rest)]) == rest]:
                key, stage = at.pop(one)
                taken[key] += stage == "finish"
        elif what == "lost":
            is_lost = not is_lost
            unlocked.update(key for key, _ in at.values())
        else:
            key, machine, process = rest
            at[machine, process] = (key, what)
            finished[key] += what == "finish"
            unlocked[key] += what == "take" and is_lost
            if what == "end":
                del at[machine, process]
    return finished, taken, unlocked


def _kill_at_random(farm: _Farm, kills: int, generator: random.Random) -> Counter[str]:
    done = Counter[str]()
    progress = time.monotonic()
    while done.total() < kills:
        # After some steps of the workers, however slow they are, and anywhere in the next.
        farm.wait_for_steps(generator.randrange(8))
        time.sleep(generator.uniform(0, 0.3))
        machine = generator.randrange(_MACHINES)
        whom = generator.choices(("worker", "process", "broker", "submitter"), (4, 3, 1, 2))[0]
        if farm.is_done():
            progress = time.monotonic()
            farm.next_table()
        assert time.monotonic() - progress < _STUCK_S, (farm.tables, farm.errors.read_text()[-3000:])
        if whom == "worker":
            farm.kill_worker(machine)
        elif whom == "process":
            farm.kill_process(machine)
        elif whom == "broker":
            farm.kill_broker()
        else:
            farm.kill_submitter()
        done[whom] += 1
    while not farm.is_done():
        assert time.monotonic() - progress < 2 * _STUCK_S, (farm.tables, farm.errors.read_text()[-3000:])
        time.sleep(0.2)
    return done


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing_and_what_is_compiled_twice_was_killed(
    farm: _Farm, remote: Objects, builder: Builder, tmp_path: Path
) -> None:
    kills = _kill_at_random(farm, int(os.environ.get("FARM_KILLS", "200")), random.Random(19))
    farm.close()
    wanted = {one.key: one for number in range(farm.tables) for one in table(number, tmp_path / "submitter")}
    there = {key for name, _ in remote.sizes(FOLDER) if (key := key_in(name)) is not None}
    assert there == wanted.keys()
    # Signed, and the same code as another machine makes.
    prove = TrustedSigners(signers_file(tmp_path, f"worker@farm {builder.line}")).require
    with open_cache(tmp_path / "reference", durability="fast") as reference:
        here = {key: code_of(reference.get_or_compile(one.problem).cubin) for key, one in wanted.items()}
    sound = [
        one for one in verification.verify(remote, sorted(wanted), prove=prove) if isinstance(one, verification.Sound)
    ]
    assert {one.record.key: code_of(one.cubin) for one in sound} == here
    finished, taken, unlocked = _compiled(farm.log)
    assert finished.keys() == wanted.keys()
    too_often = {key: count for key, count in finished.items() if count > 1 + taken[key] + unlocked[key]}
    assert too_often == {}, farm.log.read_text()
    more = finished.total() - len(finished)
    report({"kills": kills.total(), **kills, "kernels": len(wanted), "compiled again": more, "lost": 0})


def is_dead(pid: str) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
