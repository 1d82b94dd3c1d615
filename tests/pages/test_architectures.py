"""Architectures."""

from __future__ import annotations

from pathlib import Path

from tests.pages.opening import Open, sound


def test_architectures_have_plots_and_a_table(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures"))
    assert list(app.dataframe[0].value["Target"]) == ["sm_75", "sm_80", "sm_90"]
    assert list(app.dataframe[0].value["Kernels"]) == [1, 1, 2]
    assert len(app.get("plotly_chart")) == 4
