"""The host time of a call of ``matmul`` is measured without a GPU."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from benchmarks import timing
from benchmarks.entries import calls
from benchmarks.results import Result


def test_what_a_call_takes_before_cupy_is_measured_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ImportError
    monkeypatch.setattr(calls, "compare", partial(_compared_once, timing.compare))
    lines: list[Any] = []
    calls.calls(lines.append)
    assert all(isinstance(line, Result) for line in lines)
    assert [line.name.split(",")[0] for line in lines] == [
        "host time of a repeated matmul",
        "host time of a repeated grouped_matmul",
    ]


def _compared_once(compare: Any, *named: Any, **_: Any) -> Result:
    found: Result = compare(*named, samples=1)
    return found
