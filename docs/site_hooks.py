"""What mkdocs does besides: the changelog, which is in the checkout's root, is a page of the site too."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CHANGELOG = "CHANGELOG.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the changelog, with its links as from a page."""
    text = (Path(config.docs_dir).parent / CHANGELOG).read_text(encoding="utf-8")
    files.append(File.generated(config, CHANGELOG, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's Markdown, with links to the changelog as the site has it."""
    return markdown.replace(f"](../{CHANGELOG}", f"]({CHANGELOG}")
