"""Thousands of changes of any input of nvcc's launcher: the output is always what nvcc would make now."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.adapters.fake_nvcc import Fake, expected, make, moved, use

CASES = 5_000
_FILES = (
    "one/lib/a.h",
    "one/lib/b.h",
    "two/lib/c.h",
    "place/k.cu",
    "place/near.h",
    "cuda/bin/ptxas",
    "cuda/nvvm/bin/cicc",
)
_HIDING = (
    "one/lib/c.h",
    "place/lib/a.h",
    "place/lib/c.h",
    "one/near.h",
    "two/lib/b.h",
    "two/lib/maybe.h",
    "place/b.h",
    "one/lib/near.h",
)
_OPTIONS = ("-O1", "-DA", "-DB=2", "-lineinfo", "-std=c++20", "--maxrregcount=32", "-Xptxas=-v", "-use_fast_math")


def _change(fake: Fake, chance: random.Random, words: list[str]) -> str:
    """Changes one input; returns what kind it was."""
    kind = chance.choice(("byte", "byte", "hide", "unhide", "option", "variable", "output", "none"))
    if kind == "byte":
        path = fake.root / chance.choice(_FILES)
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data)) if path.suffix == "" else len(data) - 1  # not within a line that includes
        data[at] = chance.choice(b"0123456789") if at > 3 else data[at]
        path.write_bytes(data if path.suffix == "" else bytes(data) + chance.choice((b"\n", b"", b"/")))
    elif kind == "hide":
        fake.write(chance.choice(_HIDING), f"{chance.randrange(3)}\n")
    elif kind == "unhide":
        (fake.root / chance.choice(_HIDING)).unlink(missing_ok=True)
    elif kind == "option":
        option = chance.choice(_OPTIONS)
        words.remove(option) if option in words else words.append(option)
    elif kind == "variable":
        fake.environment["NVCC_TEST"] = chance.choice(("", "1", "2"))
        fake.environment["NVCC_APPEND_FLAGS"] = chance.choice(("", "-O2", "-DC"))
    return kind


def _agree(fake: Fake, words: list[str], seen: set[bytes]) -> bool:
    """Launches; the output is right, and a new one was compiled. Whether it was a hit."""
    out, before = Path(words[-1]), len(fake.runs)
    out.unlink(missing_ok=True)
    assert fake.launch(*words) == 0
    right = expected([fake.compiler, *words], fake.environment)[0]
    assert out.read_bytes() == right
    is_hit = len(fake.runs) == before
    assert not (is_hit and right not in seen)
    seen.add(right)
    return is_hit


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: int, seed: int) -> int:
    """Plays cases; returns the number of hits."""
    chance, hits, seen = random.Random(seed), 0, set[bytes]()
    fake = use(monkeypatch, make(tmp_path / "0", tmp_path / "store"))
    options: list[str] = []
    for number in range(cases):
        kind = _change(fake, chance, options)
        words = fake.usual(*options, out=f"k{number % 7}.cubin")
        hits += _agree(fake, words, seen)
        if kind == "none" and "-lineinfo" not in options:
            assert _agree(fake, words, seen), "the same again"
        if number % 50 == 49:
            older = fake.root
            fake = use(monkeypatch, moved(fake, tmp_path / str(number), tmp_path / "store"))
            shutil.rmtree(older)
            assert _agree(fake, fake.usual(*options), seen) or "-lineinfo" in options, "only moved"
    return hits


def test_no_change_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 20 < play(tmp_path, monkeypatch, 150, 1) < 150


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_change_is_missed_in_thousands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    cases = CASES // 4 + 1
    hits = play(tmp_path, monkeypatch, cases, seed)
    print(f"{hits:,} hits of {cases:,}")
    assert cases // 10 < hits < cases, "nearly all or none are hits: the changes are not those that were meant"
