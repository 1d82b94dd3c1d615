"""Draws linked code with CodeMirror.

The program is a file of this package, built by ``frontend/build.mjs``, which browsers load from this server: Streamlit
would run a program given as text from a ``blob:`` address, and the page's content security policy forbids that.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager
from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest

from app.components.code_view.document import document
from cache_engine._version import __version__
from cache_engine.insight.linked.marks import Linked

_FOLDER = Path(__file__).parent
_PACKAGE, _COMPONENT, _BUILT = "gemm-cache", "code", "built"


def show(code: Linked, name: str, *, key: str, height: int = 600) -> None:
    """The panes, and in words what is missing.

    Args:
        name: what downloaded files are called, without a suffix.
        height: of the panes, in pixels.
    """
    for note in code.notes:
        st.text(note)
    if not code.panes:
        return
    manager = get_bidi_component_manager()
    full_name = f"{_PACKAGE}.{_COMPONENT}"
    if manager.get_component_asset_root(full_name) is None:
        component = ComponentConfig(_COMPONENT, _BUILT)
        manager.register_from_manifest(ComponentManifest(_PACKAGE, __version__, [component]), _FOLDER)
    draw = st.components.v2.component(full_name, js="code-*.js")
    draw(key=key, data=document(code, name, height))
