"""Every regular expression of the program takes linear time, and no memory to speak of, whatever text it reads."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest

from tests.fuzz.patterns import Recipe, Used, recipes, used

_OF_OUR_OWN = {
    "cache_engine.compilers.triton_worker._ENTRY": "reads PTX of our templates, and a change of it changes keys",
    "app.server.gate._INLINE_SCRIPT": "reads the page of the installed Streamlit",
}
_LETTERS = 64_000
_MOST_S, _NOTHING_S = (
    0.1,
    0.01,
)  # of CPU time for so many letters: usually a millisecond, and seconds where it is a square
_TRIES = 5  # each of which must be slow
_MOST_GROWTH = 10  # of the time for four times the letters: linear is 4, a square 16
_MOST_BYTES = 80  # of memory for each letter: the pieces of a replaced text take 46


@pytest.mark.parametrize(("signs", "candidates"), [("", 2), pytest.param(" 1a\n", 40, marks=pytest.mark.soak)])
def test_every_pattern_takes_linear_time(signs: str, candidates: int) -> None:
    found = {(each.pattern, each.methods): each for each in used()}
    assert len(found) > 100
    assert {each.where for each in found.values()} >= _OF_OUR_OWN.keys()
    foreign = [each for each in found.values() if each.where not in _OF_OUR_OWN]
    assert [each.where for each in foreign if _is_slow(each, signs, candidates)] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (rb"(ptxas)[^\0]*\0[^\0]*release [^\0]*V(\d[\d.]*)", "search"),
        pytest.param(
            rb"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w{1,400})\s*\(",
            "findall",
            marks=pytest.mark.soak,
        ),
        pytest.param(r"^(\w+):.*release [^\n]*?V(\d[\d.]*)", "search", marks=pytest.mark.soak),
        pytest.param(
            r"^\s*/\*[0-9a-f]{4,}\*/\s+(\{?\s*(?:@!?U?P(?:\d+|T)\s+)?([A-Z][A-Z0-9_]*)[^;]*?)\s*;",
            "match",
            marks=pytest.mark.soak,
        ),
        (r"(a|a)*b", "match"),
        (r'"(?:[^"\\]|\\.)*":\d', "match"),
    ],
)
def test_a_pattern_of_quadratic_time_or_large_memory_is_found(pattern: str | bytes, method: str) -> None:
    flags = re.DOTALL if method == "search" else 0
    assert _is_slow(Used("here", re.compile(pattern, flags), (method,)), "", 4)


def _is_slow(each: Used, signs: str, candidates: int) -> bool:
    """Whether one of the texts that take longest when they are short takes too long, or too much memory."""
    ranked: list[tuple[float, int, Recipe]] = []
    for number, recipe in enumerate(recipes(each.pattern, signs)):
        # Of few letters first: where each doubles the time, more would take for ever.
        for size in (22, 2_000):
            seconds = _seconds(each, recipe.text(size))
            if seconds > _MOST_S and all(_seconds(each, recipe.text(size)) > _MOST_S for _ in range(_TRIES)):
                return True
        ranked.append((seconds, number, recipe))
    slowest = [recipe for _, _, recipe in sorted(ranked, key=lambda row: row[:2])[-candidates:]]
    return any(_grows(each, recipe) for recipe in slowest) or _bytes(each, slowest[-1]) > _MOST_BYTES * _LETTERS


def _grows(each: Used, recipe: Recipe) -> bool:
    texts = [recipe.text(_LETTERS >> times) for times in range(6, -1, -1)]  # where it is a cube, more takes for ever
    for _ in range(_TRIES):  # what interrupts the process may be counted as its time
        times: list[float] = []
        while len(times) < len(texts) and max(times, default=0.0) < _MOST_S:
            times.append(_seconds(each, texts[len(times)]))
        # How it grows, not how long it takes: a slow machine needs long for what is linear.
        if times[-1] < _NOTHING_S or (len(times) > 2 and times[-1] < _MOST_GROWTH * times[-3]):
            return False
    return True


def _seconds(each: Used, text: str) -> float:
    """CPU time."""
    started = time.process_time()
    each.run(text)
    return time.process_time() - started


def _bytes(each: Used, recipe: Recipe) -> int:
    text = recipe.text(_LETTERS)
    tracemalloc.start()
    try:
        each.run(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
