"""Long output on a terminal goes through a pager: that of ``PAGER``, else ``less``."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

import click

from cache_engine.cli.support.given import NO_PAGER, given


class _Screen(io.StringIO):
    """Text on its way to a terminal."""

    def isatty(self) -> bool:
        """It is, so tables are as wide as the terminal."""
        return True


def print_paged(print_text: Callable[[], None]) -> None:
    """Prints a text; through a pager if it is longer than the screen of a terminal."""
    ctx = click.get_current_context(silent=True)
    is_plain = ctx is None or given(ctx).get(NO_PAGER) or os.environ.get("TERM") in {None, "dumb"}
    if is_plain or not sys.stdout.isatty() or not sys.stdin.isatty():
        print_text()
        return
    screen = _Screen()
    with redirect_stdout(screen):
        print_text()
    text = screen.getvalue()
    if text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text.removesuffix("\n"))  # which it adds
    else:
        print(text, end="")
