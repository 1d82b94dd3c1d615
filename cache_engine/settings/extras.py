"""Optional packages, which only some verbs need, and the command that installs each.

The core compiles, stores and serves kernels. ``pyproject.toml`` lists the packages of the core and of each extra. No
install command takes this program from a package index, because anyone could have registered its name there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from cache_engine.errors import ExtraMissing

_NAME = "gemm-cache"

EXTRAS = {
    "dashboard": ("duckdb", "plotly", "pyarrow", "streamlit"),
    "evaluate": ("numpy",),
    "gpu": ("cupy",),
    "cuda12": ("cupy",),
    "team": ("celery", "cryptography", "obstore", "redis"),
}
"""For each extra, the modules that this package imports from it."""


@contextmanager
def needing(extra: str, purpose: str) -> Iterator[None]:
    """A context manager for code that imports modules of an extra.

    Args:
        purpose: the feature that needs the modules, as the start of a sentence.

    Raises:
        ExtraMissing: when a module is not installed; the text has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing(extra, purpose, str(error.name)) from error


def lazy(module: str, extra: str, purpose: str) -> ModuleType:
    """An object in place of a module of an extra, which imports the module at its first use.

    So code that uses the module can be imported without the extra. Using the object raises ``ExtraMissing`` if the
    extra is not installed.
    """
    return _LazyModule(module, extra, purpose)


class _LazyModule(ModuleType):
    """A module that imports another module at the first use of one of its names."""

    def __init__(self, name: str, extra: str, purpose: str) -> None:
        super().__init__(name)
        self._needs = (extra, purpose)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspect and pydoc ask every module for some of these
            raise AttributeError(name)
        with needing(*self._needs):
            value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def require(extra: str, purpose: str, *modules: str) -> None:
    """Checks that modules of an extra (by default all) are installed, without importing them.

    Raises:
        ExtraMissing: when one is not installed; the text has the command that installs it.
    """
    for module in modules or EXTRAS[extra]:
        if find_spec(module) is None:
            raise _missing(extra, purpose, module)


def how_to_install(extra: str) -> str:
    """The shell command that installs an extra: from this checkout or wheel, else the extra's packages by name."""
    import json
    from importlib import metadata
    from pathlib import Path
    from shlex import quote
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        installed = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:  # it runs from a folder that is not installed
        names, place, option = list(EXTRAS.get(extra, (extra,))), Path(__file__).absolute().parents[2], "-e "
    else:
        named = [line.partition(";") for line in installed.requires or ()]
        names = [name.strip() for name, _, marker in named if f'extra == "{extra}"' in marker.replace("'", '"')]
        origin = json.loads(installed.read_text("direct_url.json") or '{"url": ""}')  # PEP 610
        url = urlsplit(origin["url"])
        place = Path(url2pathname(url.path) if url.scheme == "file" else os.devnull)
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    if place.is_file():
        return f"{pip()} install {quote(f'{_NAME}[{extra}] @ {place.as_uri()}')}"
    if (place / "pyproject.toml").is_file():
        return f"{pip()} install {option}{quote(f'{place}[{extra}]')}"
    return f"{pip()} install {' '.join(map(quote, names))}"


def pip() -> str:
    """The command for the pip of this Python, as a shell finds it."""
    from shlex import quote
    from shutil import which

    here = os.path.dirname(sys.executable)
    return "pip" if os.path.dirname(which("pip") or "") == here else f"{quote(sys.executable)} -m pip"


def _missing(extra: str, purpose: str, module: str) -> ExtraMissing:
    return ExtraMissing(f"{purpose} needs {module}, which is not installed; run: {how_to_install(extra)}")
