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

from app import addresses, context, widgets  # noqa: E402
from app.components import header  # noqa: E402
from app.server import imports  # noqa: E402
from app.views import fleet  # noqa: E402
from cache_engine.errors import GemmCacheError  # noqa: E402

icon = f"data:image/svg+xml;base64,{b64encode(Path(__file__).with_name('icon.svg').read_bytes()).decode()}"
st.set_page_config(page_title="gemm-cache", page_icon=icon, layout="wide")

PAGES = {
    "Overview": ":material/dashboard:",
    "Kernels": ":material/memory:",
    "Workload": ":material/trending_up:",
    "Compile": ":material/play_circle:",
    "Predict": ":material/insights:",
    "Storage": ":material/build:",
}
HIDDEN = ("Kernel", "Compare", "Docs")


def moved(old: str) -> st.Page:
    """A page under an earlier version's address, which sends the reader to the page that has its content now."""

    def lead() -> None:
        page, asked = addresses.moved(old, widgets.address())
        widgets.go(page, asked)

    return st.Page(lead, title=old.capitalize(), url_path=old, visibility="hidden")


page = st.navigation(
    [
        *(
            st.Page(f"../pages/{title.lower()}.py", title=title, icon=icon, default=title == "Overview")
            for title, icon in PAGES.items()
        ),
        *(st.Page(f"../pages/{title.lower()}.py", title=title, visibility="hidden") for title in HIDDEN),
        *map(moved, addresses.MOVED),
    ],
    position="top",
)
st.set_page_config(page_title=f"{page.title} · gemm-cache")
widgets.renew_address()
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
    st.title(page.title)
    widgets.problem("Could not load this page.", str(error))
finally:
    widgets.remember_address()
imports.page_is_drawn()
