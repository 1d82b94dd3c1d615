"""Files that travel with the package but are no part of it: the dashboard's scripts, the documents and the sample data.

In a checkout they are next to ``cache_engine/``; in a wheel below it, so that an installation claims no other name.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def assets_root() -> Path:
    """The folder that holds ``app/``, ``pages/``, ``docs/`` and ``sample_data/``."""
    bundled = _PACKAGE / "_bundled"
    return bundled if bundled.is_dir() else _PACKAGE.parent


def dashboard_script() -> Path:
    """The script that Streamlit runs."""
    return assets_root() / "app" / "main.py"


def dashboard_server() -> Path:
    """The script that runs Streamlit."""
    return assets_root() / "app" / "serve.py"


def shape_catalogue() -> Path:
    """GEMM shapes of public models; the script next to it says where they come from."""
    return assets_root() / "sample_data" / "model_gemm_shapes.csv"


def model_configs() -> Path:
    """The public models' ``config.json`` files in one: an object by model."""
    return assets_root() / "sample_data" / "model_configs.json"


def documents_folder() -> Path:
    """The documents that the dashboard shows."""
    return assets_root() / "docs"
