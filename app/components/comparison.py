"""Kernels side by side, on the page Compare: their properties, their instructions and their machine code."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import streamlit as st

from app import widgets
from app.components import tables
from app.presenters.columns import Column
from cache_engine.errors import GemmCacheError
from cache_engine.insight import alignment
from cache_engine.insight.comparison import HEADINGS, Comparison, Named, Pair, Value, change, merged, shown
from cache_engine.units import counted

Code = Callable[[], tuple[Named, str]]
"""A function that returns a kernel and its machine code as text, or raises ``GemmCacheError``."""


def side_by_side(found: Sequence[Comparison], heads: Sequence[str]) -> None:
    """Draws tables of kernels' properties, from the comparisons of the first with each other."""
    columns = st.columns(2) if len(heads) == 2 else [st.container()] * 2
    for heading, rows in merged(found).items():
        with columns[heading not in HEADINGS[:2]]:
            st.header(heading)
            draw_rows(rows, heads, key=heading)


def draw_rows(
    rows: Mapping[str, Sequence[Value]],
    heads: Sequence[str],
    *,
    key: str,
    show: Callable[[Value], str] = shown,
    differ: Callable[[Pair], str] = change,
) -> None:
    """Draws a table with a row for each property and a column for each kernel, of which the first is the baseline.

    Values that differ from the baseline's stand out; behind such a number is its difference from the baseline's.
    """
    cells: list[list[dict[str, Any]]] = [
        [{"text": name}, *(_cell(Pair(name, values[0], value), show, differ) for value in values)]
        for name, values in rows.items()
    ]
    tables.draw_cells(
        [Column("Property", ""), *(Column(head, "") for head in heads)], cells, key=key, even=len(heads) > 2
    )


def _cell(pair: Pair, show: Callable[[Value], str], differ: Callable[[Pair], str]) -> dict[str, Any]:
    text, by = show(pair.second), differ(pair)
    number = {} if pair.second is None or isinstance(pair.second, str) else {"value": pair.second}
    if not pair.differs:
        return {"text": text, **number}
    return {"text": f"{text} ({by})" if by else text, "title": "Differs from the baseline", "mark": True, **number}


def draw_machine_code(first: Code, second: Code) -> None:
    """Draws a switch that shows the difference of machine code; off at first, as disassembling takes half a second."""
    if st.toggle("SASS diff", key="sass", bind="query-params"):
        try:
            draw_difference(*first(), *second())
        except GemmCacheError as error:
            widgets.problem("Could not disassemble.", str(error))


def draw_difference(first: Named, first_sass: str, second: Named, second_sass: str) -> None:
    """Draws the difference of two kernels' machine code, loop by loop: lines near a difference or, on request, all."""
    parts = _aligned(first_sass, first.name, second_sass, second.name)
    if all(pair.first == pair.second for part in parts for pair in part.pairs):
        st.info("SASS is identical.")
        return
    st.caption(share_words(parts))
    whole = st.toggle("All lines", key="sass-all", bind="query-params")
    heads = (f"{one.key[:12]} {one.name}" for one in (first, second))
    st.html(STYLE)
    st.html(difference_html(parts, *heads, whole=bool(whole)))


@st.cache_data(show_spinner="Aligning…", max_entries=16)
def _aligned(first_sass: str, first: str, second_sass: str, second: str) -> list[alignment.Part]:
    return alignment.aligned(first_sass, first, second_sass, second)


MOST_ROWS = 4_000
"""The most rows of the table of differences that are drawn; the command of the page prints all."""

_CONTEXT = 3
_SIGNS = {alignment.MOVED: ("↕", "moved"), alignment.OPERANDS: ("~", "other operands")}
STYLE = """<style>
.sass { max-height: 70vh; overflow: auto; border: 1px solid color-mix(in srgb, currentColor 20%, transparent);
  border-radius: 0.5rem; }
.sass table { width: 100%; table-layout: fixed; border-collapse: collapse;
  font: 0.75rem/1.5 "Source Code Pro", monospace; }
.sass td { padding: 0 0.5rem; white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top; }
.sass td.sign { padding: 0; text-align: center; }
.sass thead th:first-child { width: 1.5rem; }
.sass th { text-align: left; padding: 0.3rem 0.5rem; font: inherit; font-weight: 600; }
.sass thead th { position: sticky; top: 0; background: light-dark(#ffffff, #14120f); }
.sass .part th { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.sass .far td { font-style: italic; }
.sass .changed .first:not(:empty) { background: light-dark(#ffe1db, #4d2119); }
.sass .changed .second:not(:empty) { background: light-dark(#dcf2d3, #1f3d16); }
.sass .operands td { background: light-dark(#fff2c8, #453a12); }
.sass .moved td { background: light-dark(#e3ecf8, #1e2c40); }
</style>"""


def share_words(parts: Sequence[alignment.Part]) -> str:
    """The share of the first kernel's instructions that differ, in words, and which differences are left out."""
    lines = sum(pair.first is not None for part in parts for pair in part.pairs)
    return (
        f"{alignment.changed_share(parts):.0%} of the first kernel's {counted(lines, 'line')} differ. Lines that "
        "differ in registers only count as the same; ↕ has moved within its part; ~ has other constants, addresses or "
        "labels; − and + are in one kernel only."
    )


def difference_html(parts: Sequence[alignment.Part], first: str, second: str, *, whole: bool) -> str:
    """A difference as an HTML table, which keys can scroll. All text is escaped.

    Args:
        first, second: names of the kernels.
        whole: whether to show all lines, not only those near a difference.
    """
    rows = [row for part in parts for row in _rows(part, whole)]
    shown = "".join(rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        shown += f'<tr class="far"><td></td><td colspan="2">{len(rows) - MOST_ROWS:,} more rows</td></tr>'
    heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in (first, second))
    return (
        '<div class="sass" role="region" aria-label="Machine code side by side" tabindex="0"><table>'
        f'<thead><tr><th scope="col" aria-label="Kind of difference"></th>{heads}</tr></thead>'
        f"<tbody>{shown}</tbody></table></div>"
    )


def _rows(part: alignment.Part, whole: bool) -> Iterator[str]:
    name = part.name[0].upper() + part.name[1:]
    yield f'<tr class="part"><th colspan="3" scope="colgroup">{name}: {alignment.part_words(part)}</th></tr>'
    for is_near, pairs in alignment.runs(part, _CONTEXT):
        if is_near or whole:
            yield from map(_row, pairs)
        else:
            yield f'<tr class="far"><td></td><td colspan="2">{counted(len(pairs), "same line")}</td></tr>'


def _row(pair: alignment.LinePair) -> str:
    sign, said = _SIGNS.get(pair.kind, ("", ""))
    if pair.kind == alignment.CHANGED:
        sign, said = ("−", "only in the first") if pair.second is None else ("+", "only in the second")
    label = f' aria-label="{said}"' if said else ""
    cells = (
        f'<td class="{side}">{"" if line is None else html.escape(line)}</td>'
        for side, line in (("first", pair.first), ("second", pair.second))
    )
    return f'<tr class="{pair.kind}"><td class="sign"{label}>{sign}</td>{"".join(cells)}</tr>'
