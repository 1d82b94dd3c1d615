"""The command line with templates that end in a line no compiler takes."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.cache import miss
from cache_engine.cli.main import main
from cache_engine.kernels import source


def _broken(template: str, constants: Mapping[str, str | int], replacements: Mapping[str, str] | None = None) -> str:
    return f"{source.render(template, constants, replacements)}\nbroken;\n"


if __name__ == "__main__":
    miss.render = _broken  # type: ignore[attr-defined]
    main()
