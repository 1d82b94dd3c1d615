"""The parts of a report, and its file. All texts are plain text, which is escaped when the file is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape as _escape

from cache_engine._version import version_and_build
from cache_engine.units import counted, printable

# ---- A report as one HTML file that works without a network, without scripts, in light and dark, and on paper ----
#
# The file forbids itself everything but its own styles, so a mistake in escaping could not run a script either.

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LONG, _NAME = 60, 20  # characters: longer cells may wrap; on a phone, longer first cells too

COLOURS = """
:root { color-scheme: light dark; --ink: light-dark(#1d1b16, #eceae4); --paper: light-dark(#fff, #16140f);
  --line: light-dark(#d8d5cc, #3d3a33); --faint: light-dark(#f5f3ee, #211f19); --grey: light-dark(#5c5a52, #aaa79d);
  --c0: light-dark(#437a00, #93c94a); --c1: light-dark(#0072b2, #5ab4e8); --c2: light-dark(#d55e00, #ff9350);
  --c3: light-dark(#a8487c, #e39bc1); --c4: light-dark(#b37b00, #e69f00); --c5: light-dark(#5a55b5, #a9a5f0);
  --muted: light-dark(#9a9a9a, #77756e) }
"""
"""The colours of the report and its figures, by name."""
_STYLE = (
    COLOURS
    + """
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem; max-width: 100rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
.subtitle, footer, figcaption, .note { color: var(--grey) }
code, pre, .subtitle { font-family: ui-monospace, monospace; font-size: .85em }
pre { margin: 0 } pre.command { background: var(--faint); padding: .6rem; white-space: pre-wrap }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.number, th.number { text-align: right } td, th { white-space: nowrap }
td.long, .facts td { white-space: normal; overflow-wrap: anywhere } td.long { min-width: 16rem }
.facts th { font-weight: 600 }
figure { margin: 0 0 1rem; display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start }
figcaption { flex: 1 0 100% } figure svg { max-width: 100%; height: auto }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
section:has(> details) { display: grid; gap: .5rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)) }
section > :not(details) { grid-column: 1 / -1 }
details { min-width: 0; border: 1px solid var(--line) }
summary { cursor: pointer; padding: .4rem .6rem; background: var(--faint) }
.code { display: grid; grid-template-columns: auto 1fr; max-height: 75vh; overflow: auto; tab-size: 4 }
.code pre { padding: .6rem; line-height: 1.35 } .code pre:first-child { text-align: right; color: var(--grey);
  border-right: 1px solid var(--line); user-select: none; position: sticky; left: 0; background: var(--paper) }
@media screen and (max-width: 40rem) {  /* a phone: a chart that fits would be too small to read */
  body { padding: 1rem } figure > .wide { width: 100% } svg.chart { max-width: max(100%, 36rem) }
  th, td { padding-right: .5rem } .facts th, td.name { white-space: normal } td.name { min-width: 9rem }
  td.long { min-width: 11rem }
}
@media print {
  :root { color-scheme: light } body { padding: 0; font-size: 12px } h2 { break-after: avoid }
  .wide, .code { overflow: visible; max-height: none } .code pre { white-space: pre-wrap }
  .code { display: block } .code pre:first-child { display: none }
  tr, svg { break-inside: avoid } details::details-content { content-visibility: visible; block-size: auto }
}
"""
)


def written(report: Report, now: float) -> str:
    """The text of the report's HTML file.

    Args:
        now: the time that the report shows, in seconds since 1970.
    """
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{safe(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n",
            f'<h1>{safe(report.title)}</h1>\n<div class="subtitle">{safe(report.subtitle)}</div>\n',
            *map(_section, report.sections),
            "</main>\n<footer>\n<h2>Make this report again</h2>\n",
            _part(Command(report.command)),
            f"<p>Made at {moment(now)} by gemm-cache {safe(version_and_build())}.</p>\n</footer>\n</body>\n</html>\n",
        )
    )


def safe(text: str) -> str:
    """Escapes text for the inside of an element or a quoted attribute; invisible characters become ``?``."""
    return _escape(printable(text, keep="\n\t"))


def _section(section: Section) -> str:
    return f"<section>\n<h2>{safe(section.heading)}</h2>\n{''.join(map(_part, section.parts))}</section>\n"


def _part(part: Part) -> str:
    match part:
        case Facts(values):
            rows = "".join(
                f'<tr><th scope="row">{safe(name)}</th><td>{safe(text)}</td></tr>\n' for name, text in values.items()
            )
            return f'<div class="wide" tabindex="0"><table class="facts">\n{rows}</table></div>\n'
        case Table():
            return _table(part)
        case Figure(title, svg, table):
            drawn = f'<div class="wide" tabindex="0"><div role="img" aria-label="{safe(title)}">\n{svg}</div></div>'
            return f"<figure>\n<figcaption>{safe(title)}</figcaption>\n{drawn}\n{_table(table)}</figure>\n"
        case Paragraph(name, content):
            return _text(name, content)
        case Command(line):
            return f'<pre class="command">{safe(line)}</pre>\n'
        case Note(words):
            return f'<p class="note">{safe(words)}</p>\n'


def _table(table: Table) -> str:
    left_out = table.left_out + max(0, len(table.rows) - MOST_ROWS)
    more = f'<p class="note">Not shown: {counted(left_out, "more row")}.</p>\n' if left_out else ""
    head = _cells("th", table.heads, table.words)
    body = "".join(f"<tr>{_cells('td', row, table.words)}</tr>\n" for row in table.rows[:MOST_ROWS])
    drawn = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return f'<div class="wide" tabindex="0">{drawn}{more}</div>\n'


def _cells(tag: str, cells: Iterable[str], words: int) -> str:
    drawn = []
    for place, cell in enumerate(cells):
        kind = "number" if place >= words else "long" if len(cell) > _LONG else ""
        if place == 0 and not kind and len(cell) > _NAME:
            kind = "name"
        opened = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
        drawn.append(f"{opened}{safe(cell)}</{tag}>")
    return "".join(drawn)


def _text(name: str, content: str) -> str:
    lines = content.splitlines()
    shown = content if len(content) <= MOST_CHARACTERS else content[:MOST_CHARACTERS].rpartition("\n")[0]
    kept = len(shown.splitlines())
    words = counted(len(lines), "line") + (f"; the first {kept:,} are here" if kept < len(lines) else "")
    numbers = "\n".join(map(str, range(1, kept + 1)))
    code = "\n".join(map(safe, shown.splitlines()))
    return (
        f'<details><summary>{safe(name)}, {words}</summary>\n<div class="code" tabindex="0" role="region" '
        f'aria-label="{safe(name)}"><pre aria-hidden="true">{numbers}</pre><pre>{code}</pre></div></details>\n'
    )


MOST_ROWS = 1_000
"""The most rows of a table; the report says how many it leaves out."""

MOST_CHARACTERS = 1_000_000
"""The most characters of a text, in whole lines; the report says how many lines it leaves out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of properties: names, and values as text."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its cells are text for people.

    Attributes:
        words: the number of columns, from the left, that hold words; the others hold numbers.
        left_out: the number of rows that ``rows`` leaves out.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with a title, and a table of its numbers.

    Attributes:
        svg: SVG text from ``drawing``, which has escaped all texts in it.
    """

    title: str
    svg: str
    table: Table


@dataclass(frozen=True, slots=True)
class Paragraph:
    """The lines of a program, log or diff, under a name. The reader opens it to see all lines."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the reader to copy."""

    line: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of the report."""

    words: str


Part = Facts | Table | Figure | Paragraph | Command | Note


@dataclass(frozen=True, slots=True)
class Section:
    """The parts of a report under one heading."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Attributes:
        subtitle: what identifies the subject, such as a kernel's full key.
        command: the command that makes the report again.
    """

    title: str
    subtitle: str
    command: str
    sections: tuple[Section, ...]


def moment(seconds: float) -> str:
    """A time, given in seconds since 1970, as text in UTC, since reports are read in any time zone."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds > 0 else "never"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"  # a wrong clock, or a forged record
