"""Machine code of two kernels side by side, as the page Compare shows it."""

from __future__ import annotations

import streamlit as st

from app.presenters.sass import STYLE, difference_html, share_words
from cache_engine.insight.alignment import Part, aligned
from cache_engine.insight.comparison import Named


def draw_difference(first: Named, first_sass: str, second: Named, second_sass: str) -> None:
    """What differs, loop by loop; all lines where the reader wants them."""
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
def _aligned(first_sass: str, first: str, second_sass: str, second: str) -> list[Part]:
    return aligned(first_sass, first, second_sass, second)
