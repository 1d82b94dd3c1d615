"""No bytes crash a parser: each refuses with an error that is documented, or reads what can be written again."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.counting import report
from tests.fuzz.targets import TARGETS, Target

INPUTS = 300
SECONDS = 60
_ROOT = Path(__file__).parents[2]
# What parsers trip over: ends of ranges, brackets, and text that is none.
_TOKENS = (
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b"[" * 200, b"{", b"}", b"null",
    b'"', b'""', b"[]", b"{}", b"\n", b",", b"=", bytes(8), b"\xff" * 8,
)  # fmt: skip


def _mutated(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : at + chance.choice((1, 4, 50, len(data)))]
            case 2:
                data[at:at] = chance.choice(_TOKENS)
            case 3:
                token = chance.choice(_TOKENS)
                data[at : at + len(token)] = token
            case _:
                other = chance.randrange(len(data) + 1)
                data[at:at] = data[other : other + chance.randrange(40)]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_crash_a_parser(name: str, tmp_path: Path) -> None:
    """Some hundred inputs, the same every time."""
    chance, target = random.Random(name), TARGETS[name]
    seeds = target.seeds(tmp_path)
    for seed in seeds:
        target.read(seed, tmp_path)
    for _ in range(INPUTS):
        data = _mutated(chance.choice(seeds), chance)
        assert not (crash := _crash(target, data, tmp_path)), f"{name} with {data!r}\n{crash}"


def _crash(target: Target, data: bytes, folder: Path) -> str:
    """Where a parser crashes; empty if it refuses the bytes as it should, or reads them."""
    try:
        target.read(data, folder)
    except Exception:
        return traceback.format_exc()
    return ""


def _repeated(seed: bytes, many: int, size: int) -> Iterator[bytes]:
    """A seed with each of its parts repeated, as evenly spread as so many are."""
    cuts = [0, *(found.end() for found in re.finditer(rb"\w+|\W", seed))]
    for at in range(0, len(cuts) - 1, max(1, len(cuts) // many)):
        for end in cuts[at + 1], cuts[min(at + 8, len(cuts) - 1)]:
            part = seed[cuts[at] : end]
            yield seed[:end] + part * (size // len(part)) + seed[end:]


@pytest.mark.parametrize("many", [2, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", TARGETS)
def test_the_time_of_a_parser_grows_as_its_input_does(name: str, many: int, tmp_path: Path) -> None:
    """In CPU time: four times for four times the input, not sixteen times. One of three tries may have no pause."""
    target = TARGETS[name]

    def seconds(data: bytes) -> float:
        started = time.process_time()
        target.read(data, tmp_path)
        return time.process_time() - started

    for seed in target.seeds(tmp_path):
        for short, long in zip(_repeated(seed, many, 5_000), _repeated(seed, many, 20_000), strict=True):
            tries = ((seconds(long), seconds(short)) for _ in range(3))
            assert any(more < 0.1 or more < 10 * less for more, less in tries), (seed[:200], long[:200])


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_that_coverage_leads_to_crash_a_parser(name: str, tmp_path: Path) -> None:
    """A minute of atheris, in bounded memory."""
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install atheris)")
    command = [sys.executable, "-m", "tests.fuzz", name, str(SECONDS)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=tmp_path, env=environment)
    runs = re.findall(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert done.returncode == 0, done.stderr[-3000:]
    report({"trials": int(runs[-1]) if runs else 0})
