"""``report``: one HTML file about a kernel, two, a store or a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.cli.reading.replayed import LARGEST_DOCUMENT
from tests.cli.test_cli import document, run
from tests.helpers import make_store
from tests.report.test_html import Elements

REPLAY = ("replay", "azure2023_code", "--policy", "ours")


def _written(file: Path) -> str:
    """The report's text, which is well-formed."""
    text = file.read_text(encoding="utf-8")
    return "".join(Elements(text).text)


def test_a_kernels_report_has_its_facts_its_code_and_the_commands(compiled_store: Path, tmp_path: Path) -> None:
    record = next(record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16")
    file = tmp_path / "kernel.html"
    said = document("report", record.key[:16], "-o", file, store=compiled_store)
    assert said == {"file": str(file), "title": said["title"], "bytes": file.stat().st_size}
    text = _written(file)
    for code in ("--source", "--ptx", "--sass"):
        assert run("show", record.key, code, store=compiled_store).stdout.rstrip("\n") in text
    assert all(value in text for _, value in record.components)
    command = f"gemm-cache --store {compiled_store} report {record.key} -o report.html"
    assert command in text
    assert f"gemm-cache --store {compiled_store} compile 128 256 192" in text
    assert "HMMA" in text
    again = tmp_path / "again.html"
    assert run(*command.split()[3:-1], again, store=compiled_store).returncode == 0
    assert _written(again).partition("Made at")[0] == text.partition("Made at")[0]


def test_two_kernels_are_compared(compiled_store: Path, tmp_path: Path) -> None:
    first, second = sorted(record.key for record in make_store(compiled_store).records())[:2]
    document("report", first, second, "-o", tmp_path / "two.html", store=compiled_store)
    text = _written(tmp_path / "two.html")
    assert {"Key differences", "Resources", "Static instruction mix"} <= set(text.split("\n"))
    assert "SASS diff" in text
    document("report", first, first, "-o", tmp_path / "same.html", store=compiled_store)
    assert "Same key: this is the same kernel twice." in _written(tmp_path / "same.html")


def test_a_stores_report_has_its_kernels_and_its_history(compiled_store: Path, tmp_path: Path) -> None:
    document("report", "-o", tmp_path / "store.html", store=compiled_store)
    text = _written(tmp_path / "store.html")
    stats = document("stats", store=compiled_store)
    assert f"{stats['entries']:,} of {stats['max_entries']:,}" in text
    assert all(record.key[:12] in text for record in make_store(compiled_store).records())
    assert "Lookups by the tier that served them" in text


def test_a_replays_report_has_every_policy_and_the_command(tmp_path: Path) -> None:
    done = run(*REPLAY, "--json", store=tmp_path / "none")
    (tmp_path / "replay.json").write_text(done.stdout)
    document("report", "--replay", tmp_path / "replay.json", "-o", tmp_path / "replay.html", store=tmp_path / "none")
    text = _written(tmp_path / "replay.html")
    found = json.loads(done.stdout)
    assert all(f"\n{row['policy']}{row['kernels']:,}" in text for row in found["rows"])
    asked = text.partition("gemm-cache ")[2].partition(" --json")[0].split()
    again = json.loads(run(*asked, "--json", store=tmp_path / "none").stdout)
    assert again["rows"] == found["rows"]


def test_a_stores_own_requests_are_reported(compiled_store: Path, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(run("replay", "journal", "--json", store=compiled_store).stdout)
    document("report", "--replay", tmp_path / "own.json", "-o", tmp_path / "own.html", store=compiled_store)
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
    done = run("report", "--replay", tmp_path / "replay.json", "-o", tmp_path / "out.html")
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert not (tmp_path / "out.html").exists()


def test_a_replay_of_hostile_words_is_a_report_of_words(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text(json.dumps(_replay(order="</td><script>")))
    document("report", "--replay", tmp_path / "replay.json", "-o", tmp_path / "out.html", store=tmp_path / "none")
    assert "</td><script>" in _written(tmp_path / "out.html")


def test_an_existing_file_stays_unless_it_may_be_replaced(compiled_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "store.html"
    file.write_text("mine")
    done = run("report", "-o", file, store=compiled_store)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert file.read_text() == "mine"
    assert run("report", "-o", file, "--force", store=compiled_store).returncode == 0
    assert file.read_text() != "mine"
    assert [path.name for path in tmp_path.iterdir() if path != compiled_store] == ["store.html"]


def test_the_output_may_be_standard_output(compiled_store: Path) -> None:
    done = run("report", "-o", "-", store=compiled_store)
    assert done.stdout.startswith("<!doctype html>")
    assert run("report", "-o", "-", "--json", store=compiled_store).returncode == 2


@pytest.mark.parametrize("arguments", [("a", "b", "c"), ("a", "--replay", "replay.json")])
def test_what_makes_no_sense_together_is_refused(arguments: tuple[str, ...], compiled_store: Path) -> None:
    assert run("report", *arguments, "-o", "-", store=compiled_store).returncode == 2


def test_a_folder_that_is_not_there_is_named(compiled_store: Path, tmp_path: Path) -> None:
    done = run("report", "-o", tmp_path / "none" / "x.html", store=compiled_store)
    assert done.returncode == 2
    assert "No such file" in done.stderr
