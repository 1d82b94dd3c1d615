"""The version number, which the build and the records read from here, and the build of the installed package."""

import functools

__version__ = "0.3.0"


def version_and_build() -> str:
    """The version and the build, such as ``0.2.0+3f2a91c0d4e5``. A record names its maker by this text.

    The build is a hash of the package's files, by name and content. A checkout, an sdist and a wheel of one commit have
    the same build, and any edit changes it. It contains no path.

    The files are read at the first call, which takes milliseconds; no import and no hit calls this. If a file cannot be
    read, the build is ``unknown``.
    """
    try:
        return f"{__version__}+{_build()}"
    except OSError:
        return f"{__version__}+unknown"


@functools.cache
def _build() -> str:
    import hashlib
    import os

    package = os.path.dirname(os.path.abspath(__file__))
    lines = []
    for folder, inner, names in os.walk(package):
        # In a wheel, ``_bundled`` has the dashboard, which is not part of the package; neither are hidden files.
        inner[:] = [name for name in inner if name not in {"__pycache__", "_bundled"} and not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    lines.append(f"{os.path.relpath(path, package)}\0{hashlib.sha256(file.read()).hexdigest()}\n")
    if not lines:
        raise FileNotFoundError("the package is not in a folder")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
