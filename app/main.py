"""The dashboard's entry: navigation, and nothing else."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

# Streamlit puts this folder on the path; the pages import from the one above.
_ROOT = str(Path(__file__).parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

import streamlit as st  # noqa: E402

from app import context, widgets  # noqa: E402
from app.components import header  # noqa: E402
from app.views import fleet  # noqa: E402
from cache_engine.errors import GemmCacheError  # noqa: E402

st.set_page_config(page_title="gemm-cache", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")
# Streamlit writes white on the accent, which in the dark theme is too light for it. A disabled button has no accent.
ON_ACCENT = ':is([data-testid^="stBaseButton-primary"]:enabled, [data-tag]) *'
# Streamlit writes the labels in figures in a grey that is too pale for what they stand on.
LABELS = ".js-plotly-plot .annotation-text { fill: light-dark(#14120f, #fafafa) !important }"
# Streamlit leaves as much room above a page, and around its title, as a page of text wants.
DENSE = """.stMainBlockContainer { padding-top: 4rem }
.stMainBlockContainer h1 { font-size: 1.75rem; padding: 0.5rem 0 }
.stMainBlockContainer h2 { padding: 0.25rem 0 }"""
# On a laptop the links to the pages leave room for the buttons of the header only without their icons.
# On a phone Streamlit gives each column of a row a line of its own, which for numbers and fields is half empty.
NARROW = """@media (max-width: 100rem) {
  [data-testid="stTopNavLink"] :is(:has(> [data-testid="stIconMaterial"]), [data-testid="stIconMaterial"]) {
    display: none } }
@media (max-width: 40rem) {
  [data-testid="stHorizontalBlock"]:has(> [data-testid="stColumn"]:nth-child(4)
    :is([data-testid="stMetric"], [data-testid="stNumberInput"], [data-testid="stSelectbox"],
        [data-testid="stMultiSelect"]))
    > [data-testid="stColumn"] { min-width: calc(50% - 1rem); flex-basis: calc(50% - 1rem) } }"""
# Streamlit's sign that a page runs stands where the buttons of the header are.
RUNNING = """[data-testid="stStatusWidget"] { position: fixed; left: 1rem; bottom: 0.5rem; padding: 0.25rem 0.5rem;
  border-radius: 0.5rem; background: light-dark(white, #14120f) }"""
# Streamlit's colours of code are too pale for text in the light theme, and some in the dark one. Others than these stay
# as the text is.
TOKENS = {
    ".token": "inherit",
    ".keyword": "light-dark(#0b5cad, #6cb4f5)",
    ".number": "light-dark(#0a6b5e, #4fd1bd)",
    ".string": "light-dark(#067a29, #3fcf6a)",
    ".operator": "light-dark(#a04600, #f5975a)",
    ":is(.punctuation, .comment)": "light-dark(#5c606b, #a9adb8)",
}
CODE = " ".join(f"[data-testid=stCode] span{one} {{ color: {colour} !important }}" for one, colour in TOKENS.items())
st.html(
    f"<style>{ON_ACCENT} {{ color: light-dark(white, #14120f) }} {LABELS} {DENSE} {NARROW} {RUNNING} {CODE}</style>"
)

page = st.navigation(
    [
        st.Page("../pages/overview.py", title="Overview", icon=":material/dashboard:", default=True),
        st.Page("../pages/kernels.py", title="Kernels", icon=":material/memory:"),
        st.Page("../pages/kernel.py", title="Kernel", icon=":material/memory:", visibility="hidden"),
        st.Page("../pages/compare.py", title="Compare", icon=":material/compare_arrows:"),
        st.Page("../pages/architectures.py", title="Architectures", icon=":material/developer_board:"),
        st.Page("../pages/coverage.py", title="Coverage", icon=":material/grid_on:"),
        st.Page("../pages/demand.py", title="Demand", icon=":material/trending_up:"),
        st.Page("../pages/caches.py", title="Caches", icon=":material/inventory_2:"),
        st.Page("../pages/compile.py", title="Compile", icon=":material/play_circle:"),
        st.Page("../pages/farm.py", title="Farm", icon=":material/lan:"),
        st.Page("../pages/evaluations.py", title="Evaluations", icon=":material/insights:"),
        st.Page("../pages/admin.py", title="Admin", icon=":material/build:"),
        st.Page(
            "../pages/fleet.py",
            title="Fleet",
            icon=":material/hub:",
            visibility="visible" if fleet.is_one() else "hidden",
        ),
        st.Page("../pages/docs.py", title="Docs", icon=":material/menu_book:", visibility="hidden"),
    ],
    position="top",
)
st.set_page_config(page_title=f"{page.title} · gemm-cache")
notice, asked = st.empty(), widgets.address()
try:
    fleet.switch()
    if context.store_is_gone():
        st.title(page.title)
        widgets.store_gone()
    else:
        try:
            with suppress(widgets.PageEnded):
                page.run()
        except GemmCacheError as error:
            widgets.problem("Could not load this page.", str(error))
            with suppress(GemmCacheError):  # of the same cause
                header.draw(page.title)
        else:
            widgets.notices(notice, page.title, asked)
            header.draw(page.title)
except GemmCacheError as error:
    widgets.problem("Could not load this page.", str(error))
