"""Draws docs/images/gpu-model.png: predicted vs measured latencies, on (N, K) pairs that no fit has seen.

::

    python docs/plot_gpu_model.py FILE.csv[.gz]

Needs the development environment, and Chromium for Playwright.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from cache_engine.evaluator.gpu import latencies_us, parameters_of, roofline_us
from cache_engine.evaluator.validation import read_measurements

PICTURE = Path(__file__).parent / "images" / "gpu-model.png"
SIZE = {"width": 1200, "height": 720}


def main() -> None:
    """Draws a panel for each GPU."""
    measured = [one.only(one.kept_out()) for one in read_measurements(Path(sys.argv[1]))]
    figure = make_subplots(rows=2, cols=2, subplot_titles=[one.gpu.name for one in measured])
    for index, one in enumerate(measured):
        place = {"row": index // 2 + 1, "col": index % 2 + 1}
        predicted = latencies_us(parameters_of(one.gpu)[1], one.gpu, one.m, one.n, one.k)
        roofline = roofline_us(one.gpu, one.m, one.n, one.k)
        for name, times, colour in (("roofline", roofline, "#bbbbbb"), ("model", predicted, "#1f77b4")):
            marker = {"size": 3, "color": colour, "opacity": 0.5}
            points = go.Scatter(
                x=one.latency_us, y=times, mode="markers", name=name, marker=marker, showlegend=index == 0
            )
            figure.add_trace(points, **place)
        ends = [one.latency_us.min(), one.latency_us.max()]
        line = go.Scatter(x=ends, y=ends, mode="lines", line={"color": "black", "width": 1}, showlegend=False)
        figure.add_trace(line, **place)
    figure.update_xaxes(type="log", title="measured, µs", range=[0.2, 6.2], dtick=1)
    figure.update_yaxes(type="log", title="predicted, µs", range=[-1, 6.2], dtick=1)
    figure.update_layout(template="plotly_white", margin={"l": 60, "r": 20, "t": 40, "b": 50}, **SIZE)
    page_text = figure.to_html(include_plotlyjs=True, config={"displayModeBar": False})
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.set_content(page_text)
        page.wait_for_selector(".main-svg")
        page.wait_for_timeout(1000)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
