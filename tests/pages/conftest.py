"""Pages opened by Streamlit's own test runner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from app import context, guard
from cache_engine.assets import dashboard_script
from tests.pages.opening import Open, Reader

# The test runner reads the metadata of all installed packages for every page, which takes longer than most pages.
_installed_components = cache(manifest_scanner.scan_component_manifests)


@pytest.fixture
def reader() -> Reader:
    """Who opens the pages of a test; at the machine itself until it is changed."""
    return Reader()


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> Iterator[Open]:
    """Opens a page of the dashboard on a store, as a browser would, with these query parameters."""

    def opened(store: Path, page: str, /, **parameters: str) -> AppTest:
        monkeypatch.setenv("GEMM_CACHE_DIR", str(store))
        # The test runner has no server. Its reader sits at the machine, unless a test says otherwise.
        monkeypatch.setattr(guard, "request", lambda: reader.request)
        monkeypatch.setattr(manifest_scanner, "scan_component_manifests", _installed_components)
        app = AppTest.from_file(str(dashboard_script()), default_timeout=60)
        for name, value in parameters.items():
            app.query_params[name] = value
        if page != "overview":  # which is the first anyway
            app.switch_page(f"../pages/{page}.py")
        return app.run()

    st.cache_resource.clear()
    st.cache_data.clear()
    yield opened
    if "GEMM_CACHE_DIR" in os.environ and Path(os.environ["GEMM_CACHE_DIR"]).is_dir():
        for child in context.jobs()._children.values():
            child.wait(timeout=60)
    st.cache_resource.clear()
    st.cache_data.clear()
