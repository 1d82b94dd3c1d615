"""The page Docs: the project's documents, which are files of the package."""

from __future__ import annotations

import streamlit as st

from cache_engine.assets import HOME, documents, readable

found = documents()
st.title("Docs")
name = st.selectbox("Document", list(found), key="document", bind="query-params")
shown = found.get(str(name)) or found.get(HOME)
if shown is None:
    st.info("This installation has no documents. They are in the folder docs of the project.")
else:
    text = shown.read_text(encoding="utf-8")
    # The page has a title of its own; that of the document is one level below it.
    st.markdown(readable(text.replace("# ", "## ", 1), str(name), set(found)))
