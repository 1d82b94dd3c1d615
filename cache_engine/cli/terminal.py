"""Results on a terminal: tables, fields, progress. Programs read ``--json`` instead.

Rich lays tables out. The text is the same on a terminal, in a pipe and in a file: no colours, no escapes, nothing cut
off. Text from a store is never read as markup. Where the locale is C, or the output cannot encode our signs, similar
characters of ASCII stand for them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from cache_engine.units import human_ms, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

Align = Literal["left", "right"]
LEFT: Align = "left"
RIGHT: Align = "right"

_ASCII = {
    "✓": "+", "·": "-", "✗": "x", "×": "x", "–": "-", "µ": "u", "…": "...", "÷": "/", "→": "->", "◀": "<", "█": "#",
}  # fmt: skip

# Rich folds what is wider than its console; a table that cannot be that wide is never folded.
_UNLIMITED = 1_000_000


def print_table(
    columns: Mapping[str, Align], rows: Iterable[Sequence[object]], dispensable: Sequence[str] = ()
) -> None:
    """Prints rows under headings; no cell is cut off.

    Args:
        columns: headings, and the alignment of each.
        dispensable: columns to leave out, in this order, on a terminal too narrow for all.
    """
    texts = [[printable(str(value)) for value in row] for row in rows]
    shown = list(columns)
    room = _room()
    for name in (*dispensable, None):
        numbers = [number for number, heading in enumerate(columns) if heading in shown]
        table = _table(header=True)
        for heading in shown:
            table.add_column(_plain(heading), justify=columns[heading], no_wrap=True)
        if texts:
            # One tall row: rich lays that out faster than a row each.
            table.add_row(*(_plain("\n".join(row[number] for row in texts)) for number in numbers))
        if name is None or room is None or _width(table) <= room:
            break
        shown.remove(name)
    _print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Prints names and values, one pair a line, aligned."""
    table = _table(header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for name, value in fields.items():
        table.add_row(_plain(printable(name)), _plain(printable(str(value))))
    _print(table)


def print_warnings(warnings: Sequence[str]) -> None:
    """Prints a compiler's warnings on standard error, because they are not part of the result."""
    for text in warnings:
        print(printable(f"warning: {text}"), file=sys.stderr)


def look_alike(error: UnicodeError) -> tuple[str, int]:
    """An error handler for encoding: replaces characters that the encoding lacks with similar ones, else ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def escaped(text: str) -> str:
    """A JSON document in characters that the output can encode; the others are escaped, so nothing is lost."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    if encoding.lower().replace("-", "") == "utf8":
        return text
    return re.sub("[^ -~\n]", lambda sign: json.dumps(sign[0])[1:-1], text)


def short_time(seconds: float) -> str:
    """A duration with the digits that matter: ``"12 ns"``, ``"3.4 µs"``, ``"212 ms"``."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else human_ms(seconds * 1e3)


def moment(at: float) -> str:
    """A time, in seconds since 1970, as local date and time of day."""
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M}"


def sentence(text: str) -> str:
    """A text with a capital letter at the start and a full stop at the end."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


@contextmanager
def progress(description: str, total: int | None, *, time_left: bool = True) -> Iterator[tuple[Progress, Any]]:
    """Shows a progress bar on standard error in the ``with``; yields the bar, and the task to advance.

    Args:
        time_left: whether to show the time left, computed from the speed so far, if the total is known. False where the
            description already says the time.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if time_left else ()),
        console=Console(stderr=True),
    )
    with bar:
        yield bar, bar.add_task(description, total=total)


def _room() -> int | None:
    """The width of a table in characters; ``None`` (no limit) in a file or pipe, unless the environment sets it."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if known else None


def _table(header: bool) -> Table:
    from rich.table import Table

    return Table(box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_edge=False)


def _plain(text: str) -> Any:
    """A text in the form that the library rich prints unchanged."""
    from rich.text import Text

    if os.environ.get("LC_ALL") in ("C", "POSIX"):  # Python prints UTF-8 all the same
        text = "".join(_ASCII.get(sign, sign) for sign in text)
    return Text(text)


def _console(file: io.StringIO | None = None) -> Console:
    from rich.console import Console

    return Console(file=file or io.StringIO(), width=_UNLIMITED, color_system=None, force_terminal=False, _environ={})


def _width(table: Table) -> int:
    return _console().measure(table).maximum


def _print(table: Table) -> None:
    out = io.StringIO()
    _console(out).print(table)
    for line in out.getvalue().rstrip("\n").split("\n"):
        print(line.rstrip())


def printed_us(value: object) -> str:
    """A time in microseconds as text; a dash if the value is not a number, which a stored timing may contain."""
    return human_ms(value / 1e3) if isinstance(value, int | float) and abs(value) < 1e15 else "–"


def printed_number(value: object) -> str:
    """A number with two decimals; a dash if the value is not a number."""
    return f"{value:,.2f}" if isinstance(value, int | float) and abs(value) < 1e15 else "–"
