"""The options that every verb takes, before its name and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cache_engine.errors import UsageError
from cache_engine.settings import Settings

NO_PAGER = "no_pager"
_GIVEN = "gemm-cache options"
LEVELS = ("warning", "info", "debug")  # by the number of -v


def given(ctx: click.Context) -> dict[str, Any]:
    """The values of the global options on a command line, by name. A value after the verb wins over one before it."""
    options: dict[str, Any] = ctx.meta.setdefault(_GIVEN, {})
    return options


def settings_of(ctx: click.Context) -> Settings:
    """The settings in force for a command line.

    Raises:
        UsageError: when a setting or option has a value that is not allowed.
    """
    options = given(ctx)
    if options.get("store") == "":
        raise UsageError("--store is empty; give a directory")
    arguments: dict[str, Any] = {"dir": Path(options["store"])} if "store" in options else {}
    settings = Settings.load(file=options.get("settings_file"), **arguments)
    if verbose := options.get("verbose", 0):
        form = ":json" if (settings.log or "").endswith(":json") else ""
        settings = settings.with_overrides({"log": f"{LEVELS[min(verbose, 2)]}{form}"})
    return settings


def _note(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    name = option.name or ""
    if name == "verbose":
        value += given(ctx).get(name, 0)
    if value is not None and value is not False:
        given(ctx)[name] = value


def global_options() -> list[click.Option]:
    """The options that every verb takes; each stores its value in the dictionary that ``given`` returns."""
    path = click.Path(path_type=Path)
    return [
        click.Option(
            ["--store"],
            type=click.Path(),
            expose_value=False,
            callback=_note,
            help="Directory of the store. Default: $GEMM_CACHE_DIR, else the user cache directory.",
        ),
        click.Option(
            ["--settings-file"],
            type=path,
            expose_value=False,
            callback=_note,
            help="Settings file. Default: $GEMM_CACHE_CONFIG, else the user's own gemm-cache/gemm-cache.toml.",
        ),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_note,
            help="Log hits, misses and changes of the store on standard error; -vv logs more.",
        ),
        click.Option(
            ["--no-pager"],
            is_flag=True,
            expose_value=False,
            callback=_note,
            help="Print long lists as they are, also on a terminal.",
        ),
    ]
