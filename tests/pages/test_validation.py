"""Measured latencies on the Evaluations page: the errors the command line gives, and a scatter plot."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from app.presenters import validation as presenters
from cache_engine.errors import UsageError
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.validation import is_kept_out, read_measurements, validate
from tests.pages.opening import Open, frames

HEADER = "arch,M,N,K,latency_us\n"
SIZES = [(m, n, 4096) for m in (1, 64, 1024, 8192) for n in (512, 1024, 2112, 7168)]


def measurements(factor: float = 1.25) -> str:
    """Latencies that are off by a known factor; they are made up, as their predictions are all that is looked at."""
    lines = [
        f"{arch},{m},{n},{k},{predict(EvaluationProblem(m, n, k), GPUS[arch]).latency_us * factor!r}"
        for arch in ("H100", "A100")
        for m, n, k in SIZES
    ]
    return HEADER + "\n".join(lines)


def test_errors_are_those_of_the_command_line(tmp_path: Path) -> None:
    found = presenters.validation_of(measurements().encode(), "mine.csv")
    path = tmp_path / "mine.csv"
    path.write_text(measurements())
    assert found.lines == [line for one in read_measurements(path) for line in validate(one)]
    table = presenters.validation_table(found.lines)
    assert {row["GPU"] for row in table} == {"H100", "A100"}
    assert all(row["MAPE"] == pytest.approx(0.2) and row["Bias"] == pytest.approx(-0.2) for row in table)
    assert presenters.validation_of(gzip.compress(measurements().encode()), "mine.csv.gz").lines == found.lines


def test_the_scatter_shows_each_point_and_the_line_of_equality() -> None:
    found = presenters.validation_of(measurements().encode(), "mine.csv")
    figure = presenters.validation_figure(found.points)
    line, *every = figure.data
    assert (line.name, [dots.name for dots in every]) == ("y = x", ["H100", "A100"])
    for dots in every:
        assert [y / x for x, y in zip(dots.x, dots.y, strict=True)] == pytest.approx([0.8] * len(SIZES))
    assert len({dots.marker.symbol for dots in every}) == 2


def test_of_many_points_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presenters, "MOST_POINTS", 5)
    found = presenters.validation_of(measurements().encode(), "mine.csv")
    assert found.count == 2 * len(SIZES)
    assert len(found.points) == 8


def test_held_out_pairs_alone() -> None:
    found = presenters.validation_of(measurements().encode(), "mine.csv", kept_out=True)
    assert found.count == 2 * sum(is_kept_out(n, k) for _, n, k in SIZES)


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"", "a.csv", "lacks the column arch"),
        (HEADER.encode(), "a.csv", "no measurements"),
        (f"{HEADER}H100,1,2,zero,3".encode(), "a.csv", "line 2: K is 'zero'"),
        (f"{HEADER}H9000,1,2,3,4".encode(), "a.csv", "unknown arch 'H9000'"),
        (b"\xff\xfe", "a.csv", "cannot be read"),
        (b"no gzip", "a.csv.gz", "cannot be decompressed"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-3], "a.csv.gz", "cannot be decompressed"),
        (gzip.compress(bytes(2**27 + 1), 1, mtime=0), "a.csv.gz", r"larger than 128 MiB"),
        (gzip.compress(HEADER.encode() + b"\n" * 2**20, 1, mtime=0), "a.csv.gz", "more than 1,000,000 lines"),
        (HEADER.encode() + b"," * 100_001, "a.csv", "line 2 is longer than 100,000 characters"),
        (b"arch" * 25_001, "a.csv", "line 1 is longer"),
    ],
    ids=[
        "empty",
        "no lines",
        "no number",
        "no GPU",
        "no text",
        "no gzip",
        "cut short",
        "a bomb",
        "blank lines",
        "columns without end",
        "a name without end",
    ],
)
def test_a_file_that_cannot_be_right_is_refused(data: bytes, name: str, said: str, tmp_path: Path) -> None:
    """Uploaded, and given to the command line."""
    with pytest.raises(UsageError, match=said):
        presenters.validation_of(data, name)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=said):
        read_measurements(tmp_path / name)


def test_on_the_page_a_comparison_that_takes_too_long_is_stopped(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_PAGE_LIMIT_S", "0")
    app = open_page(tmp_path / "store", "evaluations", e_kind="Validation")
    app.file_uploader[0].set_value(("mine.csv", measurements().encode(), "text/csv")).run()
    assert [error.value for error in app.error] == ["This takes too long."]
    assert "measurements was stopped after 0. A page searches for at most 0 s" in app.text[0].value
    assert "gemm-cache calibrate --check all, which has no limit" in app.text[0].value


def test_on_the_page_a_file_is_compared_or_refused(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "evaluations", e_kind="Validation")
    assert "Choose a file" in app.info[0].value
    app.file_uploader[0].set_value(("mine.csv", measurements().encode(), "text/csv")).run()
    assert not app.error
    assert f"{2 * len(SIZES)} measurements of mine.csv" in app.text[0].value
    assert "MAPE" in frames(app)[0]
    app.file_uploader[0].set_value(("bad.csv", b"arch,M\nH100,1", "text/csv")).run()
    assert [error.value for error in app.error] == ["Could not read this file."]
    assert "lacks the column N" in app.text[0].value
