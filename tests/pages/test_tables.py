"""Sizes and durations in tables, and axes."""

from __future__ import annotations

import re
from pathlib import Path

from app.components import tables


def test_no_page_draws_a_grid_whose_toolbar_could_save_formulas() -> None:
    root = Path(tables.__file__).parents[2]
    others = {
        str(path.relative_to(root))
        for folder in ("app", "pages")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\.(dataframe|table|data_editor)\(", path.read_text())
    }
    assert others == set()
