"""The project's documents, as the dashboard shows them: Markdown whose links lead from document to document."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

HOME = "index"
_NOT_TO_READ = {"api", "package"}  # made by a program from docstrings; for a package index
_PICTURE = re.compile(r"!\[[^\[\]]*\]\([^()]*\)")
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^():#]*?)\.md(#[^()]*)?\)")
_ELSEWHERE = re.compile(r"\[([^\[\]]*)\]\((?!https?:|docs\?)[^()#][^()]*\)")


def documents(folder: Path) -> dict[str, Path]:
    """The documents of a folder by name, the home first."""
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    return {
        name: found[name] for name in sorted(found, key=lambda name: (name != HOME, name)) if name not in _NOT_TO_READ
    }


def readable(text: str, name: str, names: set[str]) -> str:
    """A document for the page: links to other documents are links to that page, and what is not here is no link.

    Args:
        name: of the document.
        names: of all documents.
    """

    def link(found: re.Match[str]) -> str:
        words, path, part = found[1], found[2], found[3] or ""
        to = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        return f"[{words}](docs?document={to}{part})" if to in names else words

    return _ELSEWHERE.sub(r"\1", _LINK.sub(link, _PICTURE.sub("", text)))
