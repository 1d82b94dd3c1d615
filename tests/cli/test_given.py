"""The options of every verb: before its name or after, with the same effect."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cache_engine.cli.main import commands
from cache_engine.cli.support import Verb
from cache_engine.cli.support.global_options import given, settings_of
from cache_engine.errors import UsageError
from tests.cli.test_cli import SHAPE, run


def _leaves(group: click.Group = commands, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Verb]]:
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from _leaves(verb, (*path, name))
        elif isinstance(verb, Verb):
            yield (*path, name), verb


LEAVES = dict(_leaves())


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_verb_takes_the_global_options_after_its_name(path: tuple[str, ...], tmp_path: Path) -> None:
    verb = LEAVES[path]
    arguments = shlex.split(verb.examples[0])[len(path) :]
    extra = ["--store", str(tmp_path / "store"), "-vv", "--no-pager"]
    (tmp_path / "some.toml").write_text("max_entries = 7\n")
    extra += ["--settings-file", str(tmp_path / "some.toml")]
    ctx = verb.make_context(path[-1], [*extra, *arguments])
    settings = settings_of(ctx)
    assert settings.directory() == tmp_path / "store"
    assert settings.log == "debug"
    assert given(ctx)["no_pager"] is True
    assert settings.max_entries == 7
    assert not {"store", "verbose", "no_pager"} & set(ctx.params), "they are no arguments of the verb"


def test_after_the_verb_counts_before_it_and_each_v_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*words: str) -> click.Context:
        with commands.make_context("gemm-cache", list(words)) as ctx:
            name, verb, rest = commands.resolve_command(ctx, ctx._protected_args + ctx.args)
            assert verb is not None
            return verb.make_context(name, rest, parent=ctx)

    ctx = asked("--store", "a", "-v", "ls", "--store", "b", "-v")
    assert (settings_of(ctx).directory().name, settings_of(ctx).log) == ("b", "debug")
    ctx = asked("--store", "a", "ls", "-v")
    assert (settings_of(ctx).directory().name, settings_of(ctx).log) == ("a", "info")
    assert settings_of(asked("-vv", "ls", "-v")).log == "debug", "more says nothing else"
    monkeypatch.setenv("GEMM_CACHE_LOG", "error:json")
    assert settings_of(ctx).log == "info:json"
    with pytest.raises(UsageError, match="--store is empty"):
        settings_of(asked("ls", "--store", ""))


def test_a_store_named_after_the_verb_is_used_and_logs_leave_standard_output_alone(tmp_path: Path) -> None:
    done = run("compile", *SHAPE, "--json", "-v", "--store", str(tmp_path / "mine"))
    assert json.loads(done.stdout)["tier"] == "compiled"
    assert "INFO cache_engine.cache.serving: miss: gemm_simt" in done.stderr
    assert (tmp_path / "mine" / "metadata").is_dir()
    done = run("compile", *SHAPE, "--config", "gemm-cache.toml", "--store", str(tmp_path / "mine"))
    assert done.returncode == 2
    assert "a settings file is given by --settings-file" in done.stderr
