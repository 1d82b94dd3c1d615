"""Old names of verbs and options work, hidden, and say their new ones; verbs that have left say where to go."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cache_engine.cli import old_names
from cache_engine.cli.main import commands
from cache_engine.cli.support import Verb, VerbGroup
from tests.cli.test_cli import run
from tests.cli.test_help import ALL

PLACE = "in a checkout of the source, run: python -m benchmarks"
VISIBLE = {" ".join(path): verb for path, verb in ALL}


def _run(*words: str) -> Result:
    return CliRunner().invoke(commands, words, prog_name="gemm-cache", terminal_width=78)


def _new_verb(words: list[str]) -> tuple[list[str], click.Command]:
    """The name of the new verb that the words begin with, and the verb."""
    for most in range(len(words), 0, -1):
        if " ".join(words[:most]) in VISIBLE:
            return words[:most], VISIBLE[" ".join(words[:most])]
    raise AssertionError(f"no visible verb: {words}")


@pytest.mark.parametrize("old", old_names.VERBS)
def test_an_old_verb_is_the_new_one_and_says_so(old: str) -> None:
    words, more = old_names.VERBS[old]
    name, verb = _new_verb(shlex.split(words))
    done = _run(*old.split(), "--help")
    assert (done.exit_code, done.stdout) == (0, _run(*name, "--help").stdout)
    assert done.stderr == f"gemm-cache {old} is now: gemm-cache {f'{words} {more}'.strip()}\n"
    assert old not in VISIBLE
    options = {option for parameter in verb.params for option in parameter.opts}
    assert {word for word in shlex.split(words) if word.startswith("--")} <= options


@pytest.mark.parametrize(("verb", "old"), old_names.OPTIONS)
def test_an_old_option_is_the_new_one_and_says_so(verb: str, old: str) -> None:
    words, more = old_names.OPTIONS[verb, old]
    done = _run(*verb.split(), old, *(["x"] if more else []), "--help")
    assert done.exit_code == 0, done.output
    assert f"gemm-cache {verb} {old} is now: gemm-cache {verb} {words} {more}".replace("= ", "=").split() in [
        line.split() for line in done.stderr.splitlines()
    ]
    name = old_names.VERBS[verb][0].split() if verb in old_names.VERBS else verb.split()
    command = _new_verb(name)[1] if name else commands
    options = {option: parameter for parameter in command.params for option in parameter.opts}
    assert old not in options
    if words:
        new = options[next(word for word in reversed(shlex.split(words)) if word.startswith("--"))]
        assert isinstance(new, click.Option)
        takes_value = not (new.is_flag or new.count)
        assert takes_value == bool(more or not words.split()[-1].startswith("--")), "the sentence names its value"


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some verbs and options with old names, so that the mechanism is tested whatever the tables have today."""
    verb_table = {"old": ("new --flag", "TEXT"), "olds ls": ("group new", ""), "group old": ("new", "")}
    option_table = {
        ("new", "--was"): ("--is", "N"),
        ("new", "-w"): ("--is", "N"),
        ("old", "--only"): ("--is 7 --flag", ""),
        ("new", "--file"): ("", "FILE"),
        ("new", "--n"): ("--name n=", "N"),
        ("", "--config"): ("--settings-file", "FILE"),
    }
    monkeypatch.setattr(old_names, "VERBS", verb_table)
    monkeypatch.setattr(old_names, "OPTIONS", option_table)


def _program() -> VerbGroup:
    program = VerbGroup("p", examples=())
    group = VerbGroup("group", examples=())
    program.add_command(group)
    for parent in (program, group):
        verb = Verb("new", examples=(), callback=lambda **given: print(json.dumps(given)))
        verb.params[:0] = [
            click.Option(["--is", "number"], type=int),
            click.Option(["--flag"], is_flag=True),
            click.Option(["--name"]),
            click.Argument(["words"], nargs=-1),
        ]
        parent.add_command(verb)
    return program


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize(
    ("given", "number", "flag", "name", "words", "said"),
    [
        ("new a --is 3", 3, False, None, ["a"], []),
        ("new a --was 3", 3, False, None, ["a"], ["new --was is now: gemm-cache new --is N"]),
        ("new --was=3 --", 3, False, None, [], ["new --was is now: gemm-cache new --is N"]),
        ("new -w3", 3, False, None, [], ["new -w is now: gemm-cache new --is N"]),
        ("new -v -w 3", 3, False, None, [], ["new -w is now: gemm-cache new --is N"]),
        ("new -vv -w 3", 3, False, None, [], ["new -w is now: gemm-cache new --is N"]),
        ("new -- --was", None, False, None, ["--was"], []),
        ("new --name --was b", None, False, "--was", ["b"], []),
        ("new --file f b", None, False, None, ["f", "b"], ["new --file is now: gemm-cache new FILE"]),
        ("new --n 5 a", None, False, "n=5", ["a"], ["new --n is now: gemm-cache new --name n=N"]),
        ("new --n=5", None, False, "n=5", [], ["new --n is now: gemm-cache new --name n=N"]),
        ("new --file=f", None, False, None, ["f"], ["new --file is now: gemm-cache new FILE"]),
        ("old a b", None, True, None, ["a", "b"], ["old is now: gemm-cache new --flag TEXT"]),
        (
            "old a --was 4",
            4,
            True,
            None,
            ["a"],
            ["old is now: gemm-cache new --flag TEXT", "new --was is now: gemm-cache new --is N"],
        ),
        (
            "old --only",
            7,
            True,
            None,
            [],
            ["old is now: gemm-cache new --flag TEXT", "old --only is now: gemm-cache old --is 7 --flag"],
        ),
        ("olds ls x", None, False, None, ["x"], ["olds ls is now: gemm-cache group new"]),
        ("olds --store s ls", None, False, None, [], ["olds ls is now: gemm-cache group new"]),
        ("group old y", None, False, None, ["y"], ["group old is now: gemm-cache new"]),
        ("group new --was 1", None, False, None, None, []),
        ("--config none.toml new", None, False, None, None, ["--config is now: gemm-cache --settings-file FILE"]),
        ("new --config none.toml", None, False, None, None, ["--config is now: gemm-cache --settings-file FILE"]),
    ],
)
def test_words_are_replaced_where_they_are_old_names_and_nowhere_else(
    given: str, number: int | None, flag: bool, name: str | None, words: list[str] | None, said: list[str]
) -> None:
    done = CliRunner().invoke(_program(), given.split(), prog_name="gemm-cache")
    sentences = [line.removeprefix("gemm-cache ") for line in done.stderr.splitlines() if " is now: " in line]
    assert sentences == said
    if words is None:
        assert done.exit_code != 0
    else:
        asked = {"number": number, "flag": flag, "name": name, "words": words}
        assert json.loads(done.stdout) == asked, done.output


@pytest.mark.usefixtures("without_compilers")
def test_an_old_settings_file_option_before_and_after_the_verb(tmp_path: Path, place: Path) -> None:
    (tmp_path / "mine.toml").write_text("max_entries = 7\n")
    for words in (
        ["--config", str(tmp_path / "mine.toml"), "doctor"],
        ["doctor", f"--config={tmp_path / 'mine.toml'}"],
    ):
        done = _run("--store", str(place), *words, "--json")
        rows = {row["name"]: row["value"] for row in json.loads(done.stdout)["settings"]}
        assert rows["max_entries"] == "7"
        assert done.stderr.splitlines()[0] == "gemm-cache --config is now: gemm-cache --settings-file FILE"


def test_old_options_do_what_they_did(compiled_store: Path, tmp_path: Path) -> None:
    key = next((compiled_store / "metadata").rglob("*.json")).stem
    code, report = tmp_path / "code", tmp_path / "report"
    for words in (["show", key, "--cubin", str(code)], ["show", f"--html={report}"]):
        assert run(*words, store=compiled_store).returncode == 0
    assert (code.read_bytes()[:4], report.read_bytes()[:15]) == (b"\x7fELF", b"<!doctype html>")
    model = ("evaluate", "Qwen3-8B", "--chip", "H100", "--tp=2", "--dp", "4", "--phase", "decode", "--json")
    found = json.loads(run(*model, store=tmp_path / "none").stdout)
    assert (found["tensor_parallel"], found["data_parallel"], found["phase"]) == (2, 4, "decode")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("bench", f"{PLACE}\n"),
        ("bench store --entries 10", f"{PLACE}\n"),
        ("bench --help", f"{PLACE}\n"),
        ("bench fleet --nodes 5", "docs/scale.md"),
        ("replay azure2023_code --load 4", f"{PLACE} replay\n"),
    ],
)
def test_a_verb_that_has_left_says_where(arguments: str, where: str, place: Path) -> None:
    done = run(*arguments.split(), store=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert where in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not place.exists()


def test_programs_that_ask_for_json_get_the_sentence_as_an_error(place: Path) -> None:
    done = run("bench", "store", "--json", store=place)
    assert done.returncode == 2
    assert PLACE in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "--help"], ["quarantine"], ["quarantine", "--help"]])
def test_an_old_verb_that_only_had_verbs_says_what_they_are_now(words: list[str]) -> None:
    said = _run(*words).output
    olds = [old for old in old_names.VERBS if old.startswith(f"{words[0]} ")]
    for old in olds:
        assert f"  gemm-cache {old} is now: gemm-cache {' '.join(old_names.VERBS[old])}".rstrip() in said.splitlines()
    assert len(olds) == 3


def test_no_old_name_is_in_the_help_or_completed() -> None:
    assert not {*old_names.VERBS, *old_names.GONE} & {*VISIBLE}
    for name in ("bench", "replay", *old_names.VERBS):
        assert f"\n  {name.split()[0]} " not in _run("--help").stdout or " " in name
