"""Traces: both forms are read alike, and what is none is refused with its line and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ROOT
from benchmarks.replay import traces
from benchmarks.replay.traces import Trace, read_trace
from cache_engine.errors import UsageError

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(trace: Trace) -> list[tuple[float, int, int]]:
    return list(zip(trace.arrivals_s, trace.prompts, trace.outputs, strict=True))


def test_requests_are_read_in_the_order_of_arrival_and_counted_from_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, f"\ufeff{HEAD}7.5,10,3\n5,20,1\n\n6.25,5,0\n")
    assert rows(read_trace(path)) == [(0.0, 20, 1), (1.25, 5, 1), (2.5, 10, 3)]


def test_azures_columns_are_read_alike_with_and_without_a_time_zone(tmp_path: Path) -> None:
    lines = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109")
    text = "\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""))
    plain = rows(read_trace(written(tmp_path, text)))
    assert plain == [(0.0, 374, 44), (pytest.approx(4.314579, abs=2e-6), 396, 109)]
    zoned = text.replace("900,", "900+00:00,").replace("18:15:50.9951690,", "20:15:50.9951690+02:00,")
    assert rows(read_trace(written(tmp_path, zoned))) == plain


def test_other_columns_and_their_order_do_not_matter(tmp_path: Path) -> None:
    path = written(tmp_path, "user, output_tokens ,arrival_s,prompt_tokens\nx,2,0,3\n")
    assert rows(read_trace(path)) == [(0.0, 3, 2)]


def test_a_compressed_trace_is_the_same_whatever_its_name(tmp_path: Path) -> None:
    text = f"{HEAD}0,1,2\n1,3,4\n"
    plain = written(tmp_path, text)
    packed = written(tmp_path, gzip.compress(text.encode()), "trace.dat")
    assert rows(read_trace(packed)) == rows(read_trace(plain))


def test_load_brings_the_requests_closer(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, f"{HEAD}0,1,2\n8,3,4\n"))
    assert rows(trace.at_load(4)) == [(0.0, 1, 2), (2.0, 3, 4)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-1,1,1", "line 3: arrival_s is '-1'; it must be a number of seconds from 0"),
        ("nan,1,1", "arrival_s is 'nan'"),
        ("inf,1,1", "arrival_s is 'inf'"),
        ("1e99,1,1", "arrival_s is '1e99'"),
        ("1_0,1,1x", "output_tokens is '1x'"),
        ("soon,1,1", "arrival_s is 'soon'"),
        (",1,1", "line 3: arrival_s is missing"),
        ("1,,1", "line 3: prompt_tokens is missing; remove the line or complete it"),
        ("1,1", "output_tokens is missing"),
        ("1,0,1", "prompt_tokens is '0'; it must be a whole number from 1 to 10,000,000"),
        ("1,-5,1", "prompt_tokens is '-5'"),
        ("1,1.5,1", "prompt_tokens is '1.5'"),
        ("1,10000001,1", "prompt_tokens is '10000001'"),
        ("1,1,\u0661", "output_tokens is"),
        ("1,1,-1", "output_tokens is '-1'; it must be a whole number from 0"),
        ("1,\x1b[31m,1", r"prompt_tokens is '\x1b[31m'"),
        ('1,"2,1', "cannot be read: unexpected end of data"),
        ("x" * 20_000, "line 3: it is longer than 10,000 characters"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace(written(tmp_path, f"{HEAD}0,1,1\n{line}\n5,1,1\n"))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("data", "said"),  # without times in what is compressed: the tests' names would differ between processes
    [
        (b"", "has no columns arrival_s, prompt_tokens, output_tokens, nor TIMESTAMP"),
        (b"a,b\n1,2\n", "its first line must name them"),
        (HEAD.encode(), "has no request"),
        (b"\xff\xfe\x00", "cannot be read"),
        (gzip.compress(HEAD.encode() * 50, mtime=0)[:40], "cannot be read"),
        (gzip.compress(HEAD.encode(), mtime=0)[:-6] + b"\0" * 6, "cannot be read"),
        (gzip.compress(b"x" * 50_000_000, mtime=0), "longer than"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "must be a date and time such as"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01 00:00:00+01:00,1,1\n",
            "must be a date and time such as",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2020-01-01 00:00:00,1,1\n2023-01-01 00:00:00,1,1\n",
            "covers 1,096 days; the limit is 366",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace(written(tmp_path, data))
    assert said in str(caught.value)


def test_a_missing_file_a_folder_and_no_name_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv", Path("a\0b")):
        with pytest.raises(UsageError, match=r"give a CSV file"):
            read_trace(path)


def test_too_many_requests_are_refused_and_rows_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEAD + "0,1,1\n" * 25_000)
    seen: list[int] = []
    read_trace(path, seen.append)
    assert seen == [10_000, 20_000, 25_000]
    monkeypatch.setattr(traces, "MOST_REQUESTS", 24_999)
    with pytest.raises(UsageError, match="more than 24,999 requests; split the trace"):
        read_trace(path)


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: (HEAD + text).encode()))
def test_any_bytes_are_a_trace_or_refused(tmp_path: Path, data: bytes) -> None:
    try:
        trace = read_trace(written(tmp_path, data))
    except UsageError:
        return
    assert len(trace)
    assert min(trace.prompts) >= 1 <= min(trace.outputs)


@pytest.mark.parametrize(("name", "requests"), [("azure2023_conv", 19_366), ("azure2023_code", 8_819)])
def test_the_traces_that_come_along_are_whole(name: str, requests: int) -> None:
    trace = read_trace(ROOT / "sample_data" / "traces" / f"{name}.csv.gz")
    assert len(trace) == requests
    assert list(trace.arrivals_s) == sorted(trace.arrivals_s)
    assert 3400 < trace.arrivals_s[-1] < 3600
