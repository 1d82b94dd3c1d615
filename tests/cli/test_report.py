"""``report``: one HTML file about a kernel, two, or a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_cli import document, run
from tests.helpers import make_store
from tests.report.test_html import Elements


def _written(file: Path) -> str:
    """The report's text, which is well-formed."""
    text = file.read_text(encoding="utf-8")
    return "".join(Elements(text).text)


def test_a_kernels_report_has_its_facts_its_code_and_the_commands(compiled_store: Path, tmp_path: Path) -> None:
    record = next(record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16")
    file = tmp_path / "kernel.html"
    said = document("show", record.key[:16], "--output", file, store=compiled_store)
    assert said == {"file": str(file), "title": said["title"], "bytes": file.stat().st_size}
    text = _written(file)
    for part in ("source", "ptx", "sass"):
        assert run("show", record.key, "--part", part, store=compiled_store).stdout.rstrip("\n") in text
    assert all(value in text for _, value in record.components)
    command = f"gemm-cache --store {compiled_store} show {record.key} --output report.html"
    assert command in text
    assert f"gemm-cache --store {compiled_store} compile 128 256 192" in text
    assert "HMMA" in text
    again = tmp_path / "again.html"
    assert run(*command.split()[3:-1], again, store=compiled_store).returncode == 0
    assert _written(again).partition("Made at")[0] == text.partition("Made at")[0]


def test_two_kernels_are_compared(compiled_store: Path, tmp_path: Path) -> None:
    first, second = sorted(record.key for record in make_store(compiled_store).records())[:2]
    document("show", first, second, "--output", tmp_path / "two.html", store=compiled_store)
    text = _written(tmp_path / "two.html")
    assert {"Key differences", "Resources", "Static instruction mix"} <= set(text.split("\n"))
    assert "SASS diff" in text
    document("show", first, first, "--output", tmp_path / "same.html", store=compiled_store)
    assert "Same key: this is the same kernel twice." in _written(tmp_path / "same.html")


def test_a_stores_report_has_its_kernels_and_its_history(compiled_store: Path, tmp_path: Path) -> None:
    document("show", "--output", tmp_path / "store.html", store=compiled_store)
    text = _written(tmp_path / "store.html")
    stats = document("stats", store=compiled_store)
    assert f"{stats['entries']:,} of {stats['max_entries']:,}" in text
    assert all(record.key[:12] in text for record in make_store(compiled_store).records())
    assert "Lookups by the tier that served them" in text


def test_an_existing_file_stays_unless_it_may_be_replaced(compiled_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "store.html"
    file.write_text("mine")
    done = run("show", "--output", file, store=compiled_store)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert file.read_text() == "mine"
    assert run("show", "--output", file, "--force", store=compiled_store).returncode == 0
    assert file.read_text() != "mine"
    assert [path.name for path in tmp_path.iterdir() if path != compiled_store] == ["store.html"]


@pytest.mark.parametrize("part", ["source", "cubin"])
def test_a_part_replaces_a_file_at_once_and_never_a_pipe(compiled_store: Path, tmp_path: Path, part: str) -> None:
    """It would wait for ever for a reader of the pipe; a file that is open elsewhere keeps its old bytes."""
    record = next(record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16")
    pipe, file = tmp_path / "pipe", tmp_path / "part"
    os.mkfifo(pipe)
    file.write_text("mine")
    with file.open() as old:
        assert run("show", record.key, "--part", part, "--output", file, store=compiled_store).returncode == 0
        assert old.read() == "mine"
    assert file.read_bytes() != b"mine"
    done = run("show", record.key, "--part", part, "--output", pipe, store=compiled_store, timeout=30)
    assert (done.returncode, pipe.is_fifo()) == (2, True)
    assert "is a device, pipe or socket" in done.stderr


def test_the_output_may_be_standard_output(compiled_store: Path) -> None:
    done = run("show", "--output", "-", store=compiled_store)
    assert done.stdout.startswith("<!doctype html>")
    assert run("show", "--output", "-", "--json", store=compiled_store).returncode == 2


def test_three_kernels_are_refused(compiled_store: Path) -> None:
    assert run("show", "a", "b", "c", "--output", "-", store=compiled_store).returncode == 2


def test_a_folder_that_is_not_there_is_named(compiled_store: Path, tmp_path: Path) -> None:
    done = run("show", "--output", tmp_path / "none" / "x.html", store=compiled_store)
    assert done.returncode == 2
    assert "No such file" in done.stderr
