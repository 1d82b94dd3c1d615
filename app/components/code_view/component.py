"""Draws the linked texts of a kernel's code with CodeMirror, as plain text and never as HTML.

The program is a file of this package, built by ``frontend/build.mjs``, which browsers load from this server: Streamlit
would run a program given as text from a ``blob:`` address, and the page's content security policy forbids that.
"""

from __future__ import annotations

from typing import Any

import streamlit as st
from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager

from app.components import renderer
from cache_engine.insight.linked.marks import Linked, Pane


def show(code: Linked, name: str, *, key: str) -> None:
    """Draws a pane for each text of the code, and above them a note for each missing text.

    Args:
        name: the name of downloaded files, without a suffix.
    """
    for note in code.notes:
        st.text(note)
    if not code.panes:
        return
    draw = renderer(get_bidi_component_manager(), "code", "code_view/built", "code-*.js", isolate_styles=True)
    draw(key=key, data=document(code, name))


MOST_CHARACTERS = 8_000_000
"""The most characters of all panes together; if there are more, the longest panes are cut at the end."""

_HINT = "Point at a line, or move the cursor to it: what belongs to it lights up in all panes."
_UNLINKED = "These panes are not linked: nothing says which of their lines belong together."
_SUFFIXES = {"cuda": "cu", "python": "py", "ptx": "ptx", "sass": "sass"}


def document(code: Linked, name: str) -> dict[str, Any]:
    """The data that the browser's program draws: the panes with their texts and links.

    Args:
        name: what downloaded files are called, without a suffix.
    """
    chains: dict[tuple[int, ...], int] = {(): 0}
    limit = MOST_CHARACTERS // max(len(code.panes), 1)
    panes = [_pane(pane, name, chains, limit) for pane in code.panes]
    return {
        "hint": _HINT if code.is_linked else _UNLINKED,
        "chains": [list(chain) for chain in chains],
        "panes": panes,
    }


def _pane(pane: Pane, name: str, chains: dict[tuple[int, ...], int], limit: int) -> dict[str, Any]:
    lines, left = [], limit
    for line in pane.lines:
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    count = len(lines)
    values = pane.values if count == len(pane.lines) else ()
    return {
        "name": pane.name,
        "language": pane.language,
        "file": f"{name}.{_SUFFIXES.get(pane.language, pane.name.lower())}",
        "text": "\n".join(lines),
        "lines": count,
        "chain": [chains.setdefault(chain, len(chains)) for chain in pane.chains[:count]],
        "ptx": list(pane.ptx[:count]),
        "registers": list(pane.registers[:count]),
        "kinds": list(pane.kinds[:count]),
        "stalls": list(pane.stalls[:count]),
        "values": [[value.register, value.defined, value.used] for value in values],
        "cycles": [list(row) for row in pane.cycles],
        "loop": list(pane.loop) if pane.loop is not None and pane.loop[1] <= count else None,
        "folds": [list(fold) for fold in pane.folds if fold[1] <= count],
    }
