"""What the command line refuses: with exit code 2, the next step in the message, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.operator import GemmOperator
from cache_engine.cli.main import commands
from cache_engine.cli.support import WRONG_USAGE, _code_of
from cache_engine.errors import GemmCacheError, UsageError


def refused(*arguments: object) -> str:
    """The message of a command that ends with exit code 2."""
    with pytest.raises(GemmCacheError) as error:
        commands.main([str(argument) for argument in arguments], standalone_mode=False)
    assert _code_of(error.value) == WRONG_USAGE, error.value
    return str(error.value)


@pytest.mark.parametrize(
    "command",
    [
        "pack import missing.gemmpack",
        "pack import missing.gemmpack --dry-run",
        "evaluations --import missing.json",
        "calibrate missing.csv --check all",
        "evaluations --chip missing.json",
        "evaluations - --chip missing.json",
        "evaluate 64 64 64 --chip missing.json",
        "warm missing.csv",
        "warm missing/shapes",
        "pack export missing/kernels.gemmpack",
        "timings export missing/timings.csv",
        "evaluations missing/results.json --chip SG2262",
        "show SOME --part cubin --output missing/kernel.cubin",
    ],
)
def test_a_file_that_is_missing_is_wrong_usage(command: str, compiled_store: Path, tmp_path: Path) -> None:
    key = next((compiled_store / "metadata").rglob("*.json")).stem
    with open_cache(compiled_store) as cache:
        from cache_engine.evaluator.chips import load_hardware
        from cache_engine.evaluator.problem import EvaluationProblem

        if "SG2262" in command:
            cache.evaluations.evaluate(EvaluationProblem(64, 64, 64), load_hardware("SG2262"))
    words = [word.replace("SOME", key).replace("missing", str(tmp_path / "missing")) for word in command.split()]
    assert "missing" in refused("--store", compiled_store, *words)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("show", "KEY"),
        ("show a b c", "KEY"),
        ("show a b --part ptx", "one KEY"),
        ("show a --force", "--output"),
        ("show a --force --output x --part sass", "--part"),
        ("show a b --output x --part sass", "one KEY"),
        ("show a --output - --json", "--json"),
        ("show a --part cubin", "--output FILE"),
        ("stats --since 24h", "--by time"),
        ("stats --by arch --since 24h", "--by time"),
        ("stats --by toolchain --format prometheus", "--by"),
        ("stats --output x", "--format prometheus"),
        ("log --jobs --audit", "--audit"),
        ("log --jobs --since 1d", "--since"),
        ("log --audit --kind miss", "--kind"),
        ("log 1-1", "--jobs"),
        ("log --jobs --cancel", "ID"),
        ("pin --all", "--remove"),
        ("pin --remove", "--all"),
        ("clean --max-bytes x%", "like 20%"),
        ("clean --max-bytes 101%", "like 20%"),
        ("clean --max-bytes nan%", "like 20%"),
        ("verify abc", "NAME"),
        ("verify --yes", "--delete"),
        ("verify --restore --signatures", "--signatures"),
        ("warm", "MODEL"),
        ("warm Qwen3-8B --by shape", "--dry-run"),
        ("warm Qwen3-8B --sample", "MODEL"),
    ],
)
def test_options_that_do_not_go_together_are_refused(command: str, named: str, place: Path) -> None:
    """Before a store is opened, and with the name of what to change."""
    assert named in refused("--store", place, *command.split())
    assert not place.exists()


def test_importing_a_file_that_is_missing_makes_no_store(place: Path) -> None:
    refused("--store", place, "pack", "import", "missing.gemmpack")
    assert not place.exists()


@pytest.mark.parametrize(
    "request_",
    [
        "0 48 80",
        "64 48 80 --dtype fp2",
        "64 48 80 --arch sm_1",
        "64 48 80 --family nothing",
        "64 48 80 --family simt --compiler triton",
        "64 48 80 --config block_m=7",
        "16777216 16777216 64 --batch 65535",
        "64 48 80 --dtype fp32 --family tensor_core",
        "64 48 80 --config block_m=8,block_n=8,block_k=8,warps_m=9,warps_n=9,stages=9",
    ],
)
def test_a_refused_compile_leaves_no_store_behind(request_: str, place: Path) -> None:
    refused("--store", place, "compile", *request_.split())
    assert not place.exists()


@pytest.mark.parametrize("part", ["cubin", "ptx"])
def test_code_on_standard_output_is_all_there_is(part: str, compiled_store: Path) -> None:
    key = next((compiled_store / "metadata").rglob("*.json")).stem
    assert "--output -" in refused("--store", compiled_store, "show", key, "--part", part, "--output", "-", "--json")


def test_an_empty_text_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="dir is ''; it must be a path that is not empty"):
        open_cache("")
    with pytest.raises(UsageError, match="dir is ''; it must be a path that is not empty"):
        GemmOperator(cache_dir="").kernel(64, 48, 80)
    assert list(tmp_path.iterdir()) == []


def test_a_pack_is_named_by_a_text(compiled_store: Path, tmp_path: Path) -> None:
    with open_cache(compiled_store) as cache:
        key = next(cache.store.keys())
        cache.admin.export(tmp_path / "all.gemmpack")
    with open_cache(tmp_path / "new", packs=str(tmp_path / "all.gemmpack")) as cache:
        found = cache.look_up(key)
        assert found is not None
        assert found.tier == "pack"


def _dashboard(store: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cache_engine", "--store", str(store), "dashboard", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_the_dashboard_takes_the_next_port_unless_one_is_named(place: Path) -> None:
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # taken by another program, which is as good
            busy.bind(("127.0.0.1", 8501))
            busy.listen()
        server = _dashboard(place)
        try:
            assert server.stderr is not None
            said, where = server.stderr.readline(), server.stderr.readline()
        finally:
            server.kill()
            server.communicate()
        assert said.startswith("Port 8501 is taken; using ")
        port = said.rstrip(".\n").rpartition(" ")[2]
        assert int(port) > 8501
        assert f"http://127.0.0.1:{port} " in where
        named = _dashboard(place, "--port", "8501")
        assert "port 8501 is unavailable (Address already in use); choose another with --port" in named.communicate()[1]
        assert named.returncode == WRONG_USAGE


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_marks_are_ascii_where_the_locale_or_the_encoding_is(environment: dict[str, str], place: Path) -> None:
    command = [sys.executable, "-m", "cache_engine", "--store", str(place), "doctor"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True)
    assert b"Traceback" not in done.stderr
    checks, _, _ = done.stdout.decode("ascii").partition("\n\n")
    marks = {line[:1] for line in checks.splitlines()[1:]}
    assert {"+", "-"} <= marks <= {"+", "-", "x"}


def test_no_verb_fails_where_the_output_is_ascii(compiled_store: Path, tmp_path: Path) -> None:
    """Signs are replaced by similar ones, and JSON is escaped, not spoiled."""
    place = tmp_path / "störe"
    compiled_store.rename(place)
    key = next((place / "metadata").rglob("*.json")).stem
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom cache_engine.cli import support\n"
        "from cache_engine.cli.main import commands\n"
        "support._prepare_output()\n"
        "for line in sys.argv[2:]:\n"
        "    try:\n"
        "        commands.main(['--store', sys.argv[1], *line.split()], standalone_mode=False)\n"
        "    except SystemExit as end:\n"
        "        assert end.code in (0, 1), (line, end.code)\n"
    )
    lines = (
        "ls", "search sm_90", "stats --by arch", f"show {key}", f"show {key} --source", f"diff {key} {key}",
        "explain 64 48 81", "verify", "clean --dry-run", "sync", "quarantine ls", "timings ls",
        "evaluate 64 64 64 --chip H100", "warm Llama-3.1-8B --m 1-64 --dry-run", "export störe.gemmpack --force --json",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(place), *lines], env=environment, cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode("ascii")
    assert " x " in printed
    assert "st\\u00f6re.gemmpack" in printed
