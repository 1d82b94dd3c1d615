"""Pages opened by Streamlit's own test runner."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import streamlit as st
from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest, local_script_runner
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from app import context, guard
from app.addresses import moved
from cache_engine.assets import dashboard_script
from cache_engine.cache.cache import open_cache
from tests.pages.opening import Open, Reader

# The test runner reads the metadata of all installed packages for every page, which takes longer than most pages.
_installed_components = cache(manifest_scanner.scan_component_manifests)


_poll = local_script_runner.require_widgets_deltas


def _wait(runner: LocalScriptRunner, timeout: float = 3) -> None:
    """Waits for the end of a script; the test runner looks a thousand times a second."""
    if runner._script_thread is not None:
        runner._script_thread.join(timeout)
    if not runner.script_stopped():
        _poll(runner, 0)  # says that it is late


@pytest.fixture(scope="session")
def _settings() -> None:
    """How the dashboard has scripts run: the test runner does not read its file, and would rewrite every script."""
    settings = tomllib.loads((dashboard_script().parent / ".streamlit" / "config.toml").read_text())
    for section in ("runner", "browser"):
        for name, value in settings[section].items():
            config.set_option(f"{section}.{name}", value)


@pytest.fixture(scope="session")
def _synced(_compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(_compiled, tmp_path_factory.mktemp("synced") / "store"))
    with open_cache(folder, durability="fast") as opened:
        opened.index.sync()
    return folder


@pytest.fixture
def compiled_store(_synced: Path, tmp_path: Path) -> Path:
    """As elsewhere, with the index that a dashboard has had before: building one takes longer than most pages."""
    return Path(shutil.copytree(_synced, tmp_path / "compiled"))


@pytest.fixture
def reader() -> Reader:
    """Who opens the pages of a test; at the machine itself until it is changed."""
    return Reader()


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, reader: Reader, _settings: None) -> Iterator[Open]:
    """Opens a page of the dashboard on a store, as a browser would, with these query parameters."""

    def opened(store: Path, page: str, /, **parameters: str | list[str]) -> AppTest:
        monkeypatch.setenv("GEMM_CACHE_DIR", str(store))
        # The test runner has no server. Its reader sits at the machine, unless a test says otherwise.
        monkeypatch.setattr(guard, "request", lambda: reader.request)
        monkeypatch.setattr(manifest_scanner, "scan_component_manifests", _installed_components)
        monkeypatch.setattr(local_script_runner, "require_widgets_deltas", _wait)
        page, given = moved(
            page, {name: value if isinstance(value, list) else [value] for name, value in parameters.items()}
        )
        app = AppTest.from_file(str(dashboard_script()), default_timeout=60)
        for name, value in given.items():
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
