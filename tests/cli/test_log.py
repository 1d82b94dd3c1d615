"""``log``, ``pin`` and ``unpin``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cache_engine.cache.cache import open_cache
from cache_engine.upkeep.plan import Limits
from tests.cli.test_cli import run
from tests.faults.test_hostile_text import HOSTILE
from tests.helpers import make_store


def _run(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(*arguments, store=store)


def test_an_eviction_is_listed_filtered_and_explained(compiled_store: Path) -> None:
    """Also once the journal, which remembers the last 500 events, has forgotten it."""
    record = next(record for record in make_store(compiled_store).records() if record.family == "tensor_core")
    with open_cache(compiled_store) as cache:
        cache.admin.clean(Limits(keys=frozenset({record.key})), by="Ann")
        for number in range(501):
            cache.journal.event("corrupt", key=f"{number:064x}", detail="other")
    shown = json.loads(_run(compiled_store, "log", "--key", record.key[:12], "--kind", "eviction", "--json").stdout)
    assert [(row["key"], row["reason"], row["by"]) for row in shown["rows"]] == [(record.key, "selected", "Ann")]
    assert (shown["total"], shown["damaged"]) == (1, 0)
    assert "by Ann" in _run(compiled_store, "log", "--kind", "eviction", "--since", "1h").stdout
    p, c = record.problem, record.config
    sizes = [str(size) for size in (p.m, p.n, p.k)]
    done = _run(compiled_store, "explain", *sizes, "--dtype", p.dtype, "--arch", record.arch, "--json")
    assert json.loads(done.stdout)["key"] == record.key, c
    (note,) = json.loads(done.stdout)["notes"]
    assert note == "the kernel with this key was evicted just now: selected, by Ann; compiling stores it again"


def test_hostile_text_reaches_no_terminal(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        for text in HOSTILE:
            cache.journal.decided("miss", key="ab" * 32, name=text, reason=text, detail=text, by=text, runner_up=text)
    for form in ((), ("--json",)):
        done = _run(compiled_store, "log", "--limit", "1000", *form)
        assert done.returncode == 0, done.stderr
        controls = {sign for sign in done.stdout if not sign.isprintable()} - {"\n"}
        assert not controls or form, controls
    assert {row["detail"] for row in json.loads(done.stdout)["rows"]} >= set(HOSTILE)


def test_damaged_lines_are_counted_and_verify_repairs_them(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        cache.journal.decided("miss", key="ab" * 32, detail="to be flipped")
        cache.journal.decided("miss", key="ab" * 32, detail="sound")
    path = compiled_store / "decisions" / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b"to be flipped", b"to be flapped"))
    assert "1 line skipped" in _run(compiled_store, "log").stdout
    found = json.loads(_run(compiled_store, "verify", "--json").stdout)["findings"]
    assert [(one["kind"], one["path"]) for one in found] == [("damaged decisions", "decisions/log.jsonl")]
    assert _run(compiled_store, "verify", "--repair").returncode == 0
    assert json.loads(_run(compiled_store, "log", "--json").stdout)["damaged"] == 0


def test_follow_prints_what_comes_and_ends_with_ctrl_c(compiled_store: Path) -> None:
    command = [sys.executable, "-m", "cache_engine", "--store", str(compiled_store), "log", "--follow", "--json"]
    with open_cache(compiled_store) as cache:
        cache.journal.decided("refusal", key="ab" * 32, detail="first")
        cache.journal.flush()
        following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert following.stdout is not None
        while json.loads(following.stdout.readline())["detail"] != "first":
            pass
        cache.journal.decided("refusal", key="ab" * 32, detail="second")
        cache.journal.flush()
        assert json.loads(following.stdout.readline())["detail"] == "second"
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=600)
    assert (following.returncode, errors) == (0, "")


def test_follow_ends_when_its_reader_goes(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        cache.journal.decided("refusal", key="ab" * 32)
    command = [sys.executable, "-m", "cache_engine", "--store", str(compiled_store), "log", "--follow"]
    reading, writing = os.pipe()
    following = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert os.read(reading, 100)
    os.close(reading)
    assert following.communicate(timeout=600)[1] == b""
    assert following.returncode == 0


def test_kernels_are_pinned_kept_and_unpinned(compiled_store: Path) -> None:
    key = next(make_store(compiled_store).keys())
    assert json.loads(_run(compiled_store, "pin", key[:12], "--json").stdout) == {"changed": [key], "pinned": [key]}
    assert key in _run(compiled_store, "pin").stdout
    kept = json.loads(_run(compiled_store, "clean", "--all", "--json").stdout)
    assert (kept["kept_entries"], kept["pinned"]) == (1, 1)
    assert kept["victim_compile_s"] > 0
    assert key not in {victim["key"] for victim in kept["victims"]}
    assert "1 entry pinned and not evicted" in _run(compiled_store, "clean", "--yes", "--all").stdout
    assert _run(compiled_store, "pin", "--remove", "0" * 12).returncode == 1
    assert _run(compiled_store, "pin", "--remove").returncode == 2
    assert json.loads(_run(compiled_store, "pin", "--remove", "--all", "--json").stdout) == {
        "changed": [key],
        "pinned": [],
    }


def test_wrong_usage_says_what_is_meant(compiled_store: Path) -> None:
    for arguments, said in (
        (("--since", "yesterday"), "span"), (("--kind", "hit"), "miss"), (("--key", "no key"), "hexadecimal"),
    ):  # fmt: skip
        done = _run(compiled_store, "log", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
