"""Files that are installed with the package and are not its modules: dashboard scripts, documents, sample data.

In a checkout they are next to ``cache_engine/``. In a wheel they are inside it, so that an installation adds no other
top-level name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_PACKAGE = Path(__file__).parent


def assets_root() -> Path:
    """The folder that holds ``app/``, ``pages/``, ``docs/`` and ``sample_data/``."""
    bundled = _PACKAGE / "_bundled"
    return bundled if bundled.is_dir() else _PACKAGE.parent


def dashboard_script() -> Path:
    """The path of the script that Streamlit runs."""
    return assets_root() / "app" / "main.py"


def dashboard_server() -> Path:
    """The path of the script that starts Streamlit."""
    return assets_root() / "app" / "serve.py"


def shape_catalogue() -> Path:
    """The path of the file with GEMM shapes of public models; the script next to it says where the shapes come from."""
    return assets_root() / "sample_data" / "model_gemm_shapes.csv"


def model_configs() -> Path:
    """The path of one file with the ``config.json`` of each public model: a JSON object by model name."""
    return assets_root() / "sample_data" / "model_configs.json"


HOME = "index"
_NOT_TO_READ = {"api", "package"}  # made by a program from docstrings; for a package index
_PICTURE = re.compile(r"!\[[^\[\]]*\]\([^()]*\)")
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^():#]*?)\.md(#[^()]*)?\)")
_ELSEWHERE = re.compile(r"\[([^\[\]]*)\]\((?!https?:|docs\?)[^()#][^()]*\)")


def documents() -> dict[str, Path]:
    """The paths of the documents that the dashboard shows, by name; the start page is first."""
    folder = assets_root() / "docs"
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    return {
        name: found[name] for name in sorted(found, key=lambda name: (name != HOME, name)) if name not in _NOT_TO_READ
    }


def readable(text: str, name: str, names: set[str]) -> str:
    """The text of a document for the dashboard's page Docs.

    Links to documents in ``names`` open them on this page; links to other documents become plain text.

    Args:
        name: the name of this document.
        names: the names of all documents.
    """

    def link(found: re.Match[str]) -> str:
        words, path, part = found[1], found[2], found[3] or ""
        to = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        return f"[{words}](docs?document={to}{part})" if to in names else words

    return _ELSEWHERE.sub(r"\1", _LINK.sub(link, _PICTURE.sub("", text)))
