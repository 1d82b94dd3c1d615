"""Where output goes: a full disk, a closed or narrow terminal, a pipe whose reader goes away."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cli.support import write_file
from cache_engine.errors import UsageError
from tests.cli.test_cli import document, run
from tests.helpers import make_store, record_file


def test_a_full_disk_under_the_output_is_one_line(compiled_store: Path) -> None:
    key = next(iter(make_store(compiled_store).keys()))
    for arguments in (["ls"], ["ls", "--json"], ["show", key, "--part", "cubin", "--output", "-"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "cache_engine", "--store", str(compiled_store), *arguments]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("error: standard output: No space left on device")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["stdout", "stderr"])
def test_an_error_under_whose_output_the_disk_is_full_keeps_its_code(tmp_path: Path, where: str) -> None:
    command = [sys.executable, "-m", "cache_engine", "--store", str(tmp_path / "none"), "stats", "--json"]
    with open("/dev/full", "w") as full:
        out, err = (full if name == where else subprocess.PIPE for name in ("stdout", "stderr"))
        done = subprocess.run(command, text=True, stdout=out, stderr=err)
    assert done.returncode == 2
    if where == "stdout":
        assert (
            done.stderr
            == f"error: there is no store in {tmp_path}/none; gemm-cache compile or warm --sample creates one\n"
        )
    else:
        assert json.loads(done.stdout)["error"]["message"].startswith("there is no store in")


def _a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("verb", [("report", "-o"), ("timings",)])
@pytest.mark.parametrize("lay_out", [_a_pipe, _a_link_to_a_device])
def test_what_is_no_file_is_neither_replaced_nor_waited_for(
    compiled_store: Path, tmp_path: Path, verb: tuple[str, str], lay_out: Callable[[Path], None]
) -> None:
    lay_out(tmp_path / "out")
    done = run(*verb, tmp_path / "out", "--force", store=compiled_store)
    assert done.returncode == 2
    assert "is a device, pipe or socket" in done.stderr
    assert not (tmp_path / "out").is_file()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / ("n" * 255), tmp_path / "link"
    link.symlink_to(file)
    write_file(file, b"old", force=False)
    with pytest.raises(UsageError, match="--force"):
        write_file(file, b"new", force=False)
    with pytest.raises(UsageError, match="No such file"):
        write_file(tmp_path / "none" / "file", b"new", force=False)
    with monkeypatch.context() as changed:
        changed.setattr(os, "replace", _no_room)
        with pytest.raises(OSError, match="No space left"):
            write_file(file, b"new", force=True)
    assert file.read_bytes() == b"old"
    write_file(link, b"new", force=True)
    assert file.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {file, link}


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_closed_output_is_no_matter(compiled_store: Path) -> None:
    command = f"{sys.executable} -m cache_engine --store {compiled_store} ls >&- 2>&-"
    assert subprocess.run(["sh", "-c", command]).returncode == 0


def test_tables_fit_the_terminal_by_whole_columns(compiled_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [row["key"][:12] for row in document("ls", store=compiled_store)["rows"]]
    for columns in (60, 80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = run("ls", store=compiled_store)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert "last used" in lines[0]
        assert all(key in done.stdout for key in keys)
        assert "…" not in done.stdout
        assert ("config" in lines[0]) == (columns >= 100), columns


def test_the_code_can_be_piped(compiled_store: Path, tmp_path: Path) -> None:
    key = document("ls", store=compiled_store)["rows"][0]["key"]
    command = [
        sys.executable,
        "-m",
        "cache_engine",
        "--store",
        str(compiled_store),
        "show",
        key,
        "--part=cubin",
        "--output",
    ]
    piped = subprocess.run([*command, "-"], capture_output=True, check=True).stdout
    subprocess.run([*command, str(tmp_path / "code")], check=True)
    assert piped == (tmp_path / "code").read_bytes()
    assert piped.startswith(b"\x7fELF")


def test_hostile_text_in_a_record_reaches_no_terminal(compiled_store: Path) -> None:
    """A record made up by someone else, checksum and all."""
    import msgspec

    from cache_engine.store.codec import encode_record

    store = make_store(compiled_store)
    record = next(store.records())
    hostile = msgspec.structs.replace(record, name="\x1b]0;owned\x07[bold red]x[/]", created_by="\x1b[2J")
    record_file(store, record.key).write_bytes(encode_record(hostile))  # type: ignore[arg-type]
    for arguments in (("ls",), ("show", record.key), ("search", "owned")):
        assert "\x1b" not in run(*arguments, store=compiled_store).stdout
    assert "?]0;owned?[bold red]x[/]" in run("show", record.key, store=compiled_store).stdout


def test_a_reader_that_goes_away_is_no_error(compiled_store: Path) -> None:
    command = f"{sys.executable} -m cache_engine --store {compiled_store} show $KEY --part ptx | head -n 1"
    key = document("ls", store=compiled_store)["rows"][0]["key"]
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env={**os.environ, "KEY": key}
    )
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "{name}"),
        ("ls", "--settings-file", "{name}"),
        ("timings", "{name}", "--force"),
        ("pack", "import", "{name}.none"),
    ],
)
@pytest.mark.parametrize("name", ["\x1b[31mred", "\u202egnp", "a\nb", "no utf-8 \udcff"])
def test_hostile_names_on_the_command_line_reach_no_terminal_and_are_whole_in_json(
    compiled_store: Path, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    given = [word.format(name=name) for word in words]
    done = run(*given, store=compiled_store, cwd=tmp_path)
    assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines())
    assert done.stderr.count("error: ") == done.stderr.count("\n") == (done.returncode != 0)
    with_json = run(*given, "--json", store=compiled_store, cwd=tmp_path)
    assert name in " ".join(_texts(json.loads(with_json.stdout)))


def _texts(value: Any) -> Iterator[str]:
    """The texts in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value.values()])
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
