"""Components of our own, for which Streamlit has no widget.

A component is a script in ``static/``, under its name. It is served as a file of the dashboard: the content security
policy runs no script that comes as text. The style sheets in ``static/`` are sent with the page (``server.style``).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.components.v2.get_bidi_component_manager import get_bidi_component_manager
from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest

from cache_engine import __version__

if TYPE_CHECKING:
    from streamlit.components.v2.component_manager import BidiComponentManager
    from streamlit.components.v2.types import ComponentRenderer

_PACKAGE, _SCRIPTS = "gemm_cache", "static"


def mount(name: str, *, key: str, data: Any, height: int | None = None, **callbacks: Any) -> Any:
    """Draws a component; returns its state.

    Args:
        name: the name of the component's script.
        data: the value that the script gets, as the one item of a list; the script must draw its text as plain text.
        height: the height in pixels to reserve before the script has run; by default as much as is drawn.
        callbacks: ``on_NAME_change`` for each state and trigger of the component.
    """
    # Not in a shadow tree: what watches the page for changes, as the benchmark does, would not see into it. So the
    # rules of a sheet stand below the component's class.
    component = renderer(get_bidi_component_manager(), name, _SCRIPTS, f"{name}.js", isolate_styles=False)
    # Streamlit looks for data frames in a dictionary, for which it imports pandas, but not in a list.
    return component(key=key, data=[data], height="content" if height is None else height, **callbacks)


def into_view(key: str, name: str) -> None:
    """Scrolls the page to what is drawn next, once for each name: the result of a click may be out of view.

    Args:
        key: the key of the place on the page.
        name: the name of the result; empty to scroll nowhere.
    """
    mount("into_view", key=f"into view: {key}", data={"to": name})


@lru_cache(maxsize=32)
def renderer(
    manager: BidiComponentManager, name: str, folder: str, script: str, *, isolate_styles: bool
) -> ComponentRenderer:
    """A function that draws a component, whose script is in a folder below that of this module."""
    # Streamlit looks for components in the pyproject.toml of installed packages, which a wheel does not have.
    manifest = ComponentManifest(_PACKAGE, __version__, [ComponentConfig(name, folder)])
    manager.register_from_manifest(manifest, Path(__file__).parent)
    return st.components.v2.component(f"{_PACKAGE}.{name}", js=script, isolate_styles=isolate_styles)
