"""The report of a replay: one HTML file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.replay.replay_results import LARGEST_DOCUMENT
from tests.benchmarks.running import run
from tests.report.test_html import Elements

REPLAY = ("replay", "azure2023_code", "--policy", "ours")


def _report(replayed: Path, file: Path) -> None:
    done = run("report", replayed, "-o", file, "--json", store=file.parent / "none")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == {"file": str(file), "title": said["title"], "bytes": file.stat().st_size}


def _written(file: Path) -> str:
    """The report's text, which is well-formed."""
    return "".join(Elements(file.read_text(encoding="utf-8")).text)


@pytest.mark.soak
def test_a_replays_report_has_every_policy_and_the_command(tmp_path: Path) -> None:
    done = run(*REPLAY, "--json", store=tmp_path / "none")
    (tmp_path / "replay.json").write_text(done.stdout)
    _report(tmp_path / "replay.json", tmp_path / "replay.html")
    text = _written(tmp_path / "replay.html")
    found = json.loads(done.stdout)
    assert all(f"\n{row['policy']}{row['kernels']:,}" in text for row in found["rows"])
    asked = text.partition("-m benchmarks ")[2].partition(" --json")[0].split()
    again = json.loads(run(*asked, "--json", store=tmp_path / "none").stdout)
    assert again["rows"] == found["rows"]


def test_a_stores_own_requests_are_reported(compiled_store: Path, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(run("replay", "journal", "--json", store=compiled_store).stdout)
    _report(tmp_path / "own.json", tmp_path / "own.html")
    assert "Replay of a store's requests" in _written(tmp_path / "own.html")


def _replay(**changed: object) -> dict[str, object]:
    row = {
        "order": "lru",
        "size_bytes": 1,
        "hit_rate": 0.5,
        "compile_seconds": 1.0,
        "again_seconds": 0.0,
        "evictions": 0,
    }
    whole = {"since": 1e9, "requests": 1.0, "kernels": 1, "predicted_kernels": 0, "needed_bytes": 1, "left_out": 0.0,
             "max_bytes": 1, "rows": [row]}  # fmt: skip
    return {**whole, "rows": [{**row, **changed}]} if changed.keys() <= row.keys() else {**whole, **changed}


def _orders(count: int) -> dict[str, object]:
    """A replay with so many orders, each at a size of its own; a figure of all would have their square of columns."""
    rows = [_replay(order=f"{number}", size_bytes=number)["rows"][0] for number in range(count)]  # type: ignore[index]
    return _replay(rows=rows)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"[" * 100_000, "not what"),
        (b"\xff\xfe", "not what"),
        (b'{"trace": "x"}', "not what"),
        (json.dumps(_replay(compile_seconds=-1.0)).encode(), "compile_seconds is -1.0"),
        (json.dumps(_replay(compile_seconds=1e300)).encode(), "compile_seconds is 1e+300"),
        (json.dumps(_replay(requests=-5.0)).encode(), "requests is -5.0"),
        (json.dumps(_replay(rows=_replay()["rows"] * 1001)).encode(), "1,001 rows"),  # type: ignore[operator]
        (json.dumps(_orders(21)).encode(), "it has more than 20 orders of eviction"),
        (b" " * (LARGEST_DOCUMENT + 1), "larger than 16.0 MiB"),
    ],
    ids=["empty", "deep", "not-text", "another", "negative", "huge", "minus", "many-rows", "orders", "large"],
)
def test_a_file_that_is_no_replay_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_bytes(content)
    done = run("report", tmp_path / "replay.json", "-o", tmp_path / "out.html", store=tmp_path / "none")
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert not (tmp_path / "out.html").exists()


def test_a_replay_of_hostile_words_is_a_report_of_words(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text(json.dumps(_replay(order="</td><script>")))
    _report(tmp_path / "replay.json", tmp_path / "out.html")
    assert "</td><script>" in _written(tmp_path / "out.html")
