"""What mkdocs does besides: the changelog and the security page, which are in the checkout's root, are pages too."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FROM_ROOT = ("CHANGELOG.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, with their links as from a page."""
    for name in FROM_ROOT:
        text = (Path(config.docs_dir).parent / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's Markdown, with links to those pages as the site has them."""
    for name in FROM_ROOT:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    return markdown
