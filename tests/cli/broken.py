"""The command line with templates that end in a line no compiler takes."""

from __future__ import annotations

from cache_engine.cache import build, debug_dump
from cache_engine.cli.main import main
from cache_engine.kernels import source


def _broken(*given: object) -> str:
    return f"{source.render(*given)}\nbroken;\n"  # type: ignore[arg-type]


if __name__ == "__main__":
    build.render = debug_dump.render = _broken  # type: ignore[attr-defined]
    main()
