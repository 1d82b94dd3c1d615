"""Machine code of two kernels side by side, as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from cache_engine.insight.alignment import CHANGED, MOVED, OPERANDS, LinePair, Part, changed_share, part_words, runs
from cache_engine.units import counted

MOST_ROWS = 4_000
"""The most rows of the table; the command prints all."""

_CONTEXT = 3
_SIGNS = {MOVED: ("↕", "moved"), OPERANDS: ("~", "other operands")}
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


def share_words(parts: Sequence[Part]) -> str:
    """How much of the first kernel's code differs, and what does not count."""
    lines = sum(pair.first is not None for part in parts for pair in part.pairs)
    return (
        f"{changed_share(parts):.0%} of the first kernel's {counted(lines, 'line')} differ. Lines that differ in "
        "registers only count as the same; ↕ has moved within its part; ~ has other constants, addresses or labels; "
        "− and + are in one kernel only."
    )


def difference_html(parts: Sequence[Part], first: str, second: str, *, whole: bool) -> str:
    """A table that takes the keyboard's focus, to scroll it. All text is escaped.

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


def _rows(part: Part, whole: bool) -> Iterator[str]:
    name = part.name[0].upper() + part.name[1:]
    yield f'<tr class="part"><th colspan="3" scope="colgroup">{name}: {part_words(part)}</th></tr>'
    for is_near, pairs in runs(part, _CONTEXT):
        if is_near or whole:
            yield from map(_row, pairs)
        else:
            yield f'<tr class="far"><td></td><td colspan="2">{counted(len(pairs), "same line")}</td></tr>'


def _row(pair: LinePair) -> str:
    sign, said = _SIGNS.get(pair.kind, ("", ""))
    if pair.kind == CHANGED:
        sign, said = ("−", "only in the first") if pair.second is None else ("+", "only in the second")
    label = f' aria-label="{said}"' if said else ""
    cells = (
        f'<td class="{side}">{"" if line is None else html.escape(line)}</td>'
        for side, line in (("first", pair.first), ("second", pair.second))
    )
    return f'<tr class="{pair.kind}"><td class="sign"{label}>{sign}</td>{"".join(cells)}</tr>'
