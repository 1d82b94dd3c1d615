"""The dashboard's entry: navigation, and nothing else."""

from __future__ import annotations

import sys
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

# Streamlit puts this folder on the path; the pages import from the one above.
_ROOT = str(Path(__file__).parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

import streamlit as st  # noqa: E402

from app import context, widgets  # noqa: E402
from app.components import header  # noqa: E402
from app.server import imports  # noqa: E402
from app.views import fleet  # noqa: E402
from cache_engine.errors import GemmCacheError  # noqa: E402

icon = f"data:image/svg+xml;base64,{b64encode(Path(__file__).with_name('icon.svg').read_bytes()).decode()}"
st.set_page_config(page_title="gemm-cache", page_icon=icon, layout="wide")

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
context.forget_ahead()
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
imports.page_is_drawn()
